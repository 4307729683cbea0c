"""Holding findings against a label: what counts as named, and what as a wrong claim."""

from __future__ import annotations

from typing import Any

import pytest

from canary_numba.faults import HistoryOptions, Label, simulate
from canary_numba.faults.coverage import COLUMNS, measure
from canary_numba.faults.score import MISSED, NAMED, SEEN, has_signature, judge, try_fault
from canary_numba.findings import Finding

LABEL = Label(
    fault="slot_owned_twice",
    severity="corrupt",
    requests=("a", "b"),
    positions={"a": (3,), "b": (7,)},
    slots=(12,),
)


def finding(fault: str = "slot_owned_twice", confidence: str = "likely", **more: Any) -> Finding:
    given = {"requests": LABEL.requests, "positions": LABEL.positions, "slots": LABEL.slots, **more}
    return Finding(fault=fault, severity="corrupt", confidence=confidence, summary="", **given)


@pytest.mark.parametrize(
    ("found", "result"),
    [
        ([finding()], NAMED),
        ([finding(slots=(99,))], NAMED),
        ([finding(positions={"a": (4,)})], NAMED),
        ([finding(positions={"a": (4,)}, slots=(99,))], SEEN),
        ([finding(requests=("a",))], SEEN),
        ([finding(fault="foreign_block")], SEEN),
        ([finding(requests=("a",), positions={"a": (3,)}), finding(requests=("b",), positions={"b": (7,)})], NAMED),
        ([], MISSED),
    ],
)
def test_a_name_counts_with_its_requests_and_its_place(found: list[Finding], result: str) -> None:
    assert judge(LABEL, found, 0).result == result


def test_violations_alone_are_seen() -> None:
    assert judge(LABEL, [], 1).result == SEEN


def test_what_lists_no_positions_is_held_to_its_slots() -> None:
    label = Label(fault="double_free", severity="latent", slots=(5, 6))
    right = finding("double_free", requests=(), positions={}, slots=(6, 5))
    wrong = finding("double_free", requests=(), positions={}, slots=(7,))
    assert judge(label, [right], 0).result == NAMED
    assert judge(label, [wrong], 0).result == SEEN


def test_what_lists_neither_is_held_to_its_requests() -> None:
    label = Label(fault="row_owned_twice", severity="corrupt", requests=("a", "b"))
    assert judge(label, [finding("row_owned_twice", positions={}, slots=())], 0).result == NAMED
    assert judge(label, [finding("row_owned_twice", requests=("a", "c"))], 0).result == SEEN


def test_only_what_is_called_certain_and_is_not_so_is_wrong() -> None:
    claims = [finding(), finding("double_free", "certain"), finding("foreign_block", "likely")]
    outcome = judge(LABEL, claims, 0)
    assert outcome.wrong == (claims[1],)
    assert outcome.others == tuple(claims[1:])
    also = Label(fault=LABEL.fault, severity="corrupt", requests=LABEL.requests, details={"also": ["double_free"]})
    assert judge(also, claims, 0).wrong == ()


def test_which_dumps_can_show_which_faults() -> None:
    blind = simulate(0, options=HistoryOptions(hash_mode="none", tokens=False))
    full = simulate(0, options=HistoryOptions())
    for fault in ("kv_bytes_changed", "tokens_differ_from_request"):
        assert not has_signature(fault, blind)
        assert has_signature(fault, full)
    assert has_signature("slot_owned_twice", blind)


def test_a_fault_without_a_place_has_no_outcome() -> None:
    assert try_fault(simulate(0, options=HistoryOptions()), "swa_slot_evicted_in_window", 0) is None


def test_coverage_fills_every_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("canary_numba.faults.coverage.FAULT_NAMES", ("double_free",))
    told: list[tuple[int, int]] = []
    found = measure(1, progress=lambda done, total: told.append((done, total)))
    assert set(found.cells["double_free"]) == set(COLUMNS)
    assert all(cell.tried == cell.named == 1 for cell in found.cells["double_free"].values())
    assert told[-1] == (len(COLUMNS), len(COLUMNS))
    assert found.failures == ()
