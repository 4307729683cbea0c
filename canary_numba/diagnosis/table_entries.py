"""Invariants of the table: entries, rows and lengths that are wrong whatever the records say.

- ``slot_out_of_range``: an entry < 0 or >= the buffer's slots, in the table, the mapping or the prefix cache.
- ``unallocated_slot_in_prefix``: entry 0 at a position below ``prefix_lens``, or more tokens cached than allocated.
- ``duplicate_slot_in_request``: one row holds a slot at two positions of its prefix.
- ``row_owned_twice``: two live requests have the same ``req_pool_indices``.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from canary_numba.diagnosis.case import LISTED, Case, Desk, plural, span
from canary_numba.diagnosis.chains import Int64s
from canary_numba.diagnosis.view import DumpView, GroupView, H, R
from canary_numba.findings import CERTAIN


def by_request(group: GroupView, cells: Int64s) -> Iterator[tuple[int, Int64s]]:
    """Cells (ascending) request by request."""
    requests = group.request[cells]
    for request in np.unique(requests).tolist():
        yield request, cells[requests == request]


def find_out_of_range(desk: Desk) -> None:
    """Entries that lead outside the buffers."""
    outside_full: set[tuple[int, int]] = set()
    for group in desk.view.groups.values():
        slots = group.slot
        bad = np.flatnonzero((slots < 0) | (slots >= group.num_slots))
        bad = np.array(
            [c for c, place in zip(bad.tolist(), desk.places(group, bad), strict=True) if place not in outside_full],
            dtype=np.int64,
        )
        for request, cells in by_request(group, bad):
            desk.add(_out_of_range(desk, group, request, cells))
        if group.group.full_to_swa_index_mapping is None:
            outside_full.update(desk.places(group, bad))
        desk.explain(group, [*bad.tolist(), *_echoes(group, bad)], [])
        _cached_out_of_range(desk, group)


def _echoes(group: GroupView, cells: Int64s) -> list[int]:
    """Cells just after ``cells`` that show a chain break and nothing else: a negative predecessor reads as none."""
    failures = group.failures
    alone = set(failures.entries[(failures.seen & ~R) == H].tolist())
    last = set((group.starts[1:] - 1).tolist())
    return [cell + 1 for cell in cells.tolist() if cell not in last and cell + 1 in alone]


def _out_of_range(desk: Desk, group: GroupView, request: int, cells: Int64s) -> Case:
    entries = group.full[cells] if group.group.full_to_swa_index_mapping is not None else _raw(desk.view, group, cells)
    positions = group.position[cells]
    mapped = group.group.full_to_swa_index_mapping is not None
    where = f"the {group.kind} mapping of its slots" if mapped else "its table row"
    return Case(
        fault="slot_out_of_range",
        summary=f"{desk.name(request)} reads outside the {group.kind} pool at position {span(positions)}: "
        f"{where} holds no slot of the pool's {group.num_slots:,}.",
        pool="FULL",
        confidence=CERTAIN,
        cells=desk.places(group, cells),
        slots=np.unique(entries).tolist(),
        evidence=[f"{plural(cells.shape[0], 'entry')} outside 0..{group.num_slots - 1:,}: {span(entries)}"],
        details={"where": "mapping" if mapped else "table"},
    )


def _raw(view: DumpView, group: GroupView, cells: Int64s) -> Int64s:
    """What the table holds where a plan could only say "out of range"; such a place itself where it is no entry."""
    requests = view.dump.requests
    assert requests is not None
    table = requests.req_to_token.numpy()
    rows, positions = requests.req_pool_indices.numpy()[group.request[cells]], group.position[cells]
    inside = (rows >= 0) & (rows < table.shape[0]) & (positions < table.shape[1])
    raw = group.slot[cells].copy()
    raw[inside] = table[rows[inside], positions[inside]]
    return raw


def _cached_out_of_range(desk: Desk, group: GroupView) -> None:
    bad = (group.node_slot < 0) | (group.node_slot >= group.num_slots)
    if not bad.any():
        return
    assert desk.view.dump.radix is not None
    entries = desk.view.dump.radix.slot_indices.numpy()[bad]
    desk.add(
        Case(
            fault="slot_out_of_range",
            summary=f"The prefix cache holds {plural(int(bad.sum()), 'entry')} outside the {group.kind} pool.",
            confidence=CERTAIN,
            slots=np.unique(entries).tolist(),
            evidence=[f"entries {span(entries)}, the pool has slots 0..{group.num_slots - 1:,}"],
            details={"where": "prefix cache", "cached_only": True},
        )
    )


def find_unallocated(desk: Desk) -> None:
    """Zero entries inside a prefix, and prefixes longer than what was allocated."""
    group = desk.view.groups.get("FULL")
    requests = desk.view.dump.requests
    if group is None or requests is None:
        return
    for request, cells in by_request(group, np.flatnonzero(group.slot == 0)):
        positions = group.position[cells]
        desk.add(
            Case(
                fault="unallocated_slot_in_prefix",
                summary=f"{desk.name(request)} has no slot at position {span(positions)}, inside its cached prefix: "
                "the table holds 0 there, and attention reads the padding slot.",
                confidence=CERTAIN,
                cells=desk.places(group, cells),
                slots=[0],
                evidence=[f"prefix length {int(requests.prefix_lens[request]):,}, {plural(cells.shape[0], 'entry')} 0"],
            )
        )
        desk.explain(group, cells, [])
    if requests.allocated_lens is None:
        return
    short = np.flatnonzero(requests.prefix_lens.numpy() > requests.allocated_lens.numpy())
    for request in short.tolist():
        cached, allocated = int(requests.prefix_lens[request]), int(requests.allocated_lens[request])
        beyond = [p for p in range(allocated, cached) if group.cell_at(request, p) is not None]
        desk.add(
            Case(
                fault="unallocated_slot_in_prefix",
                summary=f"{desk.name(request)} counts {cached:,} tokens as cached but has slots for {allocated:,}.",
                confidence=CERTAIN,
                cells=[(request, p) for p in beyond[:LISTED]],
                evidence=[f"prefix_lens {cached:,} > allocated_lens {allocated:,}"],
            )
        )


def find_duplicates(desk: Desk) -> None:
    """Slots that one request holds at two positions."""
    group = desk.view.groups.get("FULL")
    if group is None or group.slot.shape[0] == 0:
        return
    good = np.flatnonzero((group.slot > 0) & (group.slot < group.num_slots))
    key = group.request[good] * group.num_slots + group.slot[good]
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    equal = np.flatnonzero(ordered[1:] == ordered[:-1])
    repeated = np.unique(good[order[np.concatenate([equal, equal + 1])]]) if equal.shape[0] else equal
    for request, cells in by_request(group, repeated):
        positions, slots = group.position[cells], np.unique(group.slot[cells]).tolist()
        agreed = dict(zip(group.failures.entries.tolist(), group.failures.agreed.tolist(), strict=True))
        sharers = group.cells_on(slots)
        sharers = sharers[np.isin(group.position[sharers], positions)]
        fits = [c for c in cells.tolist() if not agreed.get(c, 0) & ~1]
        desk.add(
            Case(
                fault="duplicate_slot_in_request",
                summary=f"{desk.name(request)} holds slot {span(slots)} at positions {span(positions)}: "
                "one of them reads the other's token.",
                confidence=CERTAIN,
                cells=desk.places(group, np.union1d(cells, sharers)),
                slots=slots,
                evidence=[f"the record fits position {span(group.position[np.array(fits)])}"] if fits else [],
            )
        )
        failing = [c for c in np.union1d(cells, sharers).tolist() if c in agreed]
        desk.explain(group, failing + _echoes(group, np.array(failing, dtype=np.int64)), [])


def find_rows_owned_twice(desk: Desk) -> None:
    """Live requests that share one row of the table."""
    requests = desk.view.dump.requests
    if requests is None:
        return
    rows = requests.req_pool_indices.numpy()
    unique, counts = np.unique(rows[rows != 0], return_counts=True)
    for row in unique[counts > 1].tolist():
        owners = np.flatnonzero(rows == row).tolist()
        names = [desk.name(r) for r in owners]
        number = row
        if requests.row_ids is not None and 0 <= row < requests.row_ids.shape[0]:
            number = int(requests.row_ids[row])
        desk.add(
            Case(
                fault="row_owned_twice",
                summary=f"{' and '.join(names)} share row {number} of the table: each overwrites the other's slots.",
                confidence=CERTAIN,
                partners=names,
                evidence=[f"req_pool_indices is {row} for {plural(len(owners), 'live request')}"],
                details={"row": number, "members": owners},
            )
        )
        group = desk.view.groups.get("FULL")
        if group is not None:
            shared = np.isin(group.request[group.failures.entries], owners)
            desk.explain(group, group.failures.entries[shared], [])
