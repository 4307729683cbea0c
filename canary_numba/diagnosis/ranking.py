"""From cases to findings: merge what is one fault, drop what another explains, order by severity and cause."""

from __future__ import annotations

from collections.abc import Iterable

from canary_numba.diagnosis.case import Case, Desk, plural
from canary_numba.diagnosis.catalog import FAULTS
from canary_numba.findings import CERTAIN, CORRUPT, LATENT, LIKELY, NOTE, POSSIBLE, Finding

_SEVERITIES = {CORRUPT: 0, LATENT: 1, NOTE: 2}
_CONFIDENCES = {CERTAIN: 0, LIKELY: 1, POSSIBLE: 2}
_BY_REQUEST = {"slots_exchanged", "swa_slot_evicted_in_window"}
"""Faults of which a request has one, at however many runs."""

_AFTER_SLOTS = {"stale_row_tail", "unlawful_sharing"}
_WRONG_ROWS = {"row_recycled", "stale_table_row", "wrong_prefix_hit", "table_points_elsewhere"}
_AFTER_ROWS = {
    "index_copy_stale",
    "stale_row_tail",
    "unallocated_slot_in_prefix",
    "unlawful_sharing",
    "wrong_prefix_hit",
    "duplicate_slot_in_request",
    "stale_table_row",
}
"""What two requests in one row show besides."""


def rank(desk: Desk) -> tuple[Finding, ...]:
    """The findings of a desk, in order."""
    cases = _explained_away(_merge(desk, desk.cases))
    findings = [_finding(desk, case) for case in cases]
    return tuple(sorted(findings, key=_order))


def _order(finding: Finding) -> tuple[object, ...]:
    place = min((min(p) for p in finding.positions.values() if p), default=-1)
    slots = finding.slots[:1] or (-1,)
    confidence = _CONFIDENCES[finding.confidence]
    return (_SEVERITIES[finding.severity], FAULTS[finding.fault].order, confidence, finding.requests, place, slots)


def _merge(desk: Desk, cases: list[Case]) -> list[Case]:
    """Join cases of one fault that share slots, touch in positions, or that the fault's nature makes one."""
    kept: list[Case] = []
    by_key: dict[tuple[object, ...], Case] = {}
    for case in sorted(cases, key=lambda c: (c.fault, c.pool, c.cells[:1], c.slots[:1])):
        partner = next((by_key[key] for key in _keys(case) if key in by_key), None)
        if partner is None:
            kept.append(case)
            partner = case
        else:
            _join(partner, case)
        for key in _keys(case):
            by_key.setdefault(key, partner)
    return kept


def _keys(case: Case) -> Iterable[tuple[object, ...]]:
    """Things that two cases of one fault must have in common to be one."""
    if case.owner is not None and case.cells:
        # Two entries that were crossed name each other.
        yield (case.fault, "pair", frozenset((case.cells[0], case.owner)))
    kind = (case.fault, case.pool, str(case.details.get("half")), str(case.details.get("owner")))
    if case.fault in _BY_REQUEST and case.cells:
        for request in dict.fromkeys(request for request, _ in case.cells):
            yield (case.fault, "request", request)
        for slot in case.slots:
            yield (case.fault, "slot", slot)
        return
    if case.fault == "canary_field_bit_flip":
        yield (*kind, "slot", tuple(case.slots))
        return
    for slot in case.slots:
        yield (*kind, "slot", slot)
    for request, position in case.cells:
        yield (*kind, "cell", request, position)
        yield (*kind, "cell", request, position + 1)


def _join(into: Case, case: Case) -> None:
    cells, slots = set(into.cells), set(into.slots)
    into.cells += [cell for cell in case.cells if cell not in cells]
    into.slots += [slot for slot in case.slots if slot not in slots]
    into.partners += [name for name in case.partners if name not in into.partners]
    into.evidence += [line for line in case.evidence if line not in into.evidence][: max(0, 12 - len(into.evidence))]
    into.rivals += [name for name in case.rivals if name not in into.rivals]
    if _CONFIDENCES[case.confidence] > _CONFIDENCES[into.confidence]:
        into.confidence = case.confidence
    if case.details.get("cached_only") is False:
        into.details["cached_only"] = False


def _explained_away(cases: list[Case]) -> list[Case]:
    """Drop what follows from another case: tails of slots it names, and what a shared or foreign row brings along."""
    corrupt = {
        slot for case in cases if _severity(case) == CORRUPT and case.fault != "unexplained" for slot in case.slots
    }
    sharers = {r for case in cases if case.fault == "row_owned_twice" for r in case.details["members"]}
    misled = {case.cells[0][0] for case in cases if case.fault in _WRONG_ROWS and case.cells and not _by_keys(case)}

    pointed = {slot for case in cases if case.fault in _WRONG_ROWS for slot in case.slots}

    def follows(case: Case) -> bool:
        requests = {r for r, _ in case.cells}
        if case.fault in _AFTER_SLOTS and set(case.slots) <= corrupt:
            return True
        if case.fault == "live_slot_on_free_list" and set(case.slots) <= pointed:
            return True
        if case.fault in _AFTER_ROWS and requests & sharers:
            return True
        return _by_keys(case) and bool(requests & misled)

    return [case for case in cases if not follows(case)]


def _by_keys(case: Case) -> bool:
    """Tell whether a case rests on extra keys alone."""
    return bool(case.details.get("extra_keys"))


def _severity(case: Case) -> str:
    return case.severity or FAULTS[case.fault].severity


def _finding(desk: Desk, case: Case) -> Finding:
    fault = FAULTS[case.fault]
    positions: dict[str, list[int]] = {}
    for request, position in case.cells:
        positions.setdefault(desk.name(request), []).append(position)
    requests = dict.fromkeys([*positions, *case.partners])
    evidence = list(case.evidence)
    if case.rivals:
        evidence.append("it would also fit: " + ", ".join(dict.fromkeys(case.rivals)))
    cached = _cached(desk, case)
    details = dict(case.details)
    steps = [*case.next_steps, *fault.next_steps]
    if cached and _severity(case) == CORRUPT:
        evidence.append(f"{plural(cached, 'slot')} of it {'is' if cached == 1 else 'are'} in the prefix cache")
        details["cached_slots"] = cached
        if not any("lush" in step for step in steps):
            steps.append("Flush the prefix cache: later requests will hit the damaged slots until then.")
    return Finding(
        fault=case.fault,
        severity=_severity(case),
        confidence=case.confidence,
        summary=case.summary,
        requests=tuple(requests),
        positions={name: tuple(places) for name, places in positions.items()},
        slots=tuple(case.slots),
        evidence=tuple(evidence),
        next_steps=tuple(steps),
        details=details,
        pool=case.pool,
    )


def _cached(desk: Desk, case: Case) -> int:
    group = desk.view.groups.get(case.pool)
    return len(desk.is_cached(group, case.slots)) if group is not None else 0
