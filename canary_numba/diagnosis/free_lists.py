"""Invariants of the free lists, of the full pool and of the window pool.

- ``live_slot_on_free_list`` (latent): slots of a live request or of the prefix cache stand in ``free_slots``.
- ``double_free`` (latent): a slot stands in ``free_slots`` twice.
"""

from __future__ import annotations

import numpy as np

from canary_numba.diagnosis.case import Case, Desk, plural, span
from canary_numba.diagnosis.table_rest import row_of
from canary_numba.diagnosis.view import GroupView
from canary_numba.findings import CERTAIN


def find_live_on_free_list(desk: Desk) -> None:
    """Slots in use that the allocator would hand out next."""
    for kind, group in desk.view.groups.items():
        if desk.view.free_slots(kind) is None:
            continue
        slots = np.flatnonzero(desk.free[kind] & group.owned).tolist()
        pending = _pending(desk, group) if kind == "FULL" else []
        pending = [(place, slot) for place, slot in pending if desk.free[kind][slot]]
        if not slots and not pending:
            continue
        cells = desk.owners(group, slots)
        cells += [place for place, _ in pending if place not in cells]
        slots = _in_order(desk, group, slots) + [slot for _, slot in pending if slot not in slots]
        names = sorted({desk.name(r) for r, _ in cells})
        cached = desk.is_cached(group, slots)
        holders = " and ".join([*names[:4], *(["the prefix cache"] if cached else [])])
        desk.add(
            Case(
                fault="live_slot_on_free_list",
                summary=f"{plural(len(slots), 'slot')} in use by {holders} "
                f"{'is' if len(slots) == 1 else 'are'} on the {kind} free list: the next allocation overwrites "
                f"{'it' if len(slots) == 1 else 'them'}.",
                pool=kind,
                confidence=CERTAIN,
                cells=cells,
                slots=slots,
                evidence=[
                    f"slots {span(slots)} are owned and free at once",
                    f"{len(cached)} of them in the prefix cache",
                ],
                details={"pool": kind, "cached_only": not cells},
            )
        )


def _in_order(desk: Desk, group: GroupView, slots: list[int]) -> list[int]:
    """Slots in the order of their first owner's positions."""

    def place(slot: int) -> tuple[int, int, int]:
        cells = group.cells_of(slot)
        return (int(cells[0]), 0, slot) if cells.shape[0] else (1 << 62, 0, slot)

    return sorted(slots, key=place)


def _pending(desk: Desk, group: GroupView) -> list[tuple[tuple[int, int], int]]:
    """What this step is to write: ((request, position), slot)."""
    requests = desk.view.dump.requests
    found = []
    for request in range(len(requests.rids) if requests is not None else 0):
        assert requests is not None
        row = row_of(requests, request)
        begin, extend = int(requests.prefix_lens[request]), int(requests.extend_seq_lens[request])
        if row is not None and extend > 0:
            slots = row[begin : begin + extend].tolist()
            found += [((request, begin + i), slot) for i, slot in enumerate(slots) if group.inside(slot)]
    return found


def find_double_frees(desk: Desk) -> None:
    """Slots that are free twice."""
    for kind in desk.view.groups:
        free = desk.view.free_slots(kind)
        if free is None:
            continue
        # Padding is freed freely: a window pool gives back what its mapping holds, zeros included.
        unique, counts = np.unique(free[free != 0], return_counts=True)
        twice = unique[counts > 1].tolist()
        if not twice:
            continue
        desk.add(
            Case(
                fault="double_free",
                summary=f"{plural(len(twice), 'slot')} on the {kind} free list more than once: two requests will be "
                "given the same slot.",
                pool=kind,
                confidence=CERTAIN,
                slots=twice,
                evidence=[f"slots {span(twice)} stand in the list {int(counts[counts > 1].max())} times"],
                details={"pool": kind},
            )
        )
