"""The ring that the live process left.

- ``stale_violation_log`` (note): it holds verify rows of slots that verify now: freed or repaired since.
  Rows of the write kernel (input and chain-position asserts) cannot be checked again and are left alone.
"""

from __future__ import annotations

import numpy as np

from canary_numba.diagnosis.case import Case, Desk, plural, span
from canary_numba.findings import CERTAIN, NOTE
from canary_numba.layout import CanaryLaunchTag, FailReason
from canary_numba.violations import live_violations

_WRITE = int(FailReason.WRITE_TOKEN_MISMATCH | FailReason.WRITE_POSITION_MISMATCH)


def find_stale_rows(desk: Desk) -> None:
    """One note over all rows that no longer reproduce."""
    _, rows = live_violations(desk.view.dump)
    failing = {kind: _failing(desk, kind) for kind in desk.view.groups}
    stale = []
    for row in rows:
        if row.tag not in CanaryLaunchTag.__members__ or row.fail_reason_bits & ~_WRITE == 0:
            continue
        kind = CanaryLaunchTag[row.tag].pool_kind
        if kind in failing and row.slot not in failing[kind]:
            stale.append(row)
    if not stale:
        return
    slots = sorted({row.slot for row in stale})
    tags = sorted({row.tag for row in stale})
    desk.add(
        Case(
            fault="stale_violation_log",
            summary=f"{plural(len(stale), 'row')} of the live ring no longer reproduce: slot {span(slots)} verifies.",
            confidence=CERTAIN,
            severity=NOTE,
            slots=slots,
            evidence=[
                f"reported by {', '.join(tags)}",
                f"{len(rows) - len(stale)} of the {len(rows)} rows kept still hold",
            ],
            details={"rows": len(stale)},
        )
    )


def _failing(desk: Desk, kind: str) -> set[int]:
    group = desk.view.groups[kind]
    slots = group.slot[group.failures.entries].tolist() + group.node_slot[group.node_failures.entries].tolist()
    return set(slots) | set(np.flatnonzero(desk.explained[kind].slots).tolist())
