"""What a report draws beside its findings: strips of positions, tables of slots, maps of pools."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from canary_numba.diagnosis.attribution import Writer
from canary_numba.diagnosis.case import LISTED, Desk
from canary_numba.diagnosis.chains import Int64s
from canary_numba.diagnosis.view import GroupView
from canary_numba.findings import (
    CORRUPT,
    LATENT,
    POOL_STATES,
    STRIP_STATES,
    Finding,
    Pictures,
    PoolMap,
    SlotLine,
    Strip,
)

MAX_STRIPS = 32
MAX_SLOT_LINES = 16
MAX_MAP_CELLS = 512

_SOUND, _UNCHECKED, _LATENT, _ECHO, _ROOT = range(len(STRIP_STATES))
_NOBODY, _FREE, _CACHED, _OWNED, _FAILING, _DAMAGED = range(len(POOL_STATES))


def draw(desk: Desk, findings: Sequence[Finding]) -> Pictures:
    """Draw everything for these findings of a desk's dump; nothing where there are none."""
    if not findings:
        return Pictures()
    strips: list[Strip] = []
    maps: list[PoolMap] = []
    for kind in sorted(desk.view.groups):
        group = desk.view.groups[kind]
        named = [finding for finding in findings if finding.pool == kind]
        strips += _strips(desk, group, named)
        if any(finding.slots for finding in named):
            maps.append(_pool_map(desk, group, named))
    return Pictures(
        strips=tuple(strips[:MAX_STRIPS]),
        strips_left_out=tuple((strip.request, strip.pool) for strip in strips[MAX_STRIPS:]),
        slot_lines=tuple(_slot_lines(desk, finding) for finding in findings),
        pool_maps=tuple(maps),
    )


def cell_states(group: GroupView, names: Sequence[str], findings: Sequence[Finding]) -> NDArray[np.int8]:
    """State of every cell of a pool as an index into :data:`STRIP_STATES`; ``findings``: those of this pool."""
    states = np.full(group.slot.shape[0], _SOUND, dtype=np.int8)
    states[group.slot == 0] = _UNCHECKED
    index = {name: request for request, name in enumerate(names)}
    failing = group.failures.entries[group.failures.seen != 0]
    states[failing] = _ECHO
    for severity, state in ((LATENT, _LATENT), (CORRUPT, _ROOT)):
        for finding in findings:
            if finding.severity == severity:
                for name, positions in finding.positions.items():
                    cells = cells_at(group, index[name], np.asarray(positions, dtype=np.int64))
                    states[cells] = np.maximum(states[cells], state)
    return states


def _strips(desk: Desk, group: GroupView, findings: Sequence[Finding]) -> list[Strip]:
    """Strips of the requests that have anything but sound positions in this pool."""
    states = cell_states(group, desk.view.names, findings)
    found = []
    for request, name in enumerate(desk.view.names):
        begin, end = int(group.starts[request]), int(group.starts[request + 1])
        piece = states[begin:end]
        if (piece > _UNCHECKED).any():
            found.append(_strip(name, group, int(group.first[request]), piece))
    return found


def cells_at(group: GroupView, request: int, positions: Int64s) -> Int64s:
    """Cells of a request's positions, those that are not cached left out."""
    cells: Int64s = group.starts[request] + positions - group.first[request]
    inside: Int64s = cells[(cells >= group.starts[request]) & (cells < group.starts[request + 1])]
    return inside


def _strip(name: str, group: GroupView, first: int, states: np.ndarray) -> Strip:
    edges = [0, *(np.flatnonzero(np.diff(states)) + 1).tolist(), states.shape[0]]
    runs = tuple((STRIP_STATES[int(states[begin])], first + begin, first + end - 1) for begin, end in pairwise(edges))
    return Strip(request=name, pool=group.kind, length=first + states.shape[0], runs=runs)


def _slot_lines(desk: Desk, finding: Finding) -> tuple[SlotLine, ...]:
    group = desk.view.groups.get(finding.pool)
    if group is None:
        return ()
    slots = [slot for slot in finding.slots if group.inside(slot)][:MAX_SLOT_LINES]
    if not slots:
        return ()
    records = group.records_at(np.asarray(slots, dtype=np.int64))
    digests = group.digests[slots]
    writers = desk.attribution[group.kind].writers(digests)
    return tuple(
        _slot_line(desk, group, finding, slot, record, writers.get(digest, []) if record.any() else [])
        for slot, record, digest in zip(slots, records, digests.tolist(), strict=True)
    )


def _slot_line(
    desk: Desk, group: GroupView, finding: Finding, slot: int, record: Int64s, writers: Sequence[Writer]
) -> SlotLine:
    cells = group.cells_of(slot).tolist()
    owners = tuple((desk.name(request), position) for request, position in desk.places(group, cells[:LISTED]))
    # Of several owners, the one that lost the slot is the one whose positions the finding lists first.
    loser = next((i for name in finding.positions for i, (owner, _) in enumerate(owners) if owner == name), 0)
    nodes = group.nodes_of(slot)
    place = owners[loser][1] if owners else (int(group.node_position[nodes[0]]) if nodes.shape[0] else None)
    # A record that fits its owner was written for it, whoever else has the same history.
    writer = next((w for w in writers if (w.name, w.position) in owners), writers[0] if writers else None)
    return SlotLine(
        slot=slot,
        owners=owners,
        cached=bool(nodes.shape[0]),
        free=bool(desk.free[group.kind][slot]),
        expected_token=int(group.token[cells[loser]]) if cells else -1,
        expected_position=place,
        stored_token=int(record[0]),
        stored_position=int(record[1]),
        writer=None if writer is None else writer.name,
        writer_position=None if writer is None else writer.position,
    )


def _pool_map(desk: Desk, group: GroupView, findings: Sequence[Finding]) -> PoolMap:
    states = np.full(group.num_slots, _NOBODY, dtype=np.int8)
    states[desk.free[group.kind]] = _FREE
    failing = group.slot[group.failures.entries]
    damaged = [slot for finding in findings if finding.severity == CORRUPT for slot in finding.slots]
    node_failing = group.node_slot[group.node_failures.entries]
    for slots, state in (
        (group.node_slot, _CACHED),
        (group.slot, _OWNED),
        (np.concatenate([failing, node_failing]), _FAILING),
        (np.asarray(damaged, dtype=np.int64), _DAMAGED),
    ):
        states[slots[(slots > 0) & (slots < group.num_slots)]] = state
    per_cell = -(-group.num_slots // MAX_MAP_CELLS)
    padded = np.pad(states, (0, -group.num_slots % per_cell))
    cells = padded.reshape(-1, per_cell).max(axis=1)
    return PoolMap(
        pool=group.kind, num_slots=group.num_slots, slots_per_cell=per_cell, cells=tuple(int(c) for c in cells)
    )
