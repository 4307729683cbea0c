"""The order of work: invariants, then records of the full pool, then of the window, then bytes, then the live ring."""

from __future__ import annotations

import numpy as np

from canary_numba.check import CheckResult
from canary_numba.diagnosis import foreign_records, own_records, stale_records, windows
from canary_numba.diagnosis.case import LISTED, Case, Desk, plural
from canary_numba.diagnosis.catalog import FAULTS, missing_key
from canary_numba.diagnosis.chains import Int64s
from canary_numba.diagnosis.constant_records import find_constant_ranges
from canary_numba.diagnosis.damaged_records import find_damaged_records
from canary_numba.diagnosis.extra_keys import find_shared_across_keys
from canary_numba.diagnosis.facts import Facts, gather
from canary_numba.diagnosis.free_lists import find_double_frees, find_live_on_free_list
from canary_numba.diagnosis.kv_bytes import find_changed_bytes
from canary_numba.diagnosis.live_log import find_stale_rows
from canary_numba.diagnosis.nonfinite import find_non_finite
from canary_numba.diagnosis.partial_sources import spread_sources
from canary_numba.diagnosis.pictures import draw
from canary_numba.diagnosis.ranking import rank
from canary_numba.diagnosis.runs import Run, break_runs, node_runs, request_runs
from canary_numba.diagnosis.table_entries import (
    find_duplicates,
    find_out_of_range,
    find_rows_owned_twice,
    find_unallocated,
)
from canary_numba.diagnosis.table_rest import find_stale_copies, find_stale_tails, find_unlawful_sharing
from canary_numba.diagnosis.view import Bools, DumpView, GroupView, H, P, T
from canary_numba.diagnosis.wiped_records import find_wiped_ranges
from canary_numba.dump.model import Dump
from canary_numba.findings import POSSIBLE, Diagnosis, NotTested

MAX_RUNS = 4096
"""Runs looked at one by one. A dump with more has one cause for most of them, which the first ones show."""

_NEARLY_ALL = 0.95

RULES = (
    windows.window_run,
    own_records.bit_flip,
    windows.full_missing,
    stale_records.moved_without_records,
    own_records.never_written,
    own_records.shifted,
    own_records.exchanged,
    foreign_records.another_prefix,
    own_records.tokens_differ,
    foreign_records.foreign,
    stale_records.overwritten_whole,
    foreign_records.chain_break,
)
"""Asked in this order; the first that knows a run names it."""


def diagnose(dump: Dump, result: CheckResult) -> Diagnosis:
    """Name the faults of a dump.

    Parameters
    ----------
    dump
        The dump.
    result
        What :func:`canary_numba.check.check_dump` found in it.

    Returns
    -------
    Diagnosis
        Findings in order of severity and cause, the faults that were looked for, and those that were not, with the key
        of the dump that would have allowed it.
    """
    dump = spread_sources(dump)
    desk = Desk(DumpView(dump, result))
    find_rows_owned_twice(desk)
    find_out_of_range(desk)
    find_unallocated(desk)
    find_duplicates(desk)
    find_live_on_free_list(desk)
    find_double_frees(desk)
    find_stale_tails(desk)
    find_unlawful_sharing(desk)
    find_stale_copies(desk)
    for kind in sorted(desk.view.groups):
        _records_and_bytes(desk, desk.view.groups[kind])
    find_shared_across_keys(desk)
    windows.find_evicted(desk)
    find_non_finite(desk)
    find_stale_rows(desk)
    missing = {name: missing_key(dump, fault) for name, fault in FAULTS.items()}
    findings = rank(desk)
    return Diagnosis(
        findings=findings,
        tested=tuple(name for name, key in missing.items() if key is None),
        not_tested=tuple(NotTested(fault=name, key=key) for name, key in missing.items() if key is not None),
        pictures=draw(desk, findings),
    )


def _records_and_bytes(desk: Desk, group: GroupView) -> None:
    if not group.failures.entries.shape[0] and not group.node_failures.entries.shape[0]:
        return
    _suspect_the_reader(desk, group)
    find_damaged_records(desk, group)
    if group.kind != "FULL":
        _shown_by_full(desk, group)
    find_wiped_ranges(desk, group)
    find_constant_ranges(desk, group)
    runs, rest, breaks = request_runs(desk, group, MAX_RUNS)
    _name(desk, group, runs)
    if rest.shape[0]:
        _leave(desk, group, rest)
    _name(desk, group, break_runs(desk, group, breaks[:MAX_RUNS]))
    _name(desk, group, node_runs(desk, group, MAX_RUNS))
    find_changed_bytes(desk, group)


def _shown_by_full(desk: Desk, group: GroupView) -> None:
    """Take cells as explained whose place, or the place before, the full pool has shown to be bad."""
    entries = group.failures.entries
    shown = desk.bad_in_full(group, entries)
    within = group.position[entries] > 0
    shown[within] |= _bad_before(desk, group, entries[within])
    desk.explain(group, entries[shown], [])
    full = desk.explained.get("FULL")
    if full is not None and desk.view.dump.radix is not None:
        # Both pools list the prefix cache's nodes in the same order.
        failing = group.node_failures.entries
        desk.explained[group.kind].nodes[failing] = full.witnesses(failing)


def _bad_before(desk: Desk, group: GroupView, cells: Int64s) -> Bools:
    """Tell for which cells the full pool has shown the position before to be bad."""
    full = desk.view.groups.get("FULL")
    if full is None:
        return np.zeros(cells.shape[0], dtype=np.bool_)
    request = group.request[cells]
    before = full.starts[request] + group.position[cells] - 1 - full.first[request]
    return np.asarray(desk.explained["FULL"].cells[before])


def _name(desk: Desk, group: GroupView, runs: list[Run]) -> None:
    """Name runs; of those that several requests share, the longest is named for all."""
    by_entry: dict[tuple[int, int], Case] = {}
    for facts in sorted(gather(desk, group, runs), key=_rank):
        run = facts.run
        entries = list(zip(run.slots.tolist(), run.positions.tolist(), strict=True))
        known = by_entry.get(entries[0])
        if known is not None and run.request >= 0 and all(by_entry.get(entry) is known for entry in entries):
            known.cells += [place for place in desk.places(group, run.cells) if place not in known.cells]
        else:
            known = _first(desk, facts)
            desk.add(known)
        by_entry.update(dict.fromkeys(entries, known))
        _account(desk, group, facts)


def _rank(facts: Facts) -> tuple[int, bool, int]:
    """Long runs first; of equal ones that of the request whose own records they are."""
    run = facts.run
    own = any(writer.request == run.request >= 0 for writer in facts.writers[0])
    return -run.count, not own, run.start


def _leave(desk: Desk, group: GroupView, cells: Int64s) -> None:
    """One case for all cells beyond the runs that were looked at one by one."""
    desk.add(
        Case(
            fault="unexplained",
            summary=f"{plural(cells.shape[0], 'more position')} fail in more runs than are looked at one by one.",
            pool=group.kind,
            confidence=POSSIBLE,
            cells=desk.places(group, cells[:LISTED]),
            partners=[desk.name(r) for r in np.unique(group.request[cells]).tolist()],
            evidence=[f"the first {MAX_RUNS:,} runs are named apart"],
        )
    )
    desk.explain(group, cells, [])


def _suspect_the_reader(desk: Desk, group: GroupView) -> None:
    """Where nearly every position of nearly every request fails in every buffer, doubt the dump before the cache."""
    failures = group.failures
    wrong = failures.entries[(failures.agreed & (H | P | T)) != 0]
    count = group.starts.shape[0] - 1
    if count < 3 or not wrong.shape[0] or wrong.shape[0] < _NEARLY_ALL * group.slot.shape[0]:
        return
    lengths = np.diff(group.starts)
    failing = np.bincount(group.request[wrong], minlength=count) >= _NEARLY_ALL * lengths
    if failing[lengths > 0].sum() < _NEARLY_ALL * (lengths > 0).sum():
        return
    desk.add(
        Case(
            fault="unexplained",
            summary=f"Nearly every record of every request fails in the {group.kind} pool: suspect the dump's writer, "
            "its reader or the record format before the cache.",
            pool=group.kind,
            confidence=POSSIBLE,
            partners=list(desk.view.names),
            evidence=[f"{wrong.shape[0]:,} of {plural(group.slot.shape[0], 'position')} fail in every buffer"],
        )
    )
    nodes = group.node_failures.entries
    slots = np.concatenate([group.slot[failures.entries], group.node_slot[nodes]])
    desk.explain(group, failures.entries, slots[(slots > 0) & (slots < group.num_slots)])


def _first(desk: Desk, facts: Facts) -> Case:
    for rule in RULES:
        case = rule(desk, facts)
        if case is not None:
            return case
    return own_records.unexplained(desk, facts)


def _account(desk: Desk, group: GroupView, facts: Facts) -> None:
    """What a named run explains: its cells, its echo, and its slots unless they are sound for somebody else."""
    run = facts.run
    pairs = zip(run.slots.tolist(), facts.others, strict=True)
    own = [slot for slot, others in pairs if not others and group.inside(slot)]
    if run.request < 0:
        desk.explain(group, [], own)
        return
    last = int(run.cells[-1])
    echo = [last + 1] if run.closed else []
    desk.explain(group, [*run.cells.tolist(), *echo], own)
