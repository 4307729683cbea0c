"""A dump opened for breaking: a copy with its tables, free lists and pools at hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch

from canary_numba.diagnosis.catalog import FAULTS
from canary_numba.dump.model import Dump, Event, KvIndices
from canary_numba.errors import FaultNotApplicable
from canary_numba.faults.copying import copy_dump
from canary_numba.faults.label import Label
from canary_numba.faults.pool import Int64s, Pool
from canary_numba.layout import CANARY_FIELD_POSITION, CANARY_FIELD_PREV_HASH, CANARY_FIELD_TOKEN
from canary_numba.mixing import CHAIN_HEAD_HASH, splitmix64_mix3

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Live:
    """A live request. ``length``: tokens in the cache; ``extend``: tokens that this step computes."""

    index: int
    name: str
    row: int
    length: int
    extend: int


class Scene:
    """What a fault works on.

    Attributes
    ----------
    dump : Dump
        A copy; :meth:`finish` returns it with what was changed.
    live : list of Live
        Requests that have a table row.
    pools : dict of Pool
        By kind; ``full`` is the FULL one.
    table : numpy.ndarray
        int32 ``[rows, width]``; changes reach the dump.
    free : dict of list of int
        Free lists by kind, where the dump has them.
    """

    def __init__(self, dump: Dump, seed: int) -> None:
        if dump.requests is None or not any(group.kind == "FULL" for group in dump.groups):
            raise FaultNotApplicable("the dump has no live requests over a full pool")
        if any(half.source_slots is not None for group in dump.groups for half in group.halves.values()):
            raise FaultNotApplicable("the dump keeps K/V bytes of a few slots only (source_slots)")
        self.rng = np.random.default_rng([seed, 0xFA17])
        self.dump = copy_dump(dump)
        self.pools = {group.kind: Pool(group, dump.hash_mode, self.rng) for group in self.dump.groups}
        self.full = self.pools["FULL"]
        assert self.dump.requests is not None
        self.requests = self.dump.requests
        self.table = self.requests.req_to_token.numpy()
        self.live = self._live()
        self.page_size = self.dump.allocator.page_size if self.dump.allocator is not None else 1
        self.free: dict[str, list[int]] = {}
        if self.dump.allocator is not None:
            self.free["FULL"] = self.dump.allocator.free_slots.tolist()
            if self.dump.allocator.swa_free_slots is not None:
                self.free["SWA"] = self.dump.allocator.swa_free_slots.tolist()

    def _live(self) -> list[Live]:
        found = []
        for index, name in enumerate(self.requests.rids):
            row = int(self.requests.req_pool_indices[index])
            length, extend = int(self.requests.prefix_lens[index]), int(self.requests.extend_seq_lens[index])
            if 0 < row < self.table.shape[0] and 0 < length <= self.table.shape[1]:
                found.append(Live(index=index, name=name, row=row, length=length, extend=extend))
        return found

    def pick(self, choices: Sequence[_T], missing: str) -> _T:
        """Draw one of ``choices``; raises :class:`FaultNotApplicable` with what is ``missing`` if there are none."""
        if not choices:
            raise FaultNotApplicable(f"the dump has no {missing}")
        return choices[int(self.rng.integers(len(choices)))]

    def slots(self, request: Live) -> Int64s:
        """Slots of a request's cached tokens as the table has them now, int64 ``[length]``."""
        return self.table[request.row, : request.length].astype(np.int64)

    def tokens(self, request: Live) -> list[int]:
        """Tokens that the records of a request hold now."""
        tokens: list[int] = self.full.main[self.slots(request), CANARY_FIELD_TOKEN].tolist()
        return tokens

    @cached_property
    def owners(self) -> dict[int, list[tuple[Live, int]]]:
        """(request, position) pairs of each FULL slot, as the dump came."""
        found: dict[int, list[tuple[Live, int]]] = {}
        for request in self.live:
            for position, slot in enumerate(self.slots(request).tolist()):
                found.setdefault(slot, []).append((request, position))
        return found

    @cached_property
    def nodes(self) -> dict[int, tuple[int, int]]:
        """(position, slot before) of each FULL slot that the prefix cache holds, as the dump came."""
        radix = self.dump.radix
        if radix is None:
            return {}
        columns = (radix.slot_indices.tolist(), radix.positions.tolist(), radix.prev_slot_indices.tolist())
        return {slot: (position, prev) for slot, position, prev in zip(*columns, strict=True)}

    @cached_property
    def children(self) -> dict[int, list[int]]:
        """Cached FULL slots whose token comes just after that of each slot, as the dump came."""
        found: dict[int, list[int]] = {}
        for slot, (_, prev) in self.nodes.items():
            found.setdefault(prev, []).append(slot)
        return found

    def own_from(self, request: Live) -> int:
        """First position from which nothing but this request depends on its records."""
        slots = self.slots(request).tolist()
        first, after = request.length, -1
        while first > 0:
            slot = slots[first - 1]
            others = [place for place in self.owners.get(slot, []) if place != (request, first - 1)]
            if others or any(child != after for child in self.children.get(slot, [])):
                break
            first, after = first - 1, slot
        return first

    def private(self, request: Live, position: int) -> bool:
        """Tell whether only this request holds its slot at a position: no other one, and not the prefix cache."""
        slot = int(self.table[request.row, position])
        return slot not in self.nodes and self.owners.get(slot) == [(request, position)]

    def pages(self, request: Live) -> list[range]:
        """Cached positions of a request, page by page."""
        size, length = self.page_size, request.length
        return [range(first, min(first + size, length)) for first in range(0, length, size)]

    def point(self, request: Live, positions: Sequence[int] | range, slots: Sequence[int] | Int64s) -> None:
        """Let table entries of a request hold other slots; the kernel's copy of the indices is made from them."""
        self.table[request.row, list(positions)] = slots
        copy = self.requests.kv_indices
        if copy is None:
            return
        begin, end = int(copy.indptr[request.index]), int(copy.indptr[request.index + 1])
        for position, slot in zip(positions, slots, strict=True):
            if begin + position < end:
                copy.indices[begin + position] = int(slot)

    def release(self, slots: Sequence[int]) -> None:
        """Put FULL slots, and the window slots mapped to them, on the free lists."""
        self.free.get("FULL", []).extend(slots)
        self.release_window(slots)

    def release_window(self, slots: Sequence[int] | Int64s) -> None:
        """Put the window slots mapped to FULL slots on their free list."""
        window = self.pools.get("SWA")
        if window is not None and window.mapping is not None:
            self.free.get("SWA", []).extend(int(slot) for slot in window.own(list(slots)) if slot)
            window.mapping[list(slots)] = 0

    def digest(self, slot: int) -> int:
        """What the record after this FULL slot's stores as PREV_HASH; of slot -1 what the first record stores."""
        if slot < 0:
            return int(CHAIN_HEAD_HASH)
        token, position, prev = (int(value) for value in self.full.main[slot, : CANARY_FIELD_PREV_HASH + 1])
        return splitmix64_mix3(prev, token, position)

    def chain(self, begin: int, tokens: Sequence[int], positions: Sequence[int] | range) -> list[int]:
        """PREV_HASH of each record of a chain that begins with the hash ``begin``."""
        found = []
        for token, position in zip(tokens, positions, strict=True):
            found.append(begin)
            begin = splitmix64_mix3(begin, token, position)
        return found

    def stamp(self, full_slots: Int64s, tokens: Sequence[int], positions: Sequence[int] | range, begin: int) -> None:
        """Write a chain of records into FULL slots and the window slots mapped to them."""
        hashes = self.chain(begin, tokens, positions)
        for pool in self.pools.values():
            own = pool.own(full_slots)
            kept = np.flatnonzero(own > 0).tolist()
            if kept:
                pool.write(
                    own[kept], [tokens[i] for i in kept], [list(positions)[i] for i in kept], [hashes[i] for i in kept]
                )

    def everywhere(self, full_slots: Sequence[int] | Int64s) -> list[tuple[Pool, Int64s]]:
        """Each pool with its own numbers of FULL slots, as far as it has them."""
        pairs = [(pool, pool.own(np.asarray(full_slots, dtype=np.int64))) for pool in self.pools.values()]
        return [(pool, own[own > 0]) for pool, own in pairs if (own > 0).any()]

    def places(self, slots: Sequence[int]) -> dict[str, tuple[int, ...]]:
        """Cached positions by live request at which the table holds one of ``slots`` now."""
        wanted, found = set(slots), {}
        for request in self.live:
            own = tuple(p for p, slot in enumerate(self.slots(request).tolist()) if slot in wanted)
            if own:
                found[request.name] = own
        return found

    def label(
        self,
        fault: str,
        positions: Mapping[str, Sequence[int]],
        slots: Sequence[int] | Int64s,
        *,
        requests: Sequence[str] | None = None,
        **details: Any,
    ) -> Label:
        """Build the label; requests are those with positions unless told otherwise."""
        return Label(
            fault=fault,
            severity=FAULTS[fault].severity,
            requests=tuple(requests if requests is not None else positions),
            positions={name: tuple(places) for name, places in positions.items()},
            slots=tuple(int(slot) for slot in slots),
            details={name: value for name, value in details.items() if value is not None},
        )

    def at_home(self, request: Live, position: int) -> bool:
        """Tell whether a request's record at a position names that position."""
        slot = int(self.table[request.row, position])
        return int(self.full.main[slot, CANARY_FIELD_POSITION]) == position

    def add_event(self, event: Event) -> None:
        """Let the dump know of one more thing that was done to slots."""
        self.dump = replace(self.dump, events=(*self.dump.events, event))

    def finish(self) -> Dump:
        """The dump with all changes."""
        allocator = self.dump.allocator
        if allocator is not None:
            allocator = replace(
                allocator,
                free_slots=torch.tensor(self.free["FULL"], dtype=torch.int64),
                swa_free_slots=torch.tensor(self.free["SWA"], dtype=torch.int64) if "SWA" in self.free else None,
            )
        groups = tuple(self.pools[group.kind].group for group in self.dump.groups)
        return replace(self.dump, groups=groups, requests=self.requests, allocator=allocator, path=None)

    def extend(self, request: Live, count: int, slots: Sequence[int] | Int64s) -> None:
        """Let this step compute ``count`` more tokens of a request that has none to compute, into ``slots``."""
        self.table[request.row, request.length : request.length + count] = slots
        self.requests.extend_seq_lens[request.index] = count
        if self.requests.allocated_lens is not None:
            least = request.length + count
            self.requests.allocated_lens[request.index] = max(least, int(self.requests.allocated_lens[request.index]))
        if self.requests.kv_indices is not None:
            self.replace_indices(request, self.table[request.row, : request.length + count].tolist())

    def _indices(self) -> KvIndices:
        """The kernel's copy of the indices; one that agrees with the table where the dump has none."""
        if self.requests.kv_indices is not None:
            return self.requests.kv_indices
        lengths = (self.requests.prefix_lens + self.requests.extend_seq_lens).clamp(0, self.table.shape[1]).tolist()
        height = self.table.shape[0]
        rows = [row if 0 <= row < height else 0 for row in self.requests.req_pool_indices.tolist()]
        pieces = [self.table[row, :length].astype(np.int64) for row, length in zip(rows, lengths, strict=True)]
        return KvIndices(
            indptr=torch.tensor([0, *np.cumsum(lengths).tolist()], dtype=torch.int64),
            indices=torch.from_numpy(np.concatenate(pieces)),
        )

    def replace_indices(self, request: Live, entries: Sequence[int]) -> None:
        """Give the kernel's copy another list of slots for one request."""
        copy = self._indices()
        begin, end = int(copy.indptr[request.index]), int(copy.indptr[request.index + 1])
        indptr = copy.indptr.clone()
        indptr[request.index + 1 :] += len(entries) - (end - begin)
        middle = torch.tensor(entries, dtype=torch.int64)
        indices = torch.cat([copy.indices[:begin], middle, copy.indices[end:]])
        self.requests = replace(self.requests, kv_indices=KvIndices(indptr=indptr, indices=indices))
