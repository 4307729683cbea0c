"""The numbers of the wire format, spelled out once more."""

from __future__ import annotations

import subprocess
import sys

from canary_numba import layout
from canary_numba.layout import CanaryLaunchTag, FailReason, RealKvHashMode


def test_constants() -> None:
    assert layout.CANARY_CHAIN_ANCHOR == 0xC0FFEE1234567890
    assert layout.REQ_POOL_IDX_PADDING == 0
    assert layout.TOKEN_TO_KV_SLOT_PADDING == 0
    assert layout.SLOT_OUT_OF_RANGE == 2**63 - 1
    assert layout.CANARY_SLOT_BYTES == 32
    assert layout.VIOLATION_FIELDS == 8
    assert layout.MAX_REAL_KV_SOURCES == 4
    assert layout.PARTIAL_READ_BYTES == 16


def test_slot_fields() -> None:
    fields = ("TOKEN", "POSITION", "PREV_HASH", "REAL_KV_HASH")
    assert [getattr(layout, f"CANARY_FIELD_{name}") for name in fields] == [0, 1, 2, 3]


def test_violation_fields() -> None:
    fields = (
        "KERNEL_KIND",
        "SLOT_IDX",
        "POSITION",
        "STORED_TOKEN",
        "EXPECTED_TOKEN",
        "STORED_CHAIN_HASH",
        "EXPECTED_AUX",
        "FAIL_REASON_BITS",
    )
    assert [getattr(layout, f"VIOLATION_FIELD_{name}") for name in fields] == list(range(8))


def test_fail_reasons() -> None:
    assert {reason.name: int(reason) for reason in FailReason} == {
        "VERIFY_CHAIN_HASH_MISMATCH": 1,
        "VERIFY_POSITION_MISMATCH": 2,
        "VERIFY_REAL_KV_HASH_MISMATCH": 4,
        "WRITE_TOKEN_MISMATCH": 8,
        "WRITE_POSITION_MISMATCH": 16,
        "VERIFY_TOKEN_MISMATCH": 32,
        "VERIFY_SLOT_OUT_OF_RANGE": 64,
        "VERIFY_PREV_SLOT_OUT_OF_RANGE": 128,
    }
    assert layout.NUM_FAIL_REASONS == 8


def test_reason_names_go_from_the_lowest_bit_up() -> None:
    assert layout.reason_names(0) == []
    assert layout.reason_names(1 | 2 | 32) == ["verify_chain_hash", "verify_position", "verify_token"]
    assert layout.reason_names(255) == list(layout.REASON_NAMES.values())
    assert set(layout.REASON_NAMES) == set(FailReason)


def test_launch_tags() -> None:
    names = [
        f"{stage}_{half}_{kind}" for kind in ("FULL", "SWA") for stage in ("HEAD", "TAIL", "SWEEP") for half in "KV"
    ]
    assert [tag.name for tag in CanaryLaunchTag] == names
    assert [int(tag) for tag in CanaryLaunchTag] == list(range(12))
    assert layout.NUM_LAUNCH_TAGS == 12


def test_a_tag_knows_its_parts() -> None:
    for tag in CanaryLaunchTag:
        assert CanaryLaunchTag.of(tag.stage, tag.half, tag.pool_kind) is tag


def test_hash_modes() -> None:
    assert {mode.name: int(mode) for mode in RealKvHashMode} == {"NONE": 0, "PARTIAL": 1, "ALL": 2}


def test_layout_loads_neither_torch_nor_numba() -> None:
    code = "import sys, canary_numba.layout; sys.exit(any(m in sys.modules for m in ('torch', 'numba', 'numpy')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
