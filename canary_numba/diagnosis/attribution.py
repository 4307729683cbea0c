"""Who wrote a record: an index of every chain that the dump lets us expect.

A record's digest stands for its whole history, so whoever expects that digest at some position is its writer. Chains
come from tokens (live requests, and finished ones that are listed) and, without tokens, from the records of sound
cells: a slot whose record equals another's was written for the same history.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from canary_numba.diagnosis.chains import MATCHES, Digests, Int64s, chain_tokens, find_equal
from canary_numba.diagnosis.view import DumpView, GroupView
from canary_numba.layout import CANARY_FIELD_POSITION, CANARY_FIELD_PREV_HASH

LIVE = "live"
FINISHED = "finished"
CACHED = "cached"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Writer:
    """Somebody whose token at ``position`` has the record in question. ``request``: index of a live one, else -1."""

    kind: str
    name: str
    position: int
    request: int = -1


class Attribution:
    """The chains of one pool by digest. Built lazily: a dump without failures never hashes a token."""

    def __init__(self, view: DumpView, group: GroupView) -> None:
        self.view = view
        self.group = group

    @cached_property
    def _live(self) -> tuple[Int64s, Digests]:
        """Where each live request's chain starts, and all chains."""
        requests = self.view.dump.requests
        if requests is None or requests.expected_tokens is None or requests.expected_tokens_valid_lens is None:
            count = 0 if requests is None else len(requests.rids)
            return np.zeros(count + 1, dtype=np.int64), np.empty(0, dtype=np.uint64)
        pool = requests.expected_tokens.numpy()
        rows = requests.req_pool_indices.numpy()
        offset = self.group.group.kv_token_id_vs_position_offset
        lengths = requests.expected_tokens_valid_lens.numpy().clip(0, pool.shape[1]) - offset
        lengths = np.where((rows > 0) & (rows < pool.shape[0]), lengths.clip(0), 0)
        # Nothing past what a request has cached or is computing can have been written.
        cached = requests.prefix_lens.numpy() + requests.extend_seq_lens.numpy()
        lengths = np.minimum(lengths, cached)
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        pieces = [pool[row, offset : offset + n] for row, n in zip(rows.tolist(), lengths.tolist(), strict=True) if n]
        tokens = np.concatenate(pieces).astype(np.int64) if pieces else np.empty(0, dtype=np.int64)
        return starts, chain_tokens(tokens, starts[:-1], starts)

    @cached_property
    def _finished(self) -> tuple[Int64s, Digests]:
        finished = self.view.dump.finished
        if finished is None:
            return np.zeros(1, dtype=np.int64), np.empty(0, dtype=np.uint64)
        offset = self.group.group.kv_token_id_vs_position_offset
        begins = finished.indptr.numpy()[:-1] + offset
        lengths = (np.diff(finished.indptr.numpy()) - offset).clip(0)
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return starts, chain_tokens(finished.tokens.numpy().astype(np.int64), begins, starts)

    def expected_digests(self, request: int, positions: Int64s) -> Digests | None:
        """Digests that a live request's tokens ask for at ``positions``; None where any is unknown."""
        starts, digests = self._live
        known = int(starts[request + 1] - starts[request])
        if not positions.shape[0] or int(positions.min()) < 0 or int(positions.max()) >= known:
            return None
        found: Digests = digests[starts[request] + positions]
        return found

    def writers(self, digests: Digests) -> dict[int, list[Writer]]:
        """Everyone whose tokens have these digests somewhere, by digest: live requests first, then finished ones."""
        found: dict[int, list[Writer]] = {}
        starts, chains = self._live
        for digest, places in find_equal(digests, chains).items():
            for place in places:
                request = int(np.searchsorted(starts, place, side="right")) - 1
                writer = Writer(
                    kind=LIVE,
                    name=self.view.names[request],
                    position=int(place - starts[request]),
                    request=request,
                )
                found.setdefault(digest, []).append(writer)
        finished = self.view.dump.finished
        starts, chains = self._finished
        for digest, places in find_equal(digests, chains).items():
            for place in places:
                index = int(np.searchsorted(starts, place, side="right")) - 1
                assert finished is not None
                writer = Writer(kind=FINISHED, name=finished.rids[index], position=int(place - starts[index]))
                found.setdefault(digest, []).append(writer)
        return found

    @cached_property
    def _by_prev_hash(self) -> tuple[Digests, Int64s]:
        prev = np.ascontiguousarray(self.group.records[:, CANARY_FIELD_PREV_HASH]).view(np.uint64)
        order = np.argsort(prev, kind="stable")
        return prev[order], order

    @cached_property
    def _by_digest(self) -> tuple[Digests, Int64s]:
        order = np.argsort(self.group.digests, kind="stable")
        return self.group.digests[order], order

    def slots_with(self, digest: int) -> list[int]:
        """Slots whose record has this digest, padding left out."""
        digests, order = self._by_digest
        wanted = np.array([digest], dtype=np.uint64)
        begin, end = int(np.searchsorted(digests, wanted)[0]), int(np.searchsorted(digests, wanted, side="right")[0])
        return [slot for slot in order[begin:end][:MATCHES].tolist() if slot] if digest else []

    def successors(self, digest: int, position: int) -> list[int]:
        """Slots whose record names ``position`` and follows the record with this digest, padding left out."""
        prev, order = self._by_prev_hash
        wanted = np.array([digest], dtype=np.uint64)
        begin, end = int(np.searchsorted(prev, wanted)[0]), int(np.searchsorted(prev, wanted, side="right")[0])
        slots = order[begin:end][:MATCHES]
        named = self.group.records[slots, CANARY_FIELD_POSITION]
        return [slot for slot in slots[named == position].tolist() if slot]

    def holders(self, digests: Digests) -> dict[int, list[int]]:
        """Slots whose record has each of these digests, padding left out."""
        found = find_equal(digests, self.group.digests)
        return {digest: [slot for slot in slots if slot] for digest, slots in found.items()}
