"""A dump and its check as flat arrays: one *cell* for each cached token of each live request, per pool.

A cell is (request, position) with the slot the table gives it. Everything the diagnosis asks is a question about cells,
about the nodes of the prefix cache, or about slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from canary_numba.check import CheckResult
from canary_numba.check_buffer import TagCheck
from canary_numba.check_plans import entries_per_request, map_slots
from canary_numba.diagnosis.chains import Digests, Int64s, digest_records, group_by_slot
from canary_numba.dump.model import Dump, Group, Half
from canary_numba.layout import CANARY_FIELDS_PER_SLOT, FailReason

H = int(FailReason.VERIFY_CHAIN_HASH_MISMATCH)
P = int(FailReason.VERIFY_POSITION_MISMATCH)
R = int(FailReason.VERIFY_REAL_KV_HASH_MISMATCH)
T = int(FailReason.VERIFY_TOKEN_MISMATCH)
OUT_OF_RANGE = int(FailReason.VERIFY_SLOT_OUT_OF_RANGE)

_FEW = 1024
"""Slots that are looked up one by one; for more, one pass over all cells is quicker."""

Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Failing entries of a plan: ``entries`` int64 ``[n]`` ascending, ``bits`` int64 ``[buffers, n]`` by buffer."""

    entries: Int64s
    bits: Int64s

    @property
    def agreed(self) -> Int64s:
        """Reasons that every buffer gives, int64 ``[n]``."""
        if self.bits.shape[0] == 0:
            return np.zeros(self.entries.shape[0], dtype=np.int64)
        return np.asarray(np.bitwise_and.reduce(self.bits, axis=0), dtype=np.int64)

    @property
    def seen(self) -> Int64s:
        """Reasons that any buffer gives, int64 ``[n]``."""
        return np.asarray(np.bitwise_or.reduce(self.bits, axis=0, initial=0), dtype=np.int64)

    @classmethod
    def of(cls, checks: list[TagCheck]) -> Failures:
        """Put the failing entries of several buffers over one plan side by side."""
        rows = [(check.entries.numpy(), check.rows[:, 7].numpy()) for check in checks]
        entries: Int64s = np.unique(np.concatenate([np.empty(0, dtype=np.int64), *(e for e, _ in rows)]))
        bits: Int64s = np.zeros((len(rows), entries.shape[0]), dtype=np.int64)
        for i, (own, reasons) in enumerate(rows):
            bits[i, np.searchsorted(entries, own)] = reasons
        return cls(entries=entries, bits=bits)


class GroupView:
    """One pool: its cells, its prefix-cache nodes, its record buffers, and which entries failed.

    Attributes
    ----------
    buffers : dict of numpy.ndarray
        Records int64 ``[num_slots, 4]`` by name (``TAIL_K``, ...), of the halves in use; tails first.
    request, position, slot, prev, token, full : numpy.ndarray
        int64 ``[n]``, one a cell: index of the live request, position, slot in this pool's numbers, slot of the token
        before (-1 at position 0), expected token (-1 unknown), slot in FULL numbers.
    starts, first : numpy.ndarray
        Cells of request r are ``starts[r]`` to ``starts[r + 1] - 1``; the first has position ``first[r]``.
    changed_sources : dict
        By slot, names of the sources whose bytes changed, where the dump tells.
    node_slot, node_position, node_prev : numpy.ndarray
        int64 ``[m]``: the prefix cache, in this pool's numbers.
    """

    def __init__(self, dump: Dump, group: Group, result: CheckResult) -> None:
        self.group = group
        self.kind = group.kind
        checks = [check for check in result.checks if check.tag.pool_kind == group.kind]
        self.in_use = sorted({check.tag.half for check in checks} or set(group.halves))
        self.num_slots = next(iter(group.halves.values())).num_slots
        self.buffers = self._buffers()
        self.main = next(iter(self.buffers))
        self.changed_sources = {slot: names for check in checks for slot, names in check.changed_sources.items()}
        self._cells(dump, [check for check in checks if check.tag.stage != "SWEEP"])
        self._nodes(dump, [check for check in checks if check.tag.stage == "SWEEP"])

    def _buffers(self) -> dict[str, Int64s]:
        found: dict[str, Int64s] = {}
        for stage in ("TAIL", "HEAD"):
            for half in self.in_use:
                buf = self.group.halves[half].buffers.get(stage)
                if buf is not None:
                    found[f"{stage}_{half}"] = buf.numpy().view(np.int64)[:, :CANARY_FIELDS_PER_SLOT]
        return found

    def _cells(self, dump: Dump, checks: list[TagCheck]) -> None:
        by_name = {f"{check.tag.stage}_{check.tag.half}": check for check in checks}
        self.failures = Failures.of([by_name[name] for name in self.buffers if name in by_name])
        self.failure_names = [name for name in self.buffers if name in by_name]
        requests = dump.requests
        if requests is None or not checks:
            empty: Int64s = np.empty(0, dtype=np.int64)
            self.request = self.position = self.slot = self.prev = self.token = self.full = self.first = empty
            self.starts: Int64s = np.zeros(1, dtype=np.int64)
            return
        plan = checks[0].plan
        count = int(plan.verify_num_valid)
        per_request = entries_per_request(requests, self.group.swa_window_size).numpy()
        self.starts = np.concatenate([[0], np.cumsum(per_request)]).astype(np.int64)
        self.request = np.repeat(np.arange(per_request.shape[0]), per_request)
        self.position = plan.verify_expected_positions[:count].numpy()
        self.slot = plan.verify_slot_indices[:count].numpy()
        self.prev = plan.verify_prev_slot_indices[:count].numpy()
        self.token = plan.verify_expected_tokens[:count].numpy()
        if requests.expected_tokens is None:
            self.token = np.full_like(self.token, -1)
        width = requests.req_to_token.shape[1]
        lengths = requests.prefix_lens.numpy().clip(0, width + 1)
        self.first = lengths - per_request
        self.full = self.slot if self.group.full_to_swa_index_mapping is None else self._full_slots(dump)

    def _full_slots(self, dump: Dump) -> Int64s:
        requests = dump.requests
        assert requests is not None
        table = requests.req_to_token.numpy()
        rows = requests.req_pool_indices.numpy()[self.request]
        inside = (rows >= 0) & (rows < table.shape[0]) & (self.position < table.shape[1])
        full: Int64s = np.full(self.slot.shape[0], -1, dtype=np.int64)
        full[inside] = table[rows[inside], self.position[inside]]
        return full

    def _nodes(self, dump: Dump, checks: list[TagCheck]) -> None:
        self.node_failures = Failures.of(checks)
        self.node_failure_halves = [check.tag.half for check in checks]
        radix, mapping = dump.radix, self.group.full_to_swa_index_mapping
        empty: Int64s = np.empty(0, dtype=np.int64)
        if radix is None:
            self.node_slot = self.node_position = self.node_prev = empty
            return
        self.node_slot = map_slots(radix.slot_indices, mapping).numpy()
        self.node_prev = map_slots(radix.prev_slot_indices, mapping).numpy()
        self.node_position = radix.positions.numpy()

    def records_at(self, slots: Int64s) -> Int64s:
        """Records of ``slots`` (any numbers) in the first buffer, int64 ``[n, 4]``; zeros outside the pool."""
        inside = (slots > 0) & (slots < self.num_slots)
        return np.where(inside[:, None], self.records[np.where(inside, slots, 0)], 0)

    @property
    def records(self) -> Int64s:
        """The records that attribution reads: those of the first buffer."""
        return self.buffers[self.main]

    @property
    def halves(self) -> dict[str, Half]:
        """The halves in use."""
        return {name: self.group.halves[name] for name in self.in_use}

    @cached_property
    def digests(self) -> Digests:
        """Digest of every slot's record in the first buffer, uint64 ``[num_slots]``."""
        return digest_records(self.records)

    @cached_property
    def _cells_by_slot(self) -> tuple[Int64s, Int64s]:
        return group_by_slot(self.slot, self.num_slots)

    @cached_property
    def _nodes_by_slot(self) -> tuple[Int64s, Int64s]:
        return group_by_slot(self.node_slot, self.num_slots)

    @cached_property
    def _nodes_by_prev(self) -> tuple[Int64s, Int64s]:
        return group_by_slot(self.node_prev, self.num_slots)

    @cached_property
    def owned(self) -> Bools:
        """Slots that a live request or the prefix cache points at, bool ``[num_slots]``."""
        starts, _ = self._cells_by_slot
        node_starts, _ = self._nodes_by_slot
        return np.asarray((np.diff(starts) > 0) | (np.diff(node_starts) > 0))

    def inside(self, slot: int) -> bool:
        """Tell whether ``slot`` is a slot of this pool other than padding."""
        return 0 < slot < self.num_slots

    def cells_of(self, slot: int) -> Int64s:
        """Cells that point at ``slot``."""
        if not self.inside(slot):
            return np.empty(0, dtype=np.int64)
        starts, order = self._cells_by_slot
        return order[starts[slot] : starts[slot + 1]]

    def cells_on(self, slots: Int64s | list[int]) -> Int64s:
        """All cells that point at one of ``slots``, ascending."""
        if len(slots) < _FEW:
            pieces = [self.cells_of(slot) for slot in np.asarray(slots, dtype=np.int64).tolist()]
            return np.unique(np.concatenate([np.empty(0, dtype=np.int64), *pieces]))
        wanted: Bools = np.zeros(self.num_slots, dtype=np.bool_)
        wanted[slots] = True
        inside = (self.slot > 0) & (self.slot < self.num_slots)
        return np.flatnonzero(inside & wanted[np.where(inside, self.slot, 0)])

    def nodes_of(self, slot: int) -> Int64s:
        """Prefix-cache nodes that point at ``slot``."""
        if not self.inside(slot):
            return np.empty(0, dtype=np.int64)
        starts, order = self._nodes_by_slot
        return order[starts[slot] : starts[slot + 1]]

    def nodes_after(self, slot: int) -> Int64s:
        """Prefix-cache nodes whose token comes just after the one in ``slot``."""
        if not self.inside(slot):
            return np.empty(0, dtype=np.int64)
        starts, order = self._nodes_by_prev
        return order[starts[slot] : starts[slot + 1]]

    def cell_at(self, request: int, position: int) -> int | None:
        """Cell of a request's position; None where it is not cached, or out of the window."""
        cell = int(self.starts[request] + position - self.first[request])
        return cell if self.starts[request] <= cell < self.starts[request + 1] else None


class DumpView:
    """A dump with its check: its pools as :class:`GroupView`, names of its requests, sets of slots."""

    def __init__(self, dump: Dump, result: CheckResult) -> None:
        self.dump = dump
        self.result = result
        self.groups = {group.kind: GroupView(dump, group, result) for group in dump.groups}
        self.names = self._names()

    def _names(self) -> tuple[str, ...]:
        requests = self.dump.requests
        if requests is None:
            return ()
        if len(set(requests.rids)) == len(requests.rids):
            return requests.rids
        return tuple(f"{rid} ({i})" for i, rid in enumerate(requests.rids))

    @property
    def page_size(self) -> int:
        """Slots in a page: what the allocator says, else 1."""
        return self.dump.allocator.page_size if self.dump.allocator is not None else 1

    def free_slots(self, kind: str) -> Int64s | None:
        """The free list of a pool, None where the dump has none."""
        allocator = self.dump.allocator
        if allocator is None:
            return None
        slots = allocator.free_slots if kind == "FULL" else allocator.swa_free_slots
        return None if slots is None else slots.numpy()

    def is_free(self, kind: str) -> Bools:
        """Slots on the free list, bool ``[num_slots]``; all false where the dump has none."""
        group = self.groups[kind]
        free: Bools = np.zeros(group.num_slots, dtype=np.bool_)
        slots = self.free_slots(kind)
        if slots is not None:
            free[slots[(slots > 0) & (slots < group.num_slots)]] = True
        return free

    def extend_lens(self) -> Int64s:
        """Tokens of each request that this step computes."""
        assert self.dump.requests is not None
        return self.dump.requests.extend_seq_lens.numpy()
