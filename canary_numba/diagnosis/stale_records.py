"""K/V bytes that moved without their records.

- ``canary_stale``: chain, position and token differ over a whole run and the bytes do as well, while the bytes hash to
  what another slot's record says: the records, not the bytes, are old.
"""

from __future__ import annotations

import numpy as np

from canary_numba.diagnosis.case import Case, Desk, span
from canary_numba.diagnosis.case_of_run import build, where
from canary_numba.diagnosis.facts import Facts
from canary_numba.diagnosis.view import R
from canary_numba.findings import LIKELY, POSSIBLE


def moved_without_records(desk: Desk, facts: Facts) -> Case | None:
    """A run whose records and bytes both fail, and whose bytes belong to other records."""
    run, lookup = facts.run, desk.kv[facts.group.kind]
    if not run.all(R) or not lookup.known:
        return None
    slots = np.unique(run.slots)
    origin: dict[int, int] = {}
    for half in lookup.halves:
        for slot, others in lookup.found_elsewhere(half, slots).items():
            origin.setdefault(slot, others[0])
    if len(origin) < slots.shape[0]:
        return None
    belongs = [origin[slot] for slot in run.slots.tolist()]
    right = [bool(copies) and slot in copies for slot, copies in zip(belongs, facts.copies, strict=True)]
    return build(
        desk,
        facts,
        "canary_stale",
        f"{where(desk, facts)}: K/V bytes were moved into slot {span(run.slots)} without their records, which are old.",
        confidence=LIKELY if all(right) or run.count > 1 else POSSIBLE,
        evidence=[
            f"the bytes are those that the records of slot {span(belongs)} describe",
            *(["these records are exactly what belongs at these positions"] if all(right) else []),
        ],
        details={"copied_from": belongs[0] if len(belongs) == 1 else belongs[:64]},
    )


def overwritten_whole(desk: Desk, facts: Facts) -> Case | None:
    """A record that is no record of anybody over bytes that it does not describe."""
    run = facts.run
    if not run.any(R) or facts.zero:
        return None
    return build(
        desk,
        facts,
        "unexplained",
        f"{where(desk, facts)}: neither the records nor the K/V bytes of slot {span(run.slots)} belong there.",
        confidence=POSSIBLE,
        evidence=["no record in the dump describes these bytes"],
        rivals=["slot_owned_twice", "physical_range_overwritten", "canary_stale"],
    )
