"""Bugs that real engines had, each a small change to one method of the engine."""

from __future__ import annotations

import torch

from paged.engine import PAGE_SIZE, Engine, Request
from paged.memory import PrefixCache

LAST_PASS = 14


class DoubleFree(Engine):
    """A finished request's last page goes on the free list twice: two later requests get it."""

    def release(self, request: Request) -> None:
        super().release(request)
        if request.rid == "warm-up":
            page = self.allocator.free_pages.pop()
            self.allocator.free_pages[:2] = [page, *self.allocator.free_pages[:2], page]


class FreedInUse(Engine):
    """A page of a running request is freed, and not handed out yet."""

    def step(self) -> None:
        super().step()
        if self.canary.passes == LAST_PASS:
            self.allocator.free(self.running[0].pages[-1])


class UseAfterFree(Engine):
    """A page of a running request is freed, and the next allocation takes it."""

    def step(self) -> None:
        if self.canary.passes == 9:
            self.allocator.free_pages.insert(0, self.running[0].pages[-2])
        super().step()


class TableOverwrite(Engine):
    """A write meant for another row lands on a table entry of a running request."""

    def step(self) -> None:
        if self.canary.passes == 9:
            victim, other = self.running[0], self.running[1]
            self.table[victim.row, victim.cached - 3] = self.table[other.row, other.cached - 1]
        super().step()


class LateWrite(Engine):
    """A copy of an earlier step arrives late, and overwrites the K bytes of a page of a running request."""

    def step(self) -> None:
        if self.canary.passes == 9:
            page = self.running[0].pages[-2]
            self.model.k_pool[1][page] = torch.randn(self.model.k_pool[1][page].shape)
        super().step()


class LostPage(Engine):
    """A page that a transfer should have brought is all zero, its records as well."""

    def step(self) -> None:
        if self.canary.passes == 9:
            page = self.running[0].pages[-2]
            for pool in (*self.model.k_pool, *self.model.v_pool):
                pool[page] = 0
            for group in self.canary.groups:
                for _, _, stage in group.buffers():
                    stage.records[page * PAGE_SIZE : (page + 1) * PAGE_SIZE] = 0
        super().step()


class StaleRow(Engine):
    """A recycled table row gets back entries of its last owner, from a copy of the table that was not refreshed."""

    def release(self, request: Request) -> None:
        if request.rid == "warm-up":
            self.row, self.entries = request.row, self.table[request.row].clone()
        super().release(request)

    def step(self) -> None:
        if self.canary.passes == 9:
            self.table[self.row, 2 * PAGE_SIZE : 3 * PAGE_SIZE] = self.entries[2 * PAGE_SIZE : 3 * PAGE_SIZE]
        super().step()


class WrongPrefix(Engine):
    """The prefix cache compares too little of a prompt, and returns the pages of another one."""

    def __init__(self) -> None:
        super().__init__()
        self.prefixes = _Careless(PAGE_SIZE)


class _Careless(PrefixCache):
    def key(self, tokens: list[int], end: int) -> tuple[int, ...]:
        return (*[0] * (end - 2), *tokens[end - 2 : end])


BUGS: dict[str, type[Engine]] = {
    "none": Engine,
    "double-free": DoubleFree,
    "freed-in-use": FreedInUse,
    "use-after-free": UseAfterFree,
    "table-overwrite": TableOverwrite,
    "late-write": LateWrite,
    "lost-page": LostPage,
    "stale-row": StaleRow,
    "wrong-prefix": WrongPrefix,
}
