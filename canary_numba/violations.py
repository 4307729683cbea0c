"""Violation rows, decoded; :mod:`canary_numba.violation_list` ties those of a check to requests and positions."""

from __future__ import annotations

from dataclasses import dataclass

from canary_numba.dump.model import Dump
from canary_numba.layout import (
    VIOLATION_FIELD_EXPECTED_AUX,
    VIOLATION_FIELD_EXPECTED_TOKEN,
    VIOLATION_FIELD_FAIL_REASON_BITS,
    VIOLATION_FIELD_KERNEL_KIND,
    VIOLATION_FIELD_POSITION,
    VIOLATION_FIELD_SLOT_IDX,
    VIOLATION_FIELD_STORED_CHAIN_HASH,
    VIOLATION_FIELD_STORED_TOKEN,
    CanaryLaunchTag,
    reason_names,
)

_U64 = (1 << 64) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One violation row.

    ``position`` and the ``stored_`` fields are what the record holds, hashes as unsigned 64-bit ints. ``request`` is
    the request whose cached token failed, at ``table_position`` of it; for the prefix cache the first live request that
    owns the slot. ``requests`` are all live requests whose table holds the slot in its cached part. ``sources`` names
    those whose K/V bytes changed; None where the K/V hash did not fail, or where nothing tells.
    """

    tag: str
    slot: int
    position: int
    stored_token: int
    expected_token: int
    stored_chain_hash: int
    expected_aux: int
    fail_reason_bits: int
    request: str | None = None
    table_position: int | None = None
    requests: tuple[str, ...] = ()
    sources: tuple[str, ...] | None = None

    @property
    def reasons(self) -> list[str]:
        """Names of the fail reasons, lowest bit first."""
        return reason_names(self.fail_reason_bits)

    @property
    def order(self) -> tuple[object, ...]:
        """Sort key of reports: tag, slot, position, then everything else."""
        tag = CanaryLaunchTag[self.tag].value if self.tag in CanaryLaunchTag.__members__ else -1
        place = -1 if self.table_position is None else self.table_position
        return (tag, self.slot, self.position, place, self.request or "", self.fail_reason_bits, self.expected_aux)


def decode_row(row: list[int]) -> Violation:
    """Decode a ring row (8 int64) without tying it to a request; an unknown launch tag keeps its number."""
    kind = row[VIOLATION_FIELD_KERNEL_KIND]
    known = kind in CanaryLaunchTag._value2member_map_
    return Violation(
        tag=CanaryLaunchTag(kind).name if known else f"UNKNOWN_{kind}",
        slot=row[VIOLATION_FIELD_SLOT_IDX],
        position=row[VIOLATION_FIELD_POSITION],
        stored_token=row[VIOLATION_FIELD_STORED_TOKEN],
        expected_token=row[VIOLATION_FIELD_EXPECTED_TOKEN],
        stored_chain_hash=row[VIOLATION_FIELD_STORED_CHAIN_HASH] & _U64,
        expected_aux=row[VIOLATION_FIELD_EXPECTED_AUX] & _U64,
        fail_reason_bits=row[VIOLATION_FIELD_FAIL_REASON_BITS],
    )


def live_violations(dump: Dump) -> tuple[int, tuple[Violation, ...]]:
    """What the live ring of a dump holds: rows ever reported, and those kept, decoded."""
    log = dump.violation_log
    if log is None:
        return 0, ()
    kept = min(max(log.write_index, 0), log.ring.shape[0])
    return log.write_index, tuple(decode_row(row) for row in log.ring[:kept].tolist())
