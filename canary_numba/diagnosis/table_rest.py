"""What the table holds beyond cached prefixes, and copies of the table.

- ``stale_row_tail`` (latent): entries at or past prefix + extend (and past what is allocated) that others own.
- ``unlawful_sharing`` (latent): a slot that a request is about to write belongs to somebody else.
- ``index_copy_stale``: ``kv_indices``, the kernel's copy of the table, differs from the table of the same step.
"""

from __future__ import annotations

import numpy as np

from canary_numba.diagnosis.case import Case, Desk, plural, span
from canary_numba.diagnosis.chains import Int64s
from canary_numba.dump.model import Requests
from canary_numba.findings import CERTAIN, LIKELY


def row_of(requests: Requests, request: int) -> Int64s | None:
    """The table row of a live request, int64 ``[width]``; None for padding and rows outside the table."""
    row = int(requests.req_pool_indices[request])
    if not 0 < row < requests.req_to_token.shape[0]:
        return None
    return requests.req_to_token[row].numpy().astype(np.int64)


def find_stale_tails(desk: Desk) -> None:
    """Entries past a request's length that point at slots of others."""
    requests = desk.view.dump.requests
    group = desk.view.groups.get("FULL")
    if requests is None or group is None:
        return
    for request in range(len(requests.rids)):
        row = row_of(requests, request)
        if row is None:
            continue
        length = int(requests.prefix_lens[request]) + int(requests.extend_seq_lens[request])
        if requests.allocated_lens is not None:
            length = max(length, int(requests.allocated_lens[request]))
        tail = row[length:]
        inside = np.flatnonzero((tail > 0) & (tail < group.num_slots))
        inside = inside[~np.isin(tail[inside], row[:length])]
        # What the prefix cache alone holds is no sign: a finished request leaves it there, and its row as it was.
        alive = (
            inside[[group.cells_of(slot).shape[0] > 0 for slot in tail[inside].tolist()]] if inside.shape[0] else inside
        )
        if not alive.shape[0]:
            continue
        slots = tail[alive].tolist()
        owners = sorted({desk.name(r) for r, _ in desk.owners(group, slots)})
        desk.add(
            Case(
                fault="stale_row_tail",
                summary=f"The row of {desk.name(request)} still points at {plural(len(slots), 'slot')} of "
                f"{', '.join(owners)} past its own {length:,} tokens.",
                confidence=CERTAIN,
                cells=[(request, length + i) for i in alive.tolist()],
                slots=slots,
                evidence=[f"positions {span(alive + length)} hold slots {span(slots)}"],
                details={"owner": owners[0], "length": length},
            )
        )


def find_unlawful_sharing(desk: Desk) -> None:
    """Slots handed out for this step that somebody else has."""
    requests = desk.view.dump.requests
    group = desk.view.groups.get("FULL")
    if requests is None or group is None:
        return
    taken: dict[int, tuple[int, int]] = {}
    for request in range(len(requests.rids)):
        row = row_of(requests, request)
        begin, extend = int(requests.prefix_lens[request]), int(requests.extend_seq_lens[request])
        if row is None or extend <= 0:
            continue
        for position, slot in enumerate(row[begin : begin + extend].tolist(), begin):
            if not group.inside(slot):
                continue
            others = [place for place in desk.owners(group, [slot]) if place != (request, position)]
            if slot in taken:
                others.append(taken[slot])
            taken[slot] = (request, position)
            if others or group.nodes_of(slot).shape[0]:
                desk.add(_shared(desk, (request, position), slot, others))


def _shared(desk: Desk, place: tuple[int, int], slot: int, others: list[tuple[int, int]]) -> Case:
    names = sorted({desk.name(r) for r, _ in others})
    return Case(
        fault="unlawful_sharing",
        summary=f"{desk.name(place[0])} is about to write position {place[1]} into slot {slot}, which "
        f"{' and '.join(names) or 'the prefix cache'} holds.",
        confidence=CERTAIN,
        cells=[place, *others],
        slots=[slot],
        evidence=[f"slot {slot} stands at position {p} of {desk.name(r)}" for r, p in [place, *others][:6]],
        details={"writer": desk.name(place[0]), "owner": names[0] if names else None},
    )


def find_stale_copies(desk: Desk) -> None:
    """Differences between ``kv_indices`` and the table."""
    requests = desk.view.dump.requests
    if requests is None or requests.kv_indices is None:
        return
    indptr, indices = requests.kv_indices.indptr.numpy(), requests.kv_indices.indices.numpy()
    for request in range(len(requests.rids)):
        row = row_of(requests, request)
        if row is None:
            continue
        begin = int(requests.prefix_lens[request])
        length = begin + int(requests.extend_seq_lens[request])
        copy = indices[indptr[request] : indptr[request + 1]]
        shown = min(copy.shape[0], row.shape[0], length)
        differ = np.flatnonzero(copy[:shown] != row[:shown])
        missing = np.arange(shown, min(begin, row.shape[0]))
        wrong = np.concatenate([differ, missing])
        if not wrong.shape[0]:
            continue
        first = int(wrong[0])
        desk.add(
            Case(
                fault="index_copy_stale",
                summary=f"The kernel's index copy for {desk.name(request)} differs from the table at position "
                f"{span(wrong)}: attention read other slots than the table names.",
                confidence=CERTAIN if differ.shape[0] else LIKELY,
                cells=[(request, p) for p in wrong.tolist()],
                slots=[int(s) for s in (copy[differ] if differ.shape[0] else row[missing]).tolist()],
                evidence=[
                    f"position {first}: the table has slot {int(row[first])}, the copy "
                    + (f"slot {int(copy[first])}" if first < copy.shape[0] else "ends before it"),
                    f"the copy has {plural(copy.shape[0], 'entry')}, the request {length:,} tokens",
                ],
                details={"table_slots": row[wrong][:64].tolist()},
            )
        )
