"""Every fault, injected into servers of all kinds, is named with its requests and its positions or slots.

A sample; scripts/score_diagnosis.py does the same for hundreds of injections of each fault.
"""

from __future__ import annotations

import itertools

import pytest

from canary_numba.fault_names import FAULT_NAMES
from canary_numba.faults import draw_options, simulate
from canary_numba.faults.score import MISSED, NAMED, Outcome, has_signature, try_fault

INJECTIONS = 4
HISTORIES = 60
FIRST_SEED = 500


def outcomes(fault: str) -> list[tuple[int, Outcome]]:
    """Injections of a fault into the first histories that have a place for it and can show it."""
    found = ((seed, _try(fault, seed)) for seed in range(FIRST_SEED, FIRST_SEED + HISTORIES))
    return list(itertools.islice(((seed, outcome) for seed, outcome in found if outcome is not None), INJECTIONS))


def _try(fault: str, seed: int) -> Outcome | None:
    if fault.startswith("swa") and not draw_options(seed).window:
        return None
    dump = simulate(seed)
    return try_fault(dump, fault, seed) if has_signature(fault, dump) else None


@pytest.mark.parametrize("fault", FAULT_NAMES)
def test_an_injected_fault_is_named(fault: str) -> None:
    tried = outcomes(fault)
    assert len(tried) == INJECTIONS
    named = sum(outcome.result == NAMED for _, outcome in tried)
    said = [(seed, outcome.result, outcome.label, [f.summary for f in outcome.others]) for seed, outcome in tried]
    # Some draws of some faults look exactly like another one: a sample of four may hold one of them.
    assert named >= INJECTIONS - 1, said
    assert all(outcome.result != MISSED for _, outcome in tried), said
    assert all(not outcome.wrong for _, outcome in tried), said


@pytest.mark.parametrize(
    ("fault", "seed"),
    [
        # A restored range, some of whose slots are neighbours by number.
        ("restore_mismatch", 910001),
        ("restore_mismatch", 910021),
        # One token in the only buffers there are, so that no twin tells.
        ("physical_range_overwritten", 700013),
        ("physical_range_overwritten", 700086),
        # A draft pool, whose slots hold the token of the next position.
        ("ranks_disagree", 700169),
    ],
)
def test_injections_that_were_once_misnamed(fault: str, seed: int) -> None:
    outcome = try_fault(simulate(seed), fault, seed)
    assert outcome is not None
    assert (outcome.result, outcome.wrong) == ("named", ())
