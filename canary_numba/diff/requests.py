"""Requests of two dumps compared: who came and went, grew, or was retracted and computed again.

A server short of slots retracts a request: it frees the slots, and computes their tokens once more later, mostly in
other slots. A prefix cache that finds a second copy of a prefix lets the request use the first, and frees the second.
Either way the request holds other slots, or fewer, and two things show that no table entry was merely lost: the slots
that it has now hold the same tokens, in the same chain, as those that it had; and those that it had have gone where
slots go, to the free list, the prefix cache or somebody else.
"""

from __future__ import annotations

import numpy as np

from canary_numba.diagnosis.chains import Int64s
from canary_numba.diagnosis.view import Bools
from canary_numba.diff.change import Change, numbers_of
from canary_numba.diff.holders import POSITIONS, cached_row
from canary_numba.dump.model import Dump
from canary_numba.layout import CANARY_FIELD_POSITION, CANARY_FIELD_PREV_HASH, CANARY_FIELD_TOKEN


def compare_requests(before: Dump, after: Dump, missing: list[str]) -> tuple[list[Change], dict[str, Int64s]]:
    """Compare the requests.

    Returns
    -------
    tuple
        The changes; and by name of those that were computed again the positions, ascending, that were: in another slot,
        or perhaps in the same.
    """
    if before.requests is None or after.requests is None:
        if before.requests is not after.requests:
            missing.append("requests")
        return [], {}
    old = {rid: i for i, rid in enumerate(before.requests.rids)}
    new = {rid: i for i, rid in enumerate(after.requests.rids)}
    found = [_of_request("requests", "ended", True, rid) for rid in old if rid not in new]
    redone: dict[str, Int64s] = {}
    for rid, index in new.items():
        if rid not in old:
            found.append(_of_request("requests", "arrived", True, rid))
            continue
        was, now = cached_row(before.requests, old[rid]), cached_row(after.requests, index)
        common = min(was.shape[0], now.shape[0])
        moved = np.flatnonzero(was[:common] != now[:common])
        lost = np.arange(common, was.shape[0])
        again = (moved.shape[0] or lost.shape[0]) and _computed_again(before, after, rid, was, now)
        if again:
            # A retraction goes to the end; within what it computed again, a slot may have come back by chance.
            to_the_end = lost.shape[0] or moved[-1] == was.shape[0] - 1
            first = moved[0] if moved.shape[0] else common
            redone[rid] = np.arange(first, common) if to_the_end else moved
        if moved.shape[0]:
            what = "table entries of cached tokens changed" + (": the same tokens, in other slots" if again else "")
            found.append(_of_request("table", what, bool(again), rid, moved))
        if now.shape[0] > common:
            found.append(_of_request("lengths", "tokens appended", True, rid, np.arange(common, now.shape[0])))
        if lost.shape[0]:
            what = "retracted: cached tokens given back" if again else "cached tokens lost"
            found.append(_of_request("lengths", what, bool(again), rid, lost))
    return found, redone


def _of_request(part: str, what: str, explained: bool, rid: str, positions: Int64s | None = None) -> Change:
    numbers = () if positions is None else numbers_of(positions)
    return Change(part=part, what=what, explained=explained, request=rid, unit="position", numbers=numbers)


def _computed_again(before: Dump, after: Dump, rid: str, was: Int64s, now: Int64s) -> bool:
    """Tell whether what a request has is what it had, and whether each slot that it gave up has gone somewhere."""
    common = min(was.shape[0], now.shape[0])
    same = _same_records(before, after, was[:common], now[:common])
    return bool(same.all()) and bool(_gone_somewhere(after, rid, was, now).all())


def _same_records(before: Dump, after: Dump, was: Int64s, now: Int64s) -> Bools:
    """Which positions have the same token, position and chain in every record of their slot, before and after."""
    same: Bools = np.ones(was.shape[0], dtype=np.bool_)
    told = np.zeros_like(same)
    buffers, others = _records(before), _records(after)
    for name in buffers.keys() & others.keys():
        one, two = buffers[name], others[name]
        inside = (was > 0) & (was < one.shape[0]) & (now > 0) & (now < two.shape[0])
        first, second = one[np.where(inside, was, 0)], two[np.where(inside, now, 0)]
        # A half that a model does not use has no records; another one has to tell.
        written = second.any(axis=1)
        same &= inside & (first == second).all(axis=1) & (~written | (second[:, 1] == np.arange(now.shape[0])))
        told |= written
    return same & told


def _records(dump: Dump) -> dict[tuple[str, str], Int64s]:
    """Token, position and chain hash of each slot of the FULL pool, int64 ``[num_slots, 3]``, by half and stage."""
    fields = [CANARY_FIELD_TOKEN, CANARY_FIELD_POSITION, CANARY_FIELD_PREV_HASH]
    return {
        (name, stage): buf.numpy().view(np.int64)[:, fields]
        for group in dump.groups
        if group.kind == "FULL"
        for name, half in group.halves.items()
        for stage, buf in half.buffers.items()
    }


def _gone_somewhere(dump: Dump, rid: str, was: Int64s, now: Int64s) -> Bools:
    """Which slots that a request gave up lie in a page that is free, cached, another's, or its own at another place."""
    size = 1 if dump.allocator is None else max(1, dump.allocator.page_size)
    taken = [] if dump.allocator is None else [dump.allocator.free_slots.numpy()]
    if dump.radix is not None:
        taken.append(dump.radix.slot_indices.numpy())
    if dump.requests is not None:
        taken += [cached_row(dump.requests, i) for i, one in enumerate(dump.requests.rids) if one != rid]
    # A page is handed out whole, to whoever has as yet filled a part of it.
    pages = np.concatenate([np.empty(0, dtype=np.int64), *taken]) // size
    positions = np.flatnonzero(~np.isin(was, now))
    given_up = was[positions] // size
    at_its_place = np.isin(given_up * POSITIONS + positions // size, _pages_at_places(now, size))
    own = np.isin(given_up, now // size) & ~at_its_place
    return np.asarray(own | np.isin(given_up, pages))


def _pages_at_places(row: Int64s, size: int) -> Int64s:
    return np.asarray(row // size * POSITIONS + np.arange(row.shape[0]) // size)
