"""Writes that the simulated server has not launched yet.

A record depends on its predecessor's and on nothing later, so writes of many steps go out in one launch, as long as
none of them reads or writes a slot that another one in it writes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from canary_numba.faults.memory import Batch, PoolMemory


@dataclass(slots=True, eq=False)
class _Range:
    """Consecutive tokens of one request; slots and seed by pool."""

    tokens: list[int]
    positions: list[int]
    slots: dict[str, list[int]]
    seed: dict[str, int]


@dataclass(slots=True, eq=False)
class WriteQueue:
    """Ranges to write, by request."""

    memory: dict[str, PoolMemory]
    _ranges: dict[str, _Range] = field(default_factory=dict)
    _written: dict[str, set[int]] = field(default_factory=dict)

    def add(
        self, rid: str, tokens: list[int], positions: range, slots: dict[str, list[int]], seed: dict[str, int]
    ) -> None:
        """Queue the next tokens of request ``rid``; ``slots`` and the slot ``seed`` before them by pool."""
        own = self._ranges.get(rid)
        goes_on = own is not None and all(own.slots[kind][-1] == seed[kind] for kind in seed)
        reads_pending = any(seed[kind] in self._written.get(kind, ()) for kind in seed)
        rewrites = any(not self._written.get(kind, set()).isdisjoint(slots[kind]) for kind in slots)
        if rewrites or (not goes_on and (own is not None or reads_pending)):
            self.flush()
            own, goes_on = None, False
        if own is not None and goes_on:
            own.tokens += tokens
            own.positions += positions
            for kind, more in slots.items():
                own.slots[kind] += more
        else:
            copies = {kind: list(listed) for kind, listed in slots.items()}
            self._ranges[rid] = _Range(tokens=list(tokens), positions=list(positions), slots=copies, seed=dict(seed))
        for kind, listed in slots.items():
            self._written.setdefault(kind, set()).update(listed)

    def flush(self) -> None:
        """Write everything queued, and what a padded row leaves in slot 0, which may hold anything."""
        ranges = list(self._ranges.values())
        self._ranges, self._written = {}, {}
        if not ranges:
            return
        tokens = [token for part in ranges for token in part.tokens]
        positions = [position for part in ranges for position in part.positions]
        ends = torch.cumsum(torch.tensor([0, *(len(part.tokens) for part in ranges), 1]), dim=0)
        for kind, memory in self.memory.items():
            memory.stamp(
                Batch(
                    tokens=torch.tensor([*tokens, 0]),
                    positions=torch.tensor([*positions, 0]),
                    slots=torch.tensor([*(slot for part in ranges for slot in part.slots[kind]), 0]),
                    offsets=ends,
                    seeds=torch.tensor([*(part.seed[kind] for part in ranges), -1]),
                )
            )
