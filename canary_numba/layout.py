"""Every constant of the canary format: record fields, ring fields, tags, fail reasons, hash constants.

This module imports nothing but the standard library, so the command line can use it without torch or numba.
The values are the wire format of SGLang 0.5.23's KV-canary; the names are its names, so that a log line, a dump and
this code speak of the same things. Fail reasons 64 and 128 are this project's own additions.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag
from typing import Final

CANARY_CHAIN_ANCHOR: Final[int] = 0xC0FFEE1234567890
"""Seed of every chain: the first record of a request stores ``splitmix64(CANARY_CHAIN_ANCHOR)`` as its PREV_HASH."""

SPLITMIX64_MULTIPLIER_1: Final[int] = 0xBF58476D1CE4E5B9
SPLITMIX64_MULTIPLIER_2: Final[int] = 0x94D049BB133111EB
SPLITMIX64_SHIFTS: Final[tuple[int, int, int]] = (30, 27, 31)

REQ_POOL_IDX_PADDING: Final[int] = 0
"""Row 0 of ``req_to_token`` pads batches: it owns nothing."""
TOKEN_TO_KV_SLOT_PADDING: Final[int] = 0
"""Slot 0 of the pool takes the writes of padded tokens: verify skips it."""

SLOT_OUT_OF_RANGE: Final[int] = (1 << 63) - 1
"""The slot a plan holds where table, mapping or row index led outside: no buffer is that large."""

CANARY_FIELDS_PER_SLOT: Final[int] = 4
CANARY_FIELD_TOKEN: Final[int] = 0
CANARY_FIELD_POSITION: Final[int] = 1
CANARY_FIELD_PREV_HASH: Final[int] = 2
CANARY_FIELD_REAL_KV_HASH: Final[int] = 3
CANARY_SLOT_BYTES: Final[int] = CANARY_FIELDS_PER_SLOT * 8

VIOLATION_FIELDS: Final[int] = 8
VIOLATION_FIELD_KERNEL_KIND: Final[int] = 0
VIOLATION_FIELD_SLOT_IDX: Final[int] = 1
VIOLATION_FIELD_POSITION: Final[int] = 2
VIOLATION_FIELD_STORED_TOKEN: Final[int] = 3
VIOLATION_FIELD_EXPECTED_TOKEN: Final[int] = 4
VIOLATION_FIELD_STORED_CHAIN_HASH: Final[int] = 5
VIOLATION_FIELD_EXPECTED_AUX: Final[int] = 6
VIOLATION_FIELD_FAIL_REASON_BITS: Final[int] = 7

MAX_REAL_KV_SOURCES: Final[int] = 4
"""Real-KV sources one launch takes; a checker of more sources chains several launches."""
PARTIAL_READ_BYTES: Final[int] = 16
"""Leading bytes of a slot that mode PARTIAL fingerprints."""


class FailReason(IntFlag):
    """Why a violation row was written; several bits may be set in one row."""

    VERIFY_CHAIN_HASH_MISMATCH = 1
    VERIFY_POSITION_MISMATCH = 2
    VERIFY_REAL_KV_HASH_MISMATCH = 4
    WRITE_TOKEN_MISMATCH = 8
    WRITE_POSITION_MISMATCH = 16
    VERIFY_TOKEN_MISMATCH = 32
    VERIFY_SLOT_OUT_OF_RANGE = 64
    VERIFY_PREV_SLOT_OUT_OF_RANGE = 128


NUM_FAIL_REASONS: Final[int] = len(FailReason)

REASON_NAMES: Final[dict[FailReason, str]] = {
    FailReason.VERIFY_CHAIN_HASH_MISMATCH: "verify_chain_hash",
    FailReason.VERIFY_POSITION_MISMATCH: "verify_position",
    FailReason.VERIFY_REAL_KV_HASH_MISMATCH: "verify_real_kv_hash",
    FailReason.WRITE_TOKEN_MISMATCH: "write_token",
    FailReason.WRITE_POSITION_MISMATCH: "write_position",
    FailReason.VERIFY_TOKEN_MISMATCH: "verify_token",
    FailReason.VERIFY_SLOT_OUT_OF_RANGE: "verify_slot_out_of_range",
    FailReason.VERIFY_PREV_SLOT_OUT_OF_RANGE: "verify_prev_slot_out_of_range",
}
"""The names that reports and JSON use, in order of bit."""


def reason_names(bits: int) -> list[str]:
    """Name the fail reasons set in ``bits`` (a row's FAIL_REASON_BITS), lowest bit first."""
    return [name for reason, name in REASON_NAMES.items() if bits & reason]


class CanaryLaunchTag(IntEnum):
    """Which launch a violation row comes from: stage (HEAD, TAIL, SWEEP), half (K, V) and pool kind (FULL, SWA)."""

    HEAD_K_FULL = 0
    HEAD_V_FULL = 1
    TAIL_K_FULL = 2
    TAIL_V_FULL = 3
    SWEEP_K_FULL = 4
    SWEEP_V_FULL = 5
    HEAD_K_SWA = 6
    HEAD_V_SWA = 7
    TAIL_K_SWA = 8
    TAIL_V_SWA = 9
    SWEEP_K_SWA = 10
    SWEEP_V_SWA = 11

    @classmethod
    def of(cls, stage: str, half: str, kind: str) -> CanaryLaunchTag:
        """Return the tag of ``stage`` ("HEAD"...), ``half`` ("K", "V") and pool ``kind`` ("FULL", "SWA")."""
        return cls[f"{stage}_{half}_{kind}"]

    @property
    def stage(self) -> str:
        """HEAD (before the forward pass), TAIL (after it) or SWEEP (the prefix cache)."""
        return self.name.split("_")[0]

    @property
    def half(self) -> str:
        """K or V."""
        return self.name.split("_")[1]

    @property
    def pool_kind(self) -> str:
        """FULL (every token keeps its slot) or SWA (sliding window)."""
        return self.name.split("_")[2]


NUM_LAUNCH_TAGS: Final[int] = len(CanaryLaunchTag)


class RealKvHashMode(IntEnum):
    """How much of a slot's K/V bytes its record fingerprints: nothing, the first 16 bytes, or all of them."""

    NONE = 0
    PARTIAL = 1
    ALL = 2
