"""Chains built anew on hidden tokens: sound links stay sound, broken ones stay broken in the same way.

Every hash in a record is the digest of another record, or of one that was, or damage. Each is replaced as what it is:

- the digest of a record, of a token chain, or of what a damaged record must have said: by its new digest;
- a few bits away from the hash that belongs there: by the new one, the same bits away;
- anything else, such as the digest of a record that is gone: by a keyed hash.

Tokens likewise: damage of a few bits stays the same few bits of the hidden token.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from numba import njit

from canary_numba.diagnosis.chains import MAX_TOKEN, Digests, Int64s, chain_tokens, digest_records
from canary_numba.diagnosis.damaged_records import FEW_BITS
from canary_numba.diagnosis.view import Bools, GroupView
from canary_numba.dump.model import Dump
from canary_numba.mixing import CHAIN_HEAD_HASH, slot_hash_u64, splitmix64_mix3_middle
from canary_numba.redact.secret import Secret

MAX_BROKEN = 1 << 16
"""Broken links looked at one by one in each buffer; beyond these, hashes that nothing explains are replaced alone."""

_NONE = -1


@njit(cache=True)
def _resolve(parent: Any, xor: Any, base: Any, tokens: Any, positions: Any, prev_out: Any, digest_out: Any) -> int:
    """New PREV_HASH and digest of each node, parents first. Returns the nodes that lead in a circle."""
    count = parent.shape[0]
    state = np.zeros(count, dtype=np.int8)
    stack = np.empty(count + 1, dtype=np.int64)
    circles = 0
    for start in range(count):
        depth = 0
        node = start
        while state[node] == 0:
            state[node] = 1
            stack[depth] = node
            depth += 1
            if parent[node] < 0:
                break
            node = parent[node]
        while depth > 0:
            depth -= 1
            node = stack[depth]
            up = parent[node]
            if up >= 0 and state[up] == 2:
                prev_out[node] = digest_out[up] ^ xor[node]
            else:
                # Only a forged dump has hashes that lead back to themselves.
                circles += 1 if up >= 0 else 0
                prev_out[node] = base[node]
            digest_out[node] = slot_hash_u64(prev_out[node], np.uint64(tokens[node]), np.uint64(positions[node]))
            state[node] = 2
    return circles


class Known:
    """A dictionary of 64-bit words as two arrays."""

    def __init__(self, fixed: Mapping[int, int]) -> None:
        self.old: Digests = np.array(sorted(fixed), dtype=np.uint64)
        self.new: Digests = np.array([fixed[one] for one in sorted(fixed)], dtype=np.uint64)

    def add(self, old: Digests, new: Digests) -> None:
        """Add pairs; what is known already stays."""
        both = np.concatenate([self.old, old])
        self.old, first = np.unique(both, return_index=True)
        self.new = np.concatenate([self.new, new])[first]

    def find(self, words: Digests) -> tuple[Bools, Digests]:
        """Which of ``words`` are known, and what they become (0 for the others)."""
        place = np.minimum(np.searchsorted(self.old, words), self.old.shape[0] - 1)
        hit = self.old[place] == words
        return hit, np.where(hit, self.new[place], np.uint64(0))


class Nodes:
    """Records, real and supposed, as flat arrays. ``keep``: records that say nothing and stay as they are."""

    def __init__(self) -> None:
        self.records: list[Int64s] = []
        self.tokens: list[Int64s] = []
        self.references: list[tuple[Int64s, Digests]] = []
        self.count = 0

    def add(self, records: Int64s, tokens: Int64s) -> int:
        """Add records int64 ``[n, >= 3]`` with their hidden tokens; returns the number of the first."""
        begin = self.count
        self.records.append(records[:, :3])
        self.tokens.append(tokens)
        self.count += records.shape[0]
        return begin

    def refer(self, nodes: Int64s, hashes: Digests) -> None:
        """Say which PREV_HASH belongs into some nodes."""
        self.references.append((nodes, hashes))


def hide_chains(secret: Secret, dump: Dump, groups: list[GroupView]) -> tuple[list[dict[str, Int64s]], Known]:
    """Hide tokens and hashes of every record.

    Returns
    -------
    tuple
        For each group, by buffer name, TOKEN, POSITION and PREV_HASH of each slot, int64 ``[num_slots, 3]``; and what
        became of every hash met.
    """
    head = int(CHAIN_HEAD_HASH)
    known = Known({0: 0, head: head})
    for group in groups:
        _add_token_chains(secret, dump, group.group.kv_token_id_vs_position_offset, known)
    nodes = Nodes()
    begins = [_add_group(secret, group, nodes, known) for group in groups]
    if not nodes.count:
        return [{} for _ in groups], known
    records, tokens = np.concatenate(nodes.records), np.concatenate(nodes.tokens)
    prev = np.ascontiguousarray(records[:, 2]).view(np.uint64)
    digests = digest_records(records)
    new_prev, new_digests = _rebuild(secret, nodes, known, prev, digests, tokens, records[:, 1])
    kept = _says_nothing(records)
    known.add(digests[~kept], new_digests[~kept])
    known.add(prev[~kept], new_prev[~kept])
    hidden = np.stack([tokens, records[:, 1], new_prev.view(np.int64)], axis=1)
    hidden[kept] = records[kept]
    return [
        {name: hidden[begin : begin + group.num_slots] for name, begin in found.items()}
        for group, found in zip(groups, begins, strict=True)
    ], known


def _says_nothing(records: Int64s) -> Bools:
    """Records that are one repeated value: never written, or overwritten by a pattern."""
    return np.asarray((records[:, 0] == records[:, 1]) & (records[:, 0] == records[:, 2]))


def _add_token_chains(secret: Secret, dump: Dump, offset: int, known: Known) -> None:
    pieces: list[Int64s] = []
    requests, finished = dump.requests, dump.finished
    if requests is not None and requests.expected_tokens is not None:
        assert requests.expected_tokens_valid_lens is not None
        pool = requests.expected_tokens.numpy()
        lengths = requests.expected_tokens_valid_lens.numpy().clip(0, pool.shape[1])
        for row, length in zip(requests.req_pool_indices.tolist(), lengths.tolist(), strict=True):
            if 0 <= row < pool.shape[0]:
                pieces.append(pool[row, offset:length].astype(np.int64))
    if finished is not None:
        bounds = finished.indptr.tolist()
        flat = finished.tokens.numpy().astype(np.int64)
        pieces += [flat[low + offset : high] for low, high in pairwise(bounds)]
    starts = np.cumsum([0, *(piece.shape[0] for piece in pieces)]).astype(np.int64)
    if starts[-1]:
        tokens = np.concatenate(pieces)
        known.add(chain_tokens(tokens, starts[:-1], starts), chain_tokens(secret.tokens(tokens), starts[:-1], starts))


def few_bits(words: Digests) -> Bools:
    """Words with 1 to FEW_BITS bits set."""
    rest = words.copy()
    for _ in range(FEW_BITS):
        rest &= rest - np.uint64(1)
        # 0 - 1 wraps, and 0 & anything stays 0.
    return np.asarray((rest == 0) & (words != 0))


def _add_group(secret: Secret, group: GroupView, nodes: Nodes, known: Known) -> dict[str, int]:
    buffers = {
        f"{stage}_{half}": buf.numpy().view(np.int64)[:, :3]
        for half, one in group.group.halves.items()
        for stage, buf in one.buffers.items()
    }
    slots = np.concatenate([group.slot, group.node_slot])
    before = np.concatenate([group.prev, group.node_prev])
    position = np.concatenate([group.position, group.node_position])
    wanted = np.concatenate([group.token, np.full(group.node_slot.shape[0], -1, dtype=np.int64)])
    inside = (slots > 0) & (slots < group.num_slots) & (before < group.num_slots) & (before != 0)
    slots, before, position, wanted = slots[inside], before[inside], position[inside], wanted[inside]
    begins: dict[str, int] = {}
    for name, records in buffers.items():
        digests = digest_records(records)
        due = np.where(before < 0, CHAIN_HEAD_HASH, digests[np.maximum(before, 0)])
        supposed, recovered = _suppose(records, digests, slots, before, position, wanted, due)
        originals = [(slots, wanted), recovered, *_twins(buffers, name, 0)]
        tokens = _hide_tokens(secret, records, digests, known, originals)
        begins[name] = nodes.add(records, tokens)
        nodes.refer(begins[name] + slots, due)
        for every, prev in _twins(buffers, name, 2):
            nodes.refer(begins[name] + every, prev.view(np.uint64))
        nodes.add(supposed, secret.tokens(supposed[:, 0]))
    return begins


def _twins(buffers: dict[str, Int64s], name: str, field: int) -> list[tuple[Int64s, Int64s]]:
    """A field of each slot as the other buffers have it: (slots, values) pairs."""
    return [
        (np.arange(records.shape[0]), np.ascontiguousarray(records[:, field]))
        for other, records in buffers.items()
        if other != name
    ]


def _suppose(
    records: Int64s,
    digests: Digests,
    slots: Int64s,
    before: Int64s,
    position: Int64s,
    wanted: Int64s,
    due: Digests,
) -> tuple[Int64s, tuple[Int64s, Int64s]]:
    """What damaged records must have said for their successors to be right; and their tokens, by slot."""
    stored = np.ascontiguousarray(records[:, 2]).view(np.uint64)
    broken = np.flatnonzero((stored[slots] != due) & (before > 0))[:MAX_BROKEN]
    places: dict[int, int] = {}
    for number, slot in enumerate(slots.tolist()):
        places.setdefault(slot, number)
    rows: list[list[int]] = []
    found: list[tuple[int, int]] = []
    for link in broken.tolist():
        culprit, after = int(before[link]), int(stored[slots[link]])
        place = places.get(culprit)
        if place is None:
            continue
        token, named, prev = records[culprit].tolist()
        right = int(due[place])
        for one in {right, prev & ((1 << 64) - 1)}:
            lost = splitmix64_mix3_middle(one, int(position[place]), after)
            tokens = {token, int(wanted[place])} | ({lost} if lost <= MAX_TOKEN else set())
            signed = one - (1 << 64) if one >> 63 else one
            rows += [[t, p, signed] for t in tokens for p in {named, int(position[place])}]
            if lost <= MAX_TOKEN:
                found.append((culprit, lost))
    supposed: Int64s = np.array(rows, dtype=np.int64).reshape(-1, 3)
    pairs: Int64s = np.array(found, dtype=np.int64).reshape(-1, 2)
    return supposed, (pairs[:, 0], pairs[:, 1])


def _hide_tokens(
    secret: Secret, records: Int64s, digests: Digests, known: Known, originals: list[tuple[Int64s, Int64s]]
) -> Int64s:
    tokens = np.ascontiguousarray(records[:, 0])
    hidden = secret.tokens(tokens)
    # A token that a chain was built on is no damage, however close it is to another.
    built_on = np.isin(digests, records[:, 2].astype(np.int64).view(np.uint64)) | known.find(digests)[0]
    for slots, right in originals:
        differing = (tokens[slots] ^ right).view(np.uint64)
        flipped = (right != -1) & ~built_on[slots] & few_bits(differing)
        where = slots[flipped]
        hidden[where] = secret.tokens(right[flipped]) ^ differing[flipped].view(np.int64)
        built_on[where] = True
    return hidden


def _rebuild(
    secret: Secret,
    nodes: Nodes,
    known: Known,
    prev: Digests,
    digests: Digests,
    tokens: Int64s,
    positions: Int64s,
) -> tuple[Digests, Digests]:
    order = np.argsort(digests, kind="stable")
    ordered = digests[order]

    def parents(hashes: Digests) -> Int64s:
        place = np.minimum(np.searchsorted(ordered, hashes), ordered.shape[0] - 1)
        return np.where(ordered[place] == hashes, order[place], _NONE)

    hit, base = known.find(prev)
    parent = np.where(hit, _NONE, parents(prev))
    lost = ~hit & (parent < 0)
    base[lost] = secret.words(prev[lost], b"chain")
    xor = np.zeros(prev.shape[0], dtype=np.uint64)
    for at, hashes in nodes.references:
        differing = prev[at] ^ hashes
        flipped = lost[at] & few_bits(differing)
        where, right = at[flipped], hashes[flipped]
        found, value = known.find(right)
        up = np.where(found, _NONE, parents(right))
        usable = found | (up >= 0)
        where, up, value, found = where[usable], up[usable], value[usable], found[usable]
        bits = differing[flipped][usable]
        parent[where], xor[where], lost[where] = up, bits, False
        base[where] = np.where(found, value ^ bits, base[where])
    new_prev, new_digests = np.empty_like(prev), np.empty_like(prev)
    _resolve(parent, xor, base, tokens, np.ascontiguousarray(positions), new_prev, new_digests)
    return new_prev, new_digests
