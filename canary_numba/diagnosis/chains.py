"""Hashing many records at once, and finding equal hashes: what attribution is made of.

The *digest* of a record is its slot hash, which its successor stores as PREV_HASH. It stands for the triple
(PREV_HASH, token, position), and so for the whole history up to that token: equal digests, equal histories.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from canary_numba.layout import CANARY_FIELD_POSITION, CANARY_FIELD_PREV_HASH, CANARY_FIELD_TOKEN
from canary_numba.mixing import CHAIN_HEAD_HASH, slot_hash_u64, splitmix64_mix3_middle

Int64s = NDArray[np.int64]
Digests = NDArray[np.uint64]

MAX_TOKEN = 2**31 - 1
"""Token ids are stored as int32: anything above is no token."""

MATCHES = 16
"""Rivals kept for one digest: a prompt shared by hundreds of requests would fill memory with equal answers."""


@njit(cache=True, parallel=True)
def _digest_records(records: Any, out: Any) -> None:
    for i in prange(records.shape[0]):
        prev = np.uint64(records[i, CANARY_FIELD_PREV_HASH])
        token = np.uint64(records[i, CANARY_FIELD_TOKEN])
        out[i] = slot_hash_u64(prev, token, np.uint64(records[i, CANARY_FIELD_POSITION]))


@njit(cache=True, parallel=True)
def _chain_tokens(tokens: Any, begins: Any, starts: Any, out: Any) -> None:
    for r in prange(starts.shape[0] - 1):
        h = CHAIN_HEAD_HASH
        for i in range(starts[r + 1] - starts[r]):
            h = slot_hash_u64(h, np.uint64(tokens[begins[r] + i]), np.uint64(i))
            out[starts[r] + i] = h


@njit(cache=True)
def _group_by_slot(slots: Any, starts: Any, order: Any) -> None:
    num_slots = starts.shape[0] - 1
    for i in range(slots.shape[0]):
        if 0 < slots[i] < num_slots:
            starts[slots[i] + 1] += 1
    for s in range(num_slots):
        starts[s + 1] += starts[s]
    fill = starts[:-1].copy()
    for i in range(slots.shape[0]):
        if 0 < slots[i] < num_slots:
            order[fill[slots[i]]] = i
            fill[slots[i]] += 1


def digest_records(records: Int64s) -> Digests:
    """Digest of each record (int64 ``[n, >= 3]``), uint64 ``[n]``."""
    out: Digests = np.empty(records.shape[0], dtype=np.uint64)
    _digest_records(records, out)
    return out


def chain_tokens(tokens: Int64s, begins: Int64s, starts: Int64s) -> Digests:
    """Digests that the records of several requests should have, from their tokens alone.

    Parameters
    ----------
    tokens
        int64 ``[m]``: the tokens of request r from ``begins[r]`` on.
    begins, starts
        int64 ``[n]``, ``[n + 1]``: request r has ``starts[r + 1] - starts[r]`` tokens.

    Returns
    -------
    numpy.ndarray
        uint64 ``[starts[n]]``: digest at position p of request r stands at ``starts[r] + p``.
    """
    out: Digests = np.empty(int(starts[-1]), dtype=np.uint64)
    _chain_tokens(tokens, begins, starts, out)
    return out


def group_by_slot(slots: Int64s, num_slots: int) -> tuple[Int64s, Int64s]:
    """Invert a list of slots: slot s stands at ``order[starts[s]:starts[s + 1]]``; slot 0 and strangers nowhere."""
    starts: Int64s = np.zeros(num_slots + 1, dtype=np.int64)
    order: Int64s = np.empty(slots.shape[0], dtype=np.int64)
    _group_by_slot(slots, starts, order)
    return starts, order


def find_equal(wanted: Digests, among: Digests, limit: int = MATCHES) -> dict[int, list[int]]:
    """Where each of ``wanted`` stands in ``among``: by digest the first ``limit`` indices, ascending.

    Sorts only ``wanted``. Digest 0 is what a run of all-zero records has, and never a match.
    """
    unique = np.unique(wanted)
    unique = unique[unique != 0]
    if unique.shape[0] == 0 or among.shape[0] == 0:
        return {}
    place = np.searchsorted(unique, among)
    np.minimum(place, unique.shape[0] - 1, out=place)
    hits = np.flatnonzero(unique[place] == among)
    values = place[hits]
    order = np.argsort(values, kind="stable")
    hits, values = hits[order], values[order]
    counts = np.bincount(values, minlength=unique.shape[0])
    rank = np.arange(hits.shape[0]) - np.repeat(np.cumsum(counts) - counts, counts)
    hits, values = hits[rank < limit], values[rank < limit]
    found: dict[int, list[int]] = {}
    for value, hit in zip(unique[values].tolist(), hits.tolist(), strict=True):
        found.setdefault(value, []).append(hit)
    return found


def recovered_token(digest_before: int, position: int, prev_hash_after: int) -> int | None:
    """The token that stood at ``position``, from the records on both sides; None if these are not of one chain."""
    token = splitmix64_mix3_middle(digest_before, position, prev_hash_after)
    return token if token <= MAX_TOKEN else None
