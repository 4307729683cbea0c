"""How far changed K/V bytes reach: in slots, positions, halves, layers, and what stands there now."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from canary_numba.diagnosis.case import Case, Cell, Desk, plural, span
from canary_numba.diagnosis.chains import Int64s
from canary_numba.diagnosis.clusters import neighbours
from canary_numba.diagnosis.view import GroupView
from canary_numba.findings import LIKELY


@dataclass(frozen=True)
class Bad:
    """Slots whose bytes fail, by half, ascending."""

    by_half: dict[str, Int64s]

    @cached_property
    def slots(self) -> Int64s:
        """Slots that fail in any half, ascending."""
        return np.unique(np.concatenate([np.empty(0, dtype=np.int64), *self.by_half.values()]))

    def halves_of(self, slots: Int64s) -> str:
        """``K``, ``V`` or ``K+V``: the halves in which any of ``slots`` fails."""
        return "+".join(sorted(half for half, own in self.by_half.items() if np.isin(slots, own).any()))


def same_owners(desk: Desk, group: GroupView, slots: Int64s) -> list[Cell]:
    """(request, position) of everyone whose table holds one of ``slots``."""
    return desk.owners(group, slots.tolist())


def runs_of(desk: Desk, group: GroupView, slots: Int64s) -> list[Int64s]:
    """Gather slots that stand at consecutive positions of some request, or follow each other in the prefix cache."""
    parent = {slot: slot for slot in slots.tolist()}

    def root(slot: int) -> int:
        while parent[slot] != slot:
            parent[slot] = parent[parent[slot]]
            slot = parent[slot]
        return slot

    for slot in slots.tolist():
        before = [int(p) for p in group.prev[group.cells_of(slot)]] + [
            int(p) for p in group.node_prev[group.nodes_of(slot)]
        ]
        for prev in before:
            if prev in parent:
                parent[root(slot)] = root(prev)
    groups: dict[int, list[int]] = {}
    for slot in slots.tolist():
        groups.setdefault(root(slot), []).append(slot)
    return [np.array(_by_position(desk, group, found), dtype=np.int64) for found in groups.values()]


def _by_position(desk: Desk, group: GroupView, slots: list[int]) -> list[int]:
    def place(slot: int) -> tuple[int, int]:
        cells = group.cells_of(slot)
        if cells.shape[0]:
            return int(group.position[cells[0]]), slot
        nodes = group.nodes_of(slot)
        return (int(group.node_position[nodes[0]]) if nodes.shape[0] else 1 << 62), slot

    return sorted(slots, key=place)


def grown(desk: Desk, group: GroupView, bad: Bad, reach: int) -> Iterator[tuple[Int64s, str | None]]:
    """Ranges of neighbouring slots whose bytes fail, with slots of nobody that look the same, and what they look like.

    A slot that nobody owns may hold anything, so it joins only between or beside failing ones, and only if its bytes
    contradict its record too, or, between zeroed slots, are zero like a slot that was never used.
    """
    lookup = desk.kv[group.kind]
    reached: set[int] = set()
    if lookup.known and bad.slots.shape[0] <= 65536:
        near = np.unique(np.concatenate([bad.slots + d for d in range(-reach, reach + 1)]))
        near = near[(near > 0) & (near < group.num_slots)]
        near = near[~np.isin(near, bad.slots) & ~group.owned[near]]
        for half in bad.by_half:
            if half in lookup.halves and near.shape[0]:
                reached.update(near[lookup.mismatching(half, near)].tolist())
                if lookup.empty(half, bad.by_half[half]).any():
                    reached.update(near[lookup.empty(half, near)].tolist())
    both = np.union1d(bad.slots, np.array(sorted(reached), dtype=np.int64))
    for piece in neighbours(both):
        hit = np.flatnonzero(np.isin(piece, bad.slots))
        if not hit.shape[0]:
            continue
        inner = piece[hit[0] : hit[-1] + 1]
        look = looks(desk, group, bad, inner)
        outer = piece if look not in (None, "zero") and looks(desk, group, bad, piece) == look else inner
        yield outer, look


def looks(desk: Desk, group: GroupView, bad: Bad, slots: Int64s) -> str | None:
    """What the bytes of ``slots`` have in common in the halves that fail."""
    lookup = desk.kv[group.kind]
    if not lookup.known:
        return None
    found = {
        lookup.looks(half, slots)
        for half, own in bad.by_half.items()
        if half in lookup.halves and np.isin(slots, own).any()
    }
    return found.pop() if len(found) == 1 else None


def changed_case(desk: Desk, group: GroupView, bad: Bad, slots: Int64s) -> Case:
    """The plain case over ``slots``, with extent and looks; callers rename it where they know more."""
    cells = same_owners(desk, group, slots)
    halves = bad.halves_of(slots)
    look = looks(desk, group, bad, slots)
    names = sorted({desk.name(r) for r, _ in cells})
    holders = (
        f"{names[0]}, position {span([p for r, p in cells if desk.name(r) == names[0]])}"
        if names
        else "the prefix cache alone"
    )
    evidence = [f"{plural(slots.shape[0], 'slot')}: {span(slots)}; the records themselves are sound"]
    if look:
        evidence.append(f"the bytes are now {look}")
    details: dict[str, object] = {"half": halves, "cached_only": not cells, "looks": look}
    layers = sorted({name for slot in slots.tolist() for name in group.changed_sources.get(slot, ())})
    if layers:
        details["layers"] = layers
        evidence.append(f"changed in {', '.join(layers[:6])}")
    newest = _newest(desk, cells)
    if newest:
        details["newest"] = newest
        evidence.append(
            f"the run reaches the newest token of {newest}: a late write may have raced with the fingerprint"
        )
    return Case(
        fault="kv_bytes_changed",
        summary=f"The {halves} bytes of slot {span(slots)} changed after they were fingerprinted ({holders}).",
        pool=group.kind,
        confidence=LIKELY,
        cells=cells,
        slots=slots.tolist(),
        evidence=evidence,
        details=details,
    )


def _newest(desk: Desk, cells: list[Cell]) -> str | None:
    requests = desk.view.dump.requests
    if requests is None:
        return None
    for request, position in cells:
        if position == int(requests.prefix_lens[request]) - 1:
            return desk.name(request)
    return None
