"""The kernels as compiled for a GPU: types, vector accesses, registers. No GPU needed.

A uint64 that meets a signed operand becomes signed or floating without a word from the compiler, and a device function
that is not inlined drags its arrays through local memory. Neither shows in the simulator; both show in PTX.
"""

from __future__ import annotations

import inspect
import os
import re
from functools import cache

import pytest

from canary_numba import layout, mixing
from canary_numba.engines import simulator_enabled
from canary_numba.layout import FailReason

if simulator_enabled():
    pytest.skip("the simulator compiles nothing", allow_module_level=True)


def _why_no_compiler() -> str | None:
    try:
        import numba_cuda  # noqa: F401
        from cuda.pathfinder import load_nvidia_dynamic_lib

        load_nvidia_dynamic_lib("nvvm")
        import nvidia  # noqa: F401
    except (ImportError, RuntimeError) as error:
        return f"no compiler for CUDA, take an extra, cu12 or cu13: {error}"
    return None


if (missing := _why_no_compiler()) and not os.environ.get("CI"):
    pytest.skip(missing, allow_module_level=True)

import compiled  # noqa: E402
from compiled import HOPPER, KERNELS, ptx_of, resources_of  # noqa: E402
from numba import cuda, types  # noqa: E402

needs_ptxas = pytest.mark.skipif(compiled.find_ptxas() is None, reason="no ptxas: take an extra, cu12 or cu13")
kernels = pytest.mark.parametrize("name", KERNELS)

MIXERS = {
    name: function
    for name, function in vars(mixing).items()
    if hasattr(function, "py_func") and function.py_func.__module__ == mixing.__name__
}
mixers = pytest.mark.parametrize("name", MIXERS)

FLOATS = r"\.f(?:16|32|64)\b"
SIGNED_MIXER_SHIFT = r"shr\.s64[^;]*, (?:27|30|31);"
GENERIC_ACCESS = r"\b(?:ld|st)\.(?:volatile\.)?(?:v[24]\.)?[usb]\d+"


def lines_with(pattern: str, ptx: str) -> list[str]:
    return [line.strip() for line in ptx.splitlines() if re.search(pattern, line)]


def literals(ptx: str) -> set[int]:
    """Every integer of the text as an unsigned 64-bit value: PTX writes one as it likes, signed or not, hex or not."""
    return {int(text, 0) % 2**64 for text in re.findall(r"(?<![\w%$.])-?(?:0x[0-9a-fA-F]+|[1-9]\d*|0)\b", ptx)}


@cache
def mixer(name: str) -> tuple[str, object]:
    """PTX and return type of a mixer over uint64 arguments."""
    function = MIXERS[name].py_func
    signature = (types.uint64,) * len(inspect.signature(function).parameters)
    ptx, result = cuda.compile(function, signature, device=True, cc=HOPPER, abi="numba", output="ptx")
    return (ptx.decode() if isinstance(ptx, bytes) else str(ptx)), result


class TestKernels:
    @kernels
    def test_integers_stay_integers(self, name: str) -> None:
        assert lines_with(FLOATS, ptx_of(name)) == []

    @kernels
    def test_the_mixers_shift_unsigned(self, name: str) -> None:
        assert lines_with(SIGNED_MIXER_SHIFT, ptx_of(name)) == []

    @kernels
    def test_everything_is_inlined(self, name: str) -> None:
        assert lines_with(r"\bcall\b|\.local\b", ptx_of(name)) == []

    @kernels
    def test_every_access_names_its_memory(self, name: str) -> None:
        assert lines_with(GENERIC_ACCESS, ptx_of(name)) == []

    @needs_ptxas
    @kernels
    def test_registers_and_memory(self, name: str) -> None:
        used = resources_of(name)
        # 184 leave room for 11 warps on a multiprocessor; measured, more warps with narrower tiles are slower.
        assert 0 < used["registers"] <= 184
        assert (used["stack"], used["spill_stores"], used["spill_loads"]) == (0, 0, 0)
        assert used["shared"] <= 48 * 1024, "more than a launch gets unless it asks"


PAIRED = [name for name in KERNELS if name.startswith(("verify-", "write-")) and not name.endswith("-words")]
TILED = [name for name in KERNELS if name.endswith(("-wide", "-paged", "-four"))]


class TestWideAccesses:
    """16 bytes at a time where addresses allow."""

    @pytest.mark.parametrize("name", PAIRED)
    def test_records_are_read_in_pairs(self, name: str) -> None:
        assert lines_with(r"ld\.global\.v2\.[ub]64", ptx_of(name))

    @pytest.mark.parametrize("name", [name for name in PAIRED if name.startswith("write-")])
    def test_records_are_written_in_pairs(self, name: str) -> None:
        assert lines_with(r"st\.global\.v2\.[ub]64", ptx_of(name))
        assert lines_with(r"ld\.shared\.v2\.[ub]64", ptx_of(name)), "the staged tokens"

    @pytest.mark.parametrize("name", TILED)
    def test_kv_bytes_go_through_shared_memory_in_pairs(self, name: str) -> None:
        for access in ("ld.global.v2", "st.shared.v2", "ld.shared.v2"):
            assert len(lines_with(rf"\b{re.escape(access)}\.[ub]64", ptx_of(name))) >= 8, access

    @pytest.mark.parametrize("name", ["hash-partial", "hash-narrow"])
    def test_short_rows_are_read_in_pairs(self, name: str) -> None:
        assert lines_with(r"ld\.global\.v2", ptx_of(name))

    @pytest.mark.parametrize("name", ["hash-words", "hash-bytes"])
    def test_unaligned_rows_are_not(self, name: str) -> None:
        assert lines_with(r"ld\.global\.v2", ptx_of(name)) == []


HASHING = [name for name in KERNELS if not name.startswith(("plan", "scatter"))]
VERIFY_REASONS = [reason for reason in FailReason if str(reason.name).startswith("VERIFY")]
WRITE_REASONS = [
    FailReason.WRITE_TOKEN_MISMATCH,
    FailReason.WRITE_POSITION_MISMATCH,
    FailReason.VERIFY_SLOT_OUT_OF_RANGE,
]
CHAINING = [name for name in KERNELS if name.startswith(("verify", "write"))]


class TestConstants:
    """What is compiled in is what layout.py says."""

    @pytest.mark.parametrize("name", HASHING)
    def test_multipliers(self, name: str) -> None:
        assert {layout.SPLITMIX64_MULTIPLIER_1, layout.SPLITMIX64_MULTIPLIER_2} <= literals(ptx_of(name))

    @pytest.mark.parametrize("name", HASHING)
    def test_shifts(self, name: str) -> None:
        ptx = ptx_of(name)
        for shift in layout.SPLITMIX64_SHIFTS:
            assert lines_with(rf"shr\.[ub]64[^;]*, {shift};", ptx), shift

    @pytest.mark.parametrize("name", CHAINING)
    def test_the_head_of_every_chain(self, name: str) -> None:
        assert mixing.splitmix64(layout.CANARY_CHAIN_ANCHOR) in literals(ptx_of(name))

    @pytest.mark.parametrize("name", CHAINING)
    def test_fail_reasons(self, name: str) -> None:
        reasons = VERIFY_REASONS if name.startswith("verify") else WRITE_REASONS
        stored = literals("\n".join(lines_with(r"\b(?:or|selp|mov)\.", ptx_of(name))))
        assert {int(reason) for reason in reasons} <= stored

    @pytest.mark.parametrize("name", ["plan-chunks", "plan-entries", "scatter"])
    def test_no_hash_where_none_belongs(self, name: str) -> None:
        assert layout.SPLITMIX64_MULTIPLIER_1 not in literals(ptx_of(name))

    def test_a_slot_out_of_range(self) -> None:
        assert layout.SLOT_OUT_OF_RANGE in literals(ptx_of("plan-entries"))


class TestMixers:
    @mixers
    def test_uint64_in_uint64_out(self, name: str) -> None:
        assert mixer(name)[1] == types.uint64

    @mixers
    def test_integers_stay_unsigned(self, name: str) -> None:
        ptx = mixer(name)[0]
        assert lines_with(FLOATS, ptx) == []
        assert lines_with(r"shr\.s64", ptx) == []

    def test_all_are_here(self) -> None:
        assert {"splitmix64_u64", "slot_hash_u64", "fold_word"} <= set(MIXERS)


def test_the_checks_see_what_they_look_for() -> None:
    """A mixer written carelessly: signed shift after a signed sum, and a comparison that goes through doubles."""

    def careless(x, y):  # type: ignore[no-untyped-def]
        return ((x + 1) >> 30) if x < y else x

    ptx, result = cuda.compile(careless, (types.uint64, types.int64), device=True, cc=HOPPER, abi="numba", output="ptx")
    text = ptx.decode() if isinstance(ptx, bytes) else str(ptx)
    assert result != types.uint64
    assert lines_with(FLOATS, text)
    assert lines_with(SIGNED_MIXER_SHIFT, text)
    assert lines_with(GENERIC_ACCESS, "ld.v2.u64 %rd1; \n ld.u32 %r1;") == ["ld.v2.u64 %rd1;", "ld.u32 %r1;"]
    assert literals("xor.b64 %rd3, %rd2, -1; mov.u64 %rd4, 0x10;") == {2**64 - 1, 16}
