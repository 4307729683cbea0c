"""A small paged server, step by step: admission, chunked prefill, decode, finishing, eviction."""

from __future__ import annotations

from collections import deque

import numpy as np
import torch

from canary_numba.dump.model import Event
from canary_numba.faults.memory import PoolMemory
from canary_numba.faults.options import HistoryOptions
from canary_numba.faults.pages import FreePages
from canary_numba.faults.prefix_cache import PrefixCache
from canary_numba.faults.window import WindowPool
from canary_numba.faults.workload import Request, Workload
from canary_numba.faults.write_queue import WriteQueue

EVENTS_KEPT = 48
FINISHED_KEPT = 6
PAGES_IN_RESERVE = 2
"""Eviction keeps so many pages free."""


class Server:
    """One rank of a simulated server.

    Attributes
    ----------
    table : numpy.ndarray
        int32 ``[rows, width]``: slot by row and position. A row keeps its entries until somebody else gets it.
    live, finished : list of Request
        Those that run, and those that ended lately.
    """

    def __init__(self, seed: int, options: HistoryOptions) -> None:
        self.rng = np.random.default_rng([seed, 1])
        self.options = options
        size = options.page_size
        longest = options.prompt + options.output + 2
        self.width = longest + size
        pages_each = -(-longest // size) + 1
        self.free = FreePages(self.rng, options.running * pages_each + int(self.rng.integers(0, pages_each)), size)
        self.chunk = int(self.rng.integers(6, 40))
        self.memory = {"FULL": PoolMemory("FULL", self.free.num_slots, options, self.rng)}
        self.window: WindowPool | None = None
        if options.window:
            each = -(-(options.window + longest) // size) + 2
            window_free = FreePages(self.rng, options.running * each, size)
            self.window = WindowPool(window_free, self.free.num_slots)
            self.memory["SWA"] = PoolMemory("SWA", window_free.num_slots, options, self.rng)
        self.writes = WriteQueue(self.memory)
        rows = options.running + 3
        self.table = np.zeros((rows, self.width), dtype=np.int32)
        self.free_rows: deque[int] = deque((self.rng.permutation(rows - 1) + 1).tolist())
        self.cache = PrefixCache(size, options.offset)
        self.workload = Workload(self.rng, options)
        self.live: list[Request] = []
        self.finished: deque[Request] = deque(maxlen=FINISHED_KEPT)
        self.events: deque[Event] = deque(maxlen=EVENTS_KEPT)
        self.now = 0

    def step(self) -> None:
        """Let requests arrive and run one batch."""
        self.plan()
        self.run()

    def plan(self) -> None:
        """First half of a step: admit requests, decide what each computes, and allocate its slots."""
        self.now += 1
        while len(self.live) < self.options.running and self.rng.random() < 0.6:
            self._admit(self.workload.next())
        budget = self.chunk
        for request in self.live:
            left = request.prompt - request.cached
            request.planned = 1 if left <= 0 else min(left, budget)
            if left > 0 and request.transfer is not None:
                request.planned = left
            elif left > 0:
                budget -= request.planned
            self._allocate(request)

    def run(self) -> None:
        """Second half: write what was planned, keep prompts in the prefix cache, let requests finish."""
        self._stamp()
        for request in list(self.live):
            prefill = request.cached < request.prompt
            request.cached += request.planned
            request.planned = 0
            if prefill:
                request.transfer = None
                self._keep(request, request.cached)
            if request.cached >= request.total:
                self._finish(request)
        self._release_windows()

    def _log(self, kind: str, pages: list[int], request: Request | None, source: str = "") -> None:
        size = self.options.page_size
        slots = torch.tensor([page * size + i for page in pages for i in range(size)], dtype=torch.int64)
        name = "" if request is None else request.rid
        self.events.append(Event(kind=kind, slots=slots, step=self.now, request=name, source=source))

    def _admit(self, request: Request) -> None:
        size = self.options.page_size
        request.row = self.free_rows.popleft()
        self.table[request.row] = 0
        if self.options.prefix_cache:
            path = self.cache.match(request.tokens, (request.prompt - 1) // size, request.extra_key)
            while path and not self._window_intact([node.page for node in path]):
                path.pop()
            for node in path:
                node.locks += 1
                node.used = self.now
            request.held = path
            request.pages = [node.page for node in path]
            request.cached = len(path) * size
        self._enter(request, 0)
        self.live.append(request)

    def _window_intact(self, pages: list[int]) -> bool:
        if self.window is None:
            return True
        reach = -(-self.options.window // self.options.page_size) + 1
        return all(self.window.has(page) for page in pages[-reach:])

    def _enter(self, request: Request, first: int) -> None:
        """Write the table entries of a request's pages from page ``first`` on."""
        size = self.options.page_size
        slots = [page * size + i for page in request.pages[first:] for i in range(size)]
        self.table[request.row, first * size : first * size + len(slots)] = slots

    def _allocate(self, request: Request) -> None:
        size = self.options.page_size
        first = len(request.pages)
        count = -(-(request.cached + request.planned) // size) - first
        if count <= 0:
            return
        while len(self.free) < count + PAGES_IN_RESERVE and self._evict():
            pass
        new = self.free.take(count)
        if self.window is not None:
            self._make_room_in_window(count)
            self.window.attach(new)
        request.pages += new
        self._enter(request, first)
        if request.transfer is not None or self.rng.random() < 0.3:
            self._log("alloc", new, request)

    def _evict(self) -> bool:
        """Take the oldest page out of the prefix cache; False if there is none that nobody holds."""
        node = self.cache.remove_oldest()
        if node is None:
            return False
        self._log("evict", [node.page], None)
        self._free([node.page])
        return True

    def _free(self, pages: list[int]) -> None:
        if self.window is not None:
            self.window.release(pages)
        self.free.give(pages)

    def _make_room_in_window(self, count: int) -> None:
        assert self.window is not None
        if len(self.window.free) >= count:
            return
        cached = sorted((node for node in self.cache.nodes() if not node.locks), key=lambda node: node.used)
        for node in cached:
            self.window.release([node.page])
            if len(self.window.free) >= count:
                return

    def _release_windows(self) -> None:
        """Release the window pages that live requests have left behind, unless another one still needs them."""
        if self.window is None:
            return
        size, window = self.options.page_size, self.options.window
        needed: set[int] = set()
        behind: set[int] = set()
        for request in self.live:
            first = max(0, request.cached - window) // size
            needed.update(request.pages[first:])
            behind.update(request.pages[:first])
        self.window.release(sorted(behind - needed))

    def _stamp(self) -> None:
        for request in self.live:
            begin, end = request.cached, request.cached + request.planned
            if begin == end:
                continue
            slots = self.table[request.row, begin:end].tolist()
            seed = int(self.table[request.row, begin - 1]) if begin else -1
            self.writes.add(
                request.rid,
                request.tokens[begin + self.options.offset : end + self.options.offset],
                range(begin, end),
                {kind: self._mapped(kind, slots) for kind in self.memory},
                {kind: self._mapped(kind, [seed])[0] for kind in self.memory},
            )
            if request.transfer is not None:
                source = "prefill-0" if request.transfer == "receive" else "host"
                self._log_slots(request, slots, source)

    def _log_slots(self, request: Request, slots: list[int], source: str) -> None:
        assert request.transfer is not None
        self.events.append(
            Event(kind=request.transfer, slots=torch.tensor(slots), step=self.now, request=request.rid, source=source)
        )

    def _mapped(self, kind: str, slots: list[int]) -> list[int]:
        if kind == "FULL" or self.window is None:
            return slots
        return [int(slot) for slot in self.window.mapping[slots]]

    def _keep(self, request: Request, length: int) -> None:
        """Put the whole pages of a request's first ``length`` tokens into the prefix cache, and hold them."""
        if not self.options.prefix_cache:
            return
        full = length // self.options.page_size
        node = request.held[-1] if request.held else self.cache.root(request.extra_key)
        duplicates = []
        for number in range(len(request.held), full):
            key = self.cache.key(request.tokens, number)
            child = node.children.get(key)
            own = request.pages[number]
            if child is None:
                child = self.cache.add(node, key, own, self.now)
            else:
                # Somebody computed the same page meanwhile: one copy is enough.
                if self.window is not None:
                    self.window.move(own, child.page)
                request.pages[number] = child.page
                duplicates.append(own)
            child.locks += 1
            child.used = self.now
            request.held.append(child)
            node = child
        if duplicates:
            self._enter(request, 0)
            self._log("free", duplicates, request)
            self._free(duplicates)

    def _finish(self, request: Request) -> None:
        self._keep(request, request.cached)
        for node in request.held:
            node.locks -= 1
            node.used = self.now
        left = request.pages[len(request.held) :]
        if left:
            self._log("free", left, request)
            self._free(left)
        self.live.remove(request)
        self.free_rows.append(request.row)
        self.finished.append(request)
