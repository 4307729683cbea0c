"""Records that are no records any more, in every buffer, over a piece of the pool.

- ``physical_range_overwritten``: all-zero or impossible records in slots that are neighbours by number among those in
  use, and that no single request owns in this order.
"""

from __future__ import annotations

import numpy as np

from canary_numba.diagnosis.case import LISTED, Case, Desk, plural
from canary_numba.diagnosis.chains import MAX_TOKEN, Int64s
from canary_numba.diagnosis.clusters import FEWEST, neighbours_in_use
from canary_numba.diagnosis.view import GroupView, H, P, T
from canary_numba.findings import LIKELY, POSSIBLE


def find_wiped_ranges(desk: Desk, group: GroupView) -> None:
    """One case for each range of neighbours, if several requests are hit."""
    failures = group.failures
    keep = ((failures.agreed & (H | P | T)) != 0) & ~desk.explained[group.kind].cells[failures.entries]
    cells = failures.entries[keep]
    nodes = group.node_failures.entries[(group.node_failures.agreed & (H | P)) != 0]
    nodes = nodes[~desk.explained[group.kind].witnesses(nodes)]
    slots = np.concatenate([group.slot[cells], group.node_slot[nodes]])
    inside = (slots > 0) & (slots < group.num_slots)
    wiped = np.unique(slots[inside][_impossible(group.records[slots[inside]])])
    for piece in neighbours_in_use(group, wiped):
        owners = group.cells_on(piece)
        if piece.shape[0] < FEWEST or one_owner(group, piece, owners):
            continue
        desk.add(_case(desk, group, piece, owners))
        last = np.isin(owners, group.starts[1:] - 1)
        echoes = np.intersect1d(owners[~last] + 1, failures.entries[(failures.seen & (P | T)) == 0])
        desk.explain(group, np.union1d(owners, echoes), piece)


def _impossible(records: Int64s) -> np.ndarray:
    """Which records are all zero, or hold what is no token or no position."""
    token, position = records[:, 0], records[:, 1]
    real = (token >= 0) & (token <= MAX_TOKEN) & (position >= 0) & (position <= MAX_TOKEN)
    return np.asarray(~real | ~records.any(axis=1))


def one_owner(group: GroupView, slots: Int64s, owners: Int64s) -> bool:
    """Tell whether some request, or the prefix cache alone, owns all of the slots: then it lost them, not the pool."""
    counts = np.bincount(group.request[owners])
    return bool(counts.shape[0] == 0 or counts.max() >= slots.shape[0])


def _case(desk: Desk, group: GroupView, slots: Int64s, owners: Int64s) -> Case:
    zero = not group.records[slots].any()
    names = [desk.name(r) for r in np.unique(group.request[owners]).tolist()]
    return Case(
        fault="physical_range_overwritten",
        summary=f"The records of slots {int(slots[0])}-{int(slots[-1])} were overwritten "
        f"({'zero' if zero else 'impossible values'}), whoever owns them: something wrote over a piece of the pool.",
        pool=group.kind,
        confidence=POSSIBLE if zero else LIKELY,
        cells=desk.places(group, owners[:LISTED]),
        partners=names,
        slots=slots.tolist(),
        evidence=[
            f"{plural(slots.shape[0], 'slot')} side by side among those in use, of {plural(len(names), 'request')}",
            "every record buffer is hit",
        ],
        details={"field": "record", "zero": zero},
        rivals=["slots_never_written"] if zero else [],
    )
