"""Violation rows decoded, and tied to the requests and positions they belong to."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import torch

from canary_numba.check import CheckResult, TagCheck
from canary_numba.check_plans import entries_per_request
from canary_numba.dump.model import Dump, Group
from canary_numba.layout import (
    SLOT_OUT_OF_RANGE,
    VIOLATION_FIELD_EXPECTED_AUX,
    VIOLATION_FIELD_EXPECTED_TOKEN,
    VIOLATION_FIELD_FAIL_REASON_BITS,
    VIOLATION_FIELD_KERNEL_KIND,
    VIOLATION_FIELD_POSITION,
    VIOLATION_FIELD_SLOT_IDX,
    VIOLATION_FIELD_STORED_CHAIN_HASH,
    VIOLATION_FIELD_STORED_TOKEN,
    CanaryLaunchTag,
    FailReason,
    reason_names,
)

_U64 = (1 << 64) - 1
_REAL_KV = int(FailReason.VERIFY_REAL_KV_HASH_MISMATCH)


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


def request_of_entries(dump: Dump, group: Group, entries: torch.Tensor) -> list[str]:
    """Name the request that each entry (int64 ``[n]``) of the group's requests' plan belongs to."""
    requests = dump.requests
    assert requests is not None
    ends = entries_per_request(requests, group.swa_window_size).cumsum(0)
    return [requests.rids[i] for i in torch.searchsorted(ends, entries, right=True).tolist()]


def _owners(dump: Dump, group: Group, plan_slots: torch.Tensor, slots: torch.Tensor) -> dict[int, tuple[str, ...]]:
    """All requests whose plan entries hold each of ``slots``, in plan order."""
    entries = torch.isin(plan_slots, slots).nonzero()[:, 0]
    owners: dict[int, list[str]] = defaultdict(list)
    for slot, rid in zip(plan_slots[entries].tolist(), request_of_entries(dump, group, entries), strict=True):
        if rid not in owners[slot]:
            owners[slot].append(rid)
    return {slot: tuple(rids) for slot, rids in owners.items()}


def _requests_plan(result: CheckResult, kind: str) -> TagCheck | None:
    for check in result.checks:
        if check.tag.pool_kind == kind and check.tag.stage != "SWEEP":
            return check
    return None


def decode_violations(dump: Dump, result: CheckResult) -> tuple[Violation, ...]:
    """Decode every row of a check, sorted by tag, slot and position: the same on every engine."""
    groups = {group.kind: group for group in dump.groups}
    violations: list[Violation] = []
    for check in result.checks:
        if check.rows.shape[0] == 0:
            continue
        group = groups[check.tag.pool_kind]
        places = check.plan.verify_expected_positions[check.entries].tolist()
        by_requests = _requests_plan(result, group.kind)
        owners: dict[int, tuple[str, ...]] = {}
        if by_requests is not None:
            count = int(by_requests.plan.verify_num_valid)
            owners = _owners(dump, group, by_requests.plan.verify_slot_indices[:count], check.rows[:, 1])
            # Not a slot: requests whose tables lead outside have nothing in common.
            owners.pop(SLOT_OUT_OF_RANGE, None)
        names: list[str | None]
        if check.tag.stage == "SWEEP":
            names = [owners.get(slot, (None,))[0] for slot in check.rows[:, 1].tolist()]
        else:
            names = list(request_of_entries(dump, group, check.entries))
        for row, place, name in zip(check.rows.tolist(), places, names, strict=True):
            bare = decode_row(row)
            violations.append(
                Violation(
                    tag=bare.tag,
                    slot=bare.slot,
                    position=bare.position,
                    stored_token=bare.stored_token,
                    expected_token=bare.expected_token,
                    stored_chain_hash=bare.stored_chain_hash,
                    expected_aux=bare.expected_aux,
                    fail_reason_bits=bare.fail_reason_bits,
                    request=name,
                    table_position=place,
                    requests=owners.get(bare.slot, () if name is None else (name,)),
                    sources=check.changed_sources.get(bare.slot) if bare.fail_reason_bits & _REAL_KV else None,
                )
            )
    return tuple(sorted(violations, key=lambda violation: violation.order))


def live_violations(dump: Dump) -> tuple[int, tuple[Violation, ...]]:
    """What the live ring of a dump holds: rows ever reported, and those kept, decoded."""
    log = dump.violation_log
    if log is None:
        return 0, ()
    kept = min(max(log.write_index, 0), log.ring.shape[0])
    return log.write_index, tuple(decode_row(row) for row in log.ring[:kept].tolist())
