"""Schedules requests over the paged pool: prefix reuse, prefill and decode in one batch, a canary around each pass."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from canary_numba.capture.layers import PagedPool
from canary_numba.capture.pool import KVCanary
from canary_numba.capture.snapshot import radix_of_paths
from canary_numba.dump import Dump
from paged.memory import PageAllocator, PrefixCache
from paged.model import LAYERS, PagedModel

PAGE_SIZE, NUM_PAGES, ROWS, MAX_LENGTH = 4, 40, 5, 64


@dataclass
class Request:
    """A prompt and what was generated for it; ``cached`` counts the tokens whose K and V are in the pool."""

    rid: str
    tokens: list[int]
    max_length: int
    row: int = 0
    cached: int = 0
    pages: list[int] = field(default_factory=list)
    shared: int = 0


class Engine:
    """Serves requests, a few at a time."""

    def __init__(self) -> None:
        self.model = PagedModel(num_pages=NUM_PAGES, page_size=PAGE_SIZE)
        self.allocator = PageAllocator(NUM_PAGES)
        self.prefixes = PrefixCache(PAGE_SIZE)
        self.table = torch.zeros((ROWS, MAX_LENGTH), dtype=torch.int32)
        self.free_rows = list(range(1, ROWS))
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.finished: dict[str, list[int]] = {}
        names = [f"layer{i}" for i in range(LAYERS)]
        pool = PagedPool(k_layers=self.model.k_pool, v_layers=self.model.v_pool, page_size=PAGE_SIZE, layer_names=names)
        self.canary = KVCanary(
            pool, self.table, req_to_expected_tokens=torch.zeros_like(self.table), keep_source_hashes=True
        )

    def submit(self, rid: str, prompt: list[int], new_tokens: int) -> None:
        """Queue a request."""
        self.waiting.append(Request(rid, list(prompt), len(prompt) + new_tokens))

    def step(self) -> None:
        """Run one pass over all running requests: the rest of a prompt for new ones, one token for the others.

        Raises
        ------
        CorruptionError
            The canary found violations.
        """
        while self.waiting and self.free_rows:
            self.admit(self.waiting.pop(0))
        batch = list(self.running)
        spans = [(request.cached, len(request.tokens)) for request in batch]
        for request, (_, end) in zip(batch, spans, strict=True):
            self.grow(request, end)
        input_ids = torch.tensor([t for r, (a, b) in zip(batch, spans, strict=True) for t in r.tokens[a:b]])
        positions = torch.tensor([p for a, b in spans for p in range(a, b)])
        slots = torch.cat([self.table[r.row, a:b] for r, (a, b) in zip(batch, spans, strict=True)]).long()
        with self.canary.forward(
            req_pool_indices=[request.row for request in batch],
            prefix_lens=[start for start, _ in spans],
            extend_seq_lens=[end - start for start, end in spans],
            input_ids=input_ids,
            positions=positions,
            out_cache_loc=slots,
            token_ids=[request.tokens for request in batch],
            mode="raise",
        ):
            tables = [self.table[r.row, :end].long() for r, (_, end) in zip(batch, spans, strict=True)]
            next_tokens = self.model.forward(input_ids, positions, slots, tables).tolist()
            for request, (_, end) in zip(batch, spans, strict=True):
                request.cached = end
        for request, token in zip(batch, next_tokens, strict=True):
            if len(request.tokens) < request.max_length:
                request.tokens.append(token)
            else:
                self.release(request)

    def admit(self, request: Request) -> None:
        """Give a request a table row, and the cached pages that its prompt starts with."""
        request.row = self.free_rows.pop(0)
        request.pages = self.prefixes.match(request.tokens)
        request.shared = len(request.pages)
        request.cached = request.shared * PAGE_SIZE
        for number, page in enumerate(request.pages):
            self.write_table(request.row, number, page)
        self.running.append(request)

    def grow(self, request: Request, length: int) -> None:
        """Allocate pages until the request has room for ``length`` tokens."""
        while len(request.pages) * PAGE_SIZE < length:
            if not self.allocator.free_pages and (page := self.prefixes.evict()) is not None:
                self.allocator.free(page)
            page = self.allocator.alloc()
            self.write_table(request.row, len(request.pages), page)
            request.pages.append(page)

    def write_table(self, row: int, number: int, page: int) -> None:
        """Enter a request's page ``number`` into its table row."""
        start = number * PAGE_SIZE
        self.table[row, start : start + PAGE_SIZE] = torch.arange(page * PAGE_SIZE, (page + 1) * PAGE_SIZE)

    def release(self, request: Request) -> None:
        """Retire a request: its full pages stay cached, its other pages and its row are free again."""
        self.prefixes.users.subtract(request.pages[: request.shared])
        for page in self.prefixes.insert(request.tokens[: request.cached], request.pages):
            self.allocator.free(page)
        self.running.remove(request)
        self.finished[request.rid] = request.tokens[: request.cached]
        self.table[request.row] = 0
        self.free_rows.append(request.row)

    def snapshot(self) -> Dump:
        """Dump the cache as it is now."""
        facts: dict[str, Any] = {
            "req_pool_indices": [request.row for request in self.running],
            "prefix_lens": [request.cached for request in self.running],
            "rids": [request.rid for request in self.running],
            "expected_tokens": [request.tokens for request in self.running],
            "free_slots": [page * PAGE_SIZE + i for page in self.allocator.free_pages for i in range(PAGE_SIZE)],
            "page_size": PAGE_SIZE,
            "radix": radix_of_paths(self.prefixes.paths()),
            "finished": self.finished,
            "context": {"model": "a tiny transformer with random weights"},
        }
        return self.canary.snapshot(**facts)
