"""A suspected fault while the diagnosis is at work, and the desk on which all suspicions lie."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from canary_numba.diagnosis.attribution import Attribution
from canary_numba.diagnosis.chains import Int64s
from canary_numba.diagnosis.kv_lookup import KvLookup
from canary_numba.diagnosis.view import Bools, DumpView, GroupView
from canary_numba.findings import LIKELY

Cell = tuple[int, int]
"""(index of a live request, position)."""

LISTED = 1 << 16
"""Positions that a finding lists at most: a kernel that ran wild may hit millions."""

_POSITIONS = 1 << 32
"""More than there are positions: slot * this + position is a key of both."""


@dataclass(slots=True, kw_only=True)
class Case:
    """One suspected fault.

    ``cells``: damaged (request index, position) pairs; ``slots``: the slots to report. ``pool``: whose slots these are.
    ``partners``: names of requests involved without a damaged cell. ``rivals``: other faults the data would also fit.
    ``owner``: whose slot or record it is, where that is a live request's position. ``severity``: None means what the
    catalog says of the fault.
    """

    fault: str
    summary: str
    pool: str = "FULL"
    confidence: str = LIKELY
    severity: str | None = None
    cells: list[Cell] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    partners: list[str] = field(default_factory=list)
    evidence: list[str] = field(default_factory=list)
    next_steps: list[str] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)
    rivals: list[str] = field(default_factory=list)
    owner: Cell | None = None


class Explained:
    """What of a pool is accounted for.

    Attributes
    ----------
    cells, nodes, slots : numpy.ndarray
        bool: failing cells, prefix-cache nodes that show the same, and slots whose records or bytes are bad.
    """

    def __init__(self, group: GroupView) -> None:
        self.group = group
        self.cells: Bools = np.zeros(group.slot.shape[0], dtype=np.bool_)
        self.nodes: Bools = np.zeros(group.node_slot.shape[0], dtype=np.bool_)
        self.slots: Bools = np.zeros(group.num_slots, dtype=np.bool_)

    def is_bad(self, slots: Int64s) -> Bools:
        """Which of ``slots`` (any numbers) are slots known to be bad."""
        inside = (slots > 0) & (slots < self.slots.shape[0])
        return np.asarray(inside & self.slots[np.where(inside, slots, 0)])

    def witnesses(self, nodes: Int64s) -> Bools:
        """Which nodes only repeat what is known: of their slot and position, or of those just before."""
        group = self.group
        known = np.flatnonzero(self.cells)
        keys = group.slot[known] * _POSITIONS + group.position[known]
        slot, prev, position = group.node_slot[nodes], group.node_prev[nodes], group.node_position[nodes]
        own = self.nodes[nodes] | self.is_bad(slot) | np.isin(slot * _POSITIONS + position, keys)
        return np.asarray(own | self.is_bad(prev) | np.isin(prev * _POSITIONS + position - 1, keys))


class Desk:
    """The dump under diagnosis, its lookups, the cases so far and what they explain."""

    def __init__(self, view: DumpView) -> None:
        self.view = view
        self.cases: list[Case] = []
        self.attribution = {kind: Attribution(view, group) for kind, group in view.groups.items()}
        self.kv = {kind: KvLookup(view.dump.hash_mode, group) for kind, group in view.groups.items()}
        self.explained = {kind: Explained(group) for kind, group in view.groups.items()}

        self.shifts: dict[Cell, int] = {}
        """Shift of positions by the (request, position) just after the run that has it."""

    def name(self, request: int) -> str:
        """Name of a live request."""
        return self.view.names[request]

    @cached_property
    def free(self) -> dict[str, Bools]:
        """Slots on the free list, by pool."""
        return {kind: self.view.is_free(kind) for kind in self.view.groups}

    def add(self, case: Case) -> None:
        """Keep a case."""
        self.cases.append(case)

    def explain(self, group: GroupView, cells: Int64s | list[int], slots: Int64s | list[int]) -> None:
        """Take cells (by index) and slots of a pool as accounted for."""
        known = self.explained[group.kind]
        known.cells[np.asarray(cells, dtype=np.int64)] = True
        known.slots[np.asarray(slots, dtype=np.int64)] = True

    def bad_in_full(self, group: GroupView, cells: Int64s) -> Bools:
        """Which cells of a window pool stand at a (request, position) that the full pool has shown to be bad."""
        full = self.view.groups.get("FULL")
        if full is None or full is group:
            return np.zeros(cells.shape[0], dtype=np.bool_)
        request = group.request[cells]
        same = full.starts[request] + group.position[cells] - full.first[request]
        return np.asarray(self.explained["FULL"].cells[same])

    def places(self, group: GroupView, cells: Int64s | list[int]) -> list[Cell]:
        """(request, position) of cells given by index."""
        index = np.asarray(cells, dtype=np.int64)
        return list(zip(group.request[index].tolist(), group.position[index].tolist(), strict=True))

    def owners(self, group: GroupView, slots: list[int]) -> list[Cell]:
        """(request, position) pairs whose table holds one of ``slots``, by request and position; at most LISTED."""
        return self.places(group, group.cells_on(slots)[:LISTED])

    def is_cached(self, group: GroupView, slots: list[int]) -> list[int]:
        """Those of ``slots`` that the prefix cache holds."""
        return [slot for slot in slots if group.nodes_of(slot).shape[0]]


def plural(count: int, word: str) -> str:
    """``1 slot``, ``2 slots``, ``1,000 entries``."""
    if count == 1:
        return f"1 {word}"
    return f"{count:,} {word.removesuffix('y')}ies" if word.endswith("ry") else f"{count:,} {word}s"


def span(values: list[int] | Int64s, limit: int = 6) -> str:
    """Numbers as text, ranges folded and long lists cut with a count: ``3, 7-9, ... (40 in all)``."""
    numbers = sorted(set(np.asarray(values, dtype=np.int64).tolist()))
    parts: list[str] = []
    begin = 0
    for i in range(1, len(numbers) + 1):
        if i == len(numbers) or numbers[i] != numbers[i - 1] + 1:
            first, last = numbers[begin], numbers[i - 1]
            parts.append(str(first) if first == last else f"{first}-{last}")
            begin = i
    if len(parts) > limit:
        return ", ".join(parts[:limit]) + f", ... ({len(numbers):,} in all)"
    return ", ".join(parts)
