"""Compiling the kernels to PTX, and to machine code for its resource report, without a GPU."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numba.cuda.dispatcher
from numba import int32, int64, types, uint8, uint64

from canary_numba.engines.cuda.device import cuda
from canary_numba.engines.cuda.fold_shapes import NARROW_TILE_WORDS, SourceShape
from canary_numba.engines.cuda.hash import make_hash_kernel
from canary_numba.engines.cuda.plan_kernels import make_plan_entries_kernel, plan_chunks_kernel
from canary_numba.engines.cuda.scatter import scatter_req_token_ids_kernel
from canary_numba.engines.cuda.verify import make_verify_kernel
from canary_numba.engines.cuda.write_kernel import make_write_kernel

HOPPER = (9, 0)

_I64 = types.Array(int64, 1, "C")
_I32 = types.Array(int32, 1, "C")
_U64 = types.Array(uint64, 1, "C")
_U8 = types.Array(uint8, 1, "C")
_TABLE = types.Array(int64, 2, "C")

WIDE = SourceShape(unit=8, pairs=True, row_stride=128, page_size=1, token_size=128, read_size=128)
PAGED = SourceShape(unit=8, pairs=True, row_stride=16 * 64, page_size=16, token_size=64, read_size=64)
NARROW = SourceShape(unit=8, pairs=True, row_stride=8, page_size=1, token_size=8, read_size=8)
PARTIAL = SourceShape(unit=8, pairs=True, row_stride=128, page_size=1, token_size=128, read_size=2)
WORDS = SourceShape(unit=8, pairs=False, row_stride=73, page_size=1, token_size=73, read_size=73)
BYTES = SourceShape(unit=1, pairs=False, row_stride=601, page_size=1, token_size=601, read_size=587)

SHAPES = {
    "none": (),
    "wide": (WIDE,),
    "paged": (PAGED,),
    "narrow": (NARROW,),
    "partial": (PARTIAL,),
    "words": (WORDS,),
    "bytes": (BYTES,),
    "four": (WIDE, PAGED, WORDS, PARTIAL),
}


def _source_types(shapes: tuple[SourceShape, ...]) -> list[Any]:
    return [_U8 if shape.unit == 1 else _U64 for shape in shapes] + [_U64] * (4 - len(shapes))


def _each(count: int, *kinds: Any) -> list[Any]:
    """Arguments that a batch of ``count`` contexts has one of each."""
    return [types.UniTuple(kind, count) for kind in kinds]


def _verify_types(shapes: tuple[SourceShape, ...], count: int) -> list[Any]:
    plan = [_I64, _I64, _I64, _I64, _I32, _I32]
    own = _each(count, *_source_types(shapes), _I64, int64)
    return [*_each(count, _U64), uint64, int64, *plan, *own, int64, _TABLE, _I32, *_each(count, _I64, _I64), _TABLE]


def _write_types(shapes: tuple[SourceShape, ...], count: int, flat: Any) -> list[Any]:
    own = _each(count, *_source_types(shapes))
    sink = [_I32, *_each(count, int64), int64, _TABLE, _I32, *_each(count, _I64, _I64), _TABLE]
    return [*_each(count, _U64), uint64, int64, _I64, _I64, _I32, *[flat] * 5, *own, *sink]


def _narrow(shapes: tuple[SourceShape, ...]) -> tuple[SourceShape, ...]:
    return tuple(shape._replace(widest=NARROW_TILE_WORDS) for shape in shapes)


def _kernels() -> dict[str, tuple[Any, list[Any]]]:
    kernels: dict[str, tuple[Any, list[Any]]] = {}
    for name, shapes in SHAPES.items():
        sources = _source_types(shapes)
        paired = name != "words"
        for count, label in ((1, name), (2, f"both-{name}")):
            verify, write = make_verify_kernel(shapes, paired, count), make_write_kernel(_narrow(shapes), paired, count)
            kernels[f"verify-{label}"] = (verify, _verify_types(shapes, count))
            kernels[f"write-{label}"] = (write, _write_types(shapes, count, _I64))
        if shapes:
            kernels[f"hash-{name}"] = (make_hash_kernel(shapes), [_I64, _U64, int64, *sources])
    kernels["write-int32"] = (make_write_kernel((WIDE,), True, 1), _write_types((WIDE,), 1, _I32))
    kernels["plan-chunks"] = (plan_chunks_kernel, [_I64, _I64, _I64, int64, int64, int64, _I64, _I64, _I64])
    entries = [_I64, _I64, _I64, _I32, int64, int64, int64, int64, _I64, int64]
    entries += [_I32, int64, int64, int64, _I64, int64, int64, int64, _I64, _I64]
    entries += [*[_U64] * 4, _I32, _I32, _I64, _I64, _I32]
    kernels["plan-entries"] = (make_plan_entries_kernel(True), entries)
    kernels["plan-entries-unpaired"] = (make_plan_entries_kernel(False), entries)
    kernels["scatter"] = (scatter_req_token_ids_kernel, [_I64, _I64, _I64, _I32, int64, int64, int64])
    return kernels


KERNELS = _kernels()


class _Hopper:
    compute_capability = HOPPER


@cache
def ptx_of(name: str) -> str:
    """The PTX of a kernel for compute capability 9.0."""
    kernel, signature = KERNELS[name]
    saved = numba.cuda.dispatcher.get_current_device
    # A kernel that calls any device function asks for the current device, which a machine without a GPU lacks.
    numba.cuda.dispatcher.get_current_device = lambda: _Hopper
    try:
        ptx, _ = cuda.compile_ptx(kernel.py_func, types.void(*signature), cc=HOPPER)
    finally:
        numba.cuda.dispatcher.get_current_device = saved
    return str(ptx)


def find_ptxas() -> str | None:
    """The path of ptxas: the one of the CUDA compiler wheels, or one on the PATH."""
    import nvidia

    for root in nvidia.__path__:
        for found in Path(root).glob("**/bin/ptxas"):
            return str(found)
    return shutil.which("ptxas")


@cache
def resources_of(name: str) -> dict[str, int]:
    """Registers, stack and spill bytes of a kernel, as ptxas reports them for sm_90."""
    ptxas = find_ptxas()
    assert ptxas is not None, "ptxas comes with the cu12 and cu13 extras"
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx_of(name))
        command = [ptxas, "-arch=sm_90", "-v", str(source), "-o", str(Path(folder) / "kernel.cubin")]
        log = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    figures = {"registers": r"Used (\d+) registers", "stack": r"(\d+) bytes stack frame"}
    figures |= {"spill_stores": r"(\d+) bytes spill stores", "spill_loads": r"(\d+) bytes spill loads"}
    figures |= {"shared": r"(\d+) bytes smem"}
    found = {key: re.search(pattern, log) for key, pattern in figures.items()}
    return {key: int(match.group(1)) if match else 0 for key, match in found.items()}
