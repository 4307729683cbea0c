"""All violations of a check in the order of reports, decoded only when looked at: a broken pool may have millions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import overload

import numpy as np
from numpy.typing import NDArray

from canary_numba.check import CheckResult
from canary_numba.check_buffer import TagCheck
from canary_numba.check_plans import entries_per_request
from canary_numba.dump.model import Dump
from canary_numba.layout import (
    SLOT_OUT_OF_RANGE,
    VIOLATION_FIELD_EXPECTED_AUX,
    VIOLATION_FIELD_FAIL_REASON_BITS,
    VIOLATION_FIELD_KERNEL_KIND,
    VIOLATION_FIELD_POSITION,
    VIOLATION_FIELD_SLOT_IDX,
    VIOLATION_FIELDS,
    FailReason,
)
from canary_numba.violations import Violation, decode_row

Int64s = NDArray[np.int64]

_REAL_KV = int(FailReason.VERIFY_REAL_KV_HASH_MISMATCH)
_BATCH = 1 << 16
"""Violations decoded at once while all are gone through."""
_NOBODY = -1


class _Owners:
    """Which live requests hold which slots of one pool, by the plan that was verified."""

    def __init__(self, dump: Dump, result: CheckResult, kind: str) -> None:
        check = next((c for c in result.checks if c.tag.pool_kind == kind and c.tag.stage != "SWEEP"), None)
        window = next(group.swa_window_size for group in dump.groups if group.kind == kind)
        self._slots = np.empty(0, dtype=np.int64)
        self._ends = np.empty(0, dtype=np.int64)
        if check is not None and dump.requests is not None:
            self._slots = check.plan.verify_slot_indices[: int(check.plan.verify_num_valid)].numpy()
            self._ends = entries_per_request(dump.requests, window).cumsum(0).numpy()

    def request_of(self, entries: Int64s) -> Int64s:
        """Index of the request that each plan entry belongs to."""
        return np.searchsorted(self._ends, entries, side="right")

    @cached_property
    def _first_entries(self) -> tuple[Int64s, Int64s]:
        """Slots that anybody holds, ascending, and the first plan entry of each."""
        known, at = np.unique(self._slots, return_index=True)
        return known, at

    def first(self, slots: Int64s) -> Int64s:
        """Index of the first request that holds each slot; -1 = nobody."""
        known, at = self._first_entries
        if not known.shape[0]:
            return np.full(slots.shape[0], _NOBODY, dtype=np.int64)
        place = np.minimum(np.searchsorted(known, slots), known.shape[0] - 1)
        # Not a slot: requests whose tables lead outside have nothing in common.
        held = (known[place] == slots) & (slots != SLOT_OUT_OF_RANGE)
        return np.where(held, self.request_of(at[place]), _NOBODY)

    def every(self, slots: Int64s, names: Sequence[str]) -> dict[int, tuple[str, ...]]:
        """Names of all requests that hold each of ``slots``, in plan order."""
        entries = np.flatnonzero(np.isin(self._slots, slots[slots != SLOT_OUT_OF_RANGE]))
        found: dict[int, dict[str, None]] = defaultdict(dict)
        for slot, request in zip(self._slots[entries].tolist(), self.request_of(entries).tolist(), strict=True):
            found[slot][names[request]] = None
        return {slot: tuple(holders) for slot, holders in found.items()}


class ViolationList(Sequence[Violation]):
    """Violations by tag, slot and position, then everything else: the same on every engine.

    ``rows``: int64 ``[n, 8]``, the ring rows in that order.
    """

    def __init__(self, dump: Dump, result: CheckResult) -> None:
        self._names = () if dump.requests is None else dump.requests.rids
        self._checks = [check for check in result.checks if check.rows.shape[0]]
        self._owners = {group.kind: _Owners(dump, result, group.kind) for group in dump.groups}
        empty = np.empty((0, VIOLATION_FIELDS), dtype=np.int64)
        rows = np.concatenate([empty, *(check.rows.numpy() for check in self._checks)])
        places = np.concatenate([empty[:, 0], *(self._places(check) for check in self._checks)])
        requests = np.concatenate([empty[:, 0], *(self._requests(check) for check in self._checks)])
        which = np.repeat(np.arange(len(self._checks)), [check.rows.shape[0] for check in self._checks])
        order = np.lexsort(
            (
                rows[:, VIOLATION_FIELD_EXPECTED_AUX].view(np.uint64),
                rows[:, VIOLATION_FIELD_FAIL_REASON_BITS],
                self._name_ranks()[requests],
                places,
                rows[:, VIOLATION_FIELD_POSITION],
                rows[:, VIOLATION_FIELD_SLOT_IDX],
                rows[:, VIOLATION_FIELD_KERNEL_KIND],
            )
        )
        self.rows: Int64s = rows[order]
        self._place: Int64s = places[order]
        self._request: Int64s = requests[order]
        self._which: Int64s = which[order]

    def _places(self, check: TagCheck) -> Int64s:
        return check.plan.verify_expected_positions[check.entries].numpy()

    def _requests(self, check: TagCheck) -> Int64s:
        owners = self._owners[check.tag.pool_kind]
        if check.tag.stage == "SWEEP":
            return owners.first(check.rows[:, VIOLATION_FIELD_SLOT_IDX].numpy())
        return owners.request_of(check.entries.numpy())

    def _name_ranks(self) -> Int64s:
        """Place of each request's name in alphabetical order; the last one, for nobody, is that of no name."""
        names = [*self._names, ""]
        rank = {name: i for i, name in enumerate(sorted(set(names)))}
        return np.array([rank[name] for name in names], dtype=np.int64)

    def __len__(self) -> int:
        """Violation rows of all buffers."""
        return int(self.rows.shape[0])

    @overload
    def __getitem__(self, index: int) -> Violation: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Violation, ...]: ...
    def __getitem__(self, index: int | slice) -> Violation | tuple[Violation, ...]:
        """Decode one violation, or a slice of them."""
        if isinstance(index, slice):
            return self._decode(np.arange(len(self))[index])
        return self._decode(np.array([range(len(self))[index]]))[0]

    def __iter__(self) -> Iterator[Violation]:
        """Decode all, in batches."""
        for begin in range(0, len(self), _BATCH):
            yield from self[begin : begin + _BATCH]

    def __eq__(self, other: object) -> bool:
        """Tell whether the other sequence holds the same violations in the same order."""
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def _decode(self, index: Int64s) -> tuple[Violation, ...]:
        slots = self.rows[index, VIOLATION_FIELD_SLOT_IDX]
        kinds = np.array([check.tag.pool_kind for check in self._checks])
        of_kind = {kind: slots[kinds[self._which[index]] == kind] for kind in set(kinds.tolist())}
        holders = {kind: self._owners[kind].every(own, self._names) for kind, own in of_kind.items()}
        found = []
        for i in index.tolist():
            check = self._checks[self._which[i]]
            bare = decode_row(self.rows[i].tolist())
            request = int(self._request[i])
            name = None if request == _NOBODY else self._names[request]
            found.append(
                Violation(
                    tag=bare.tag,
                    slot=bare.slot,
                    position=bare.position,
                    stored_token=bare.stored_token,
                    expected_token=bare.expected_token,
                    stored_chain_hash=bare.stored_chain_hash,
                    expected_aux=bare.expected_aux,
                    fail_reason_bits=bare.fail_reason_bits,
                    request=name,
                    table_position=int(self._place[i]),
                    requests=holders[check.tag.pool_kind].get(bare.slot, () if name is None else (name,)),
                    sources=check.changed_sources.get(bare.slot) if bare.fail_reason_bits & _REAL_KV else None,
                )
            )
        return tuple(found)
