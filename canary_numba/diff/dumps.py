"""The comparison of two dumps, and what it finds.

A step appends tokens, writes the records of slots that it allocated, frees slots, evicts from the prefix cache and from
the sliding window, and computes retracted requests again. It changes nothing else of what a request or the prefix cache
holds before and after.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from canary_numba.diagnosis.chains import Int64s
from canary_numba.diagnosis.view import Bools
from canary_numba.diff.change import Change, numbers_of
from canary_numba.diff.holders import POSITIONS, Holdings, cached_slots, holdings, inside, sound_nodes
from canary_numba.diff.requests import compare_requests
from canary_numba.dump.model import Dump, Group, Half
from canary_numba.errors import ArgumentError
from canary_numba.kv_hashes import hash_slots
from canary_numba.layout import CANARY_FIELD_REAL_KV_HASH, CANARY_FIELDS_PER_SLOT, RealKvHashMode

DIFF_SCHEMA_VERSION = 1
FIELDS = ("token", "position", "prev_hash", "real_kv_hash")


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpDiff:
    """Everything that differs, unexplained changes first. ``not_compared``: what only one of the dumps has."""

    changes: tuple[Change, ...]
    not_compared: tuple[str, ...]

    @property
    def explained(self) -> bool:
        """Tell whether a normal step explains every change."""
        return all(change.explained for change in self.changes)

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "schema_version": DIFF_SCHEMA_VERSION,
            "explained": self.explained,
            "changes": [change.to_dict() for change in self.changes],
            "not_compared": list(self.not_compared),
        }


def diff_dumps(before: Dump, after: Dump) -> DumpDiff:
    """Compare two dumps of one server.

    Raises
    ------
    ArgumentError
        They have other pools or pools of other sizes, so that they are not of one server.
    """
    kinds = [[(group.kind, tuple(group.halves)) for group in dump.groups] for dump in (before, after)]
    if kinds[0] != kinds[1]:
        raise ArgumentError(f"groups: two dumps of one server have the same pools, got {kinds[0]} and {kinds[1]}")
    missing: list[str] = []
    changes, redone = compare_requests(before, after, missing)
    for one, other in zip(before.groups, after.groups, strict=True):
        changes += _pool(before, after, one, other, redone, missing)
    changes += _cache(before, after, missing)
    ordered = sorted(changes, key=lambda change: change.explained)
    return DumpDiff(changes=tuple(ordered), not_compared=tuple(missing))


def _pool(
    before: Dump, after: Dump, one: Group, other: Group, redone: Mapping[str, Int64s], missing: list[str]
) -> list[Change]:
    names: dict[str, int] = {}
    was, now = holdings(before, one, names), holdings(after, other, names)
    _, left, right = np.intersect1d(was.keys, now.keys, assume_unique=True, return_indices=True)
    same = was.slots[left] == now.slots[right]
    keys = [names[rid] * POSITIONS + positions for rid, positions in redone.items() if rid in names]
    again = np.isin(was.keys[left], np.concatenate([np.empty(0, dtype=np.int64), *keys]))
    num_slots = next(iter(one.halves.values())).num_slots
    if num_slots != next(iter(other.halves.values())).num_slots:
        raise ArgumentError(
            f"groups: the {one.kind} pools of one server are of one size, got {num_slots} slots and others"
        )
    kept = np.zeros(num_slots, dtype=np.bool_)
    kept[inside(was.slots[left][same & again], num_slots)] = True
    kept &= ~_rewritten(before, one, other, num_slots)
    kept[inside(was.slots[left][same & ~again], num_slots)] = True
    cached_before, cached_after = cached_slots(before, one, num_slots), cached_slots(after, other, num_slots)
    held_before, held_after = np.zeros_like(kept), np.zeros_like(kept)
    held_before[inside(was.slots, num_slots)] = True
    held_after[inside(now.slots, num_slots)] = True
    held_before |= cached_before
    held_after |= cached_after
    # A cached slot may have been evicted and handed out again in between: then what it holds now is sound.
    sound = sound_nodes(after, other, num_slots)
    spoilt = cached_before & cached_after & ~kept & ~sound
    found = _mapping(one, was, now, left[~again], right[~again]) if one.full_to_swa_index_mapping is not None else []
    for half in one.halves:
        for part, numbers in _changed(before, after, one, half, other.halves[half], missing):
            for what, chosen, explained in (
                ("changed though held before and after", kept, False),
                ("changed though cached before and after", spoilt, False),
                ("changed, newly held", held_after & ~kept & ~spoilt, True),
                ("changed, freed", held_before & ~held_after, True),
                ("changed, held neither before nor after", ~held_before & ~held_after, True),
            ):
                slots = numbers[chosen[numbers]]
                if slots.shape[0]:
                    found.append(Change(part=part, what=what, explained=explained, numbers=numbers_of(slots)))
    return found + _free_list(before, after, one.kind, held_after, missing)


def _rewritten(before: Dump, one: Group, other: Group, num_slots: int) -> Bools:
    """Slots of the pool whose records fingerprint other bytes than before, or none; bool ``[num_slots]``."""
    found: Bools = np.full(num_slots, before.hash_mode == RealKvHashMode.NONE)
    for name, half in one.halves.items():
        tails = [each.tail for each in (half, other.halves[name])]
        if tails[0] is not None and tails[1] is not None:
            hashes = [tail.numpy().view(np.int64)[:, CANARY_FIELD_REAL_KV_HASH] for tail in tails if tail is not None]
            found |= hashes[0] != hashes[1]
    return found


def _mapping(group: Group, was: Holdings, now: Holdings, left: Int64s, right: Int64s) -> list[Change]:
    """Window slots of what is in the window before and after: a normal step leaves them."""
    moved = was.slots[left] != now.slots[right]
    slots = was.slots[left][moved]
    if not slots.shape[0]:
        return []
    what = "window slots of cached tokens changed"
    return [Change(part=f"{group.kind} mapping", what=what, explained=False, numbers=numbers_of(slots))]


def _changed(
    before: Dump, after: Dump, group: Group, name: str, other: Half, missing: list[str]
) -> list[tuple[str, Int64s]]:
    """Slots whose record or bytes changed, by part, padding left out."""
    half = group.halves[name]
    found: list[tuple[str, Int64s]] = []
    for stage in ("HEAD", "TAIL"):
        one, two = half.buffers.get(stage), other.buffers.get(stage)
        if one is None or two is None:
            if one is not two:
                missing.append(f"{stage}_{name}_{group.kind}")
            continue
        records, again = (buf.numpy().view(np.int64)[:, :CANARY_FIELDS_PER_SLOT] for buf in (one, two))
        differing = records != again
        differing[0] = False
        fields = [field for i, field in enumerate(FIELDS) if differing[:, i].any()]
        if fields:
            part = f"{stage}_{name}_{group.kind} records ({', '.join(fields)})"
            found.append((part, np.flatnonzero(differing.any(axis=1))))
    bytes_changed = _changed_bytes(before, after, half, other)
    if bytes_changed is None:
        missing.append(f"K/V bytes of {name} {group.kind}")
    elif bytes_changed.shape[0]:
        found.append((f"K/V bytes of {name} {group.kind}", bytes_changed))
    return found


def _changed_bytes(before: Dump, after: Dump, half: Half, other: Half) -> Int64s | None:
    """Slots whose bytes (by their hash) or, without bytes, whose source hashes changed; None where nothing tells."""
    modes = {before.hash_mode, after.hash_mode}
    if half.sources and other.sources and half.source_slots is None and other.source_slots is None and len(modes) == 1:
        mode = max(before.hash_mode, RealKvHashMode.PARTIAL)
        one, two = (_hashes(each, mode) for each in (half, other))
        return np.flatnonzero(one != two)
    one_table, two_table = half.source_hashes, other.source_hashes
    if one_table is None or two_table is None or one_table.shape != two_table.shape:
        return None
    differing = (one_table != two_table).any(dim=1).numpy()
    differing[0] = False
    return np.flatnonzero(differing)


def _hashes(half: Half, mode: RealKvHashMode) -> Int64s:
    slots = torch.arange(1, half.num_slots)
    device = torch.device("cpu")
    return np.asarray(hash_slots(half, mode, slots, engine="cpu", device=device, advance=lambda _: None).numpy())


def _free_list(before: Dump, after: Dump, kind: str, held: Bools, missing: list[str]) -> list[Change]:
    one, two = before.allocator, after.allocator
    lists = [
        None if each is None else each.free_slots if kind == "FULL" else each.swa_free_slots for each in (one, two)
    ]
    if lists[0] is None or lists[1] is None:
        if lists[0] is not lists[1]:
            missing.append(f"{kind} free list")
        return []
    was, now = lists[0].numpy(), lists[1].numpy()
    freed = inside(np.setdiff1d(now, was), held.shape[0])
    taken = np.setdiff1d(was, now)
    part = f"{kind} free list"
    found = [
        Change(part=part, what="taken from it", explained=True, numbers=numbers_of(taken)),
        Change(part=part, what="put on it", explained=True, numbers=numbers_of(freed[~held[freed]])),
        Change(part=part, what="put on it though still held", explained=False, numbers=numbers_of(freed[held[freed]])),
    ]
    return [change for change in found if change.numbers]


def _cache(before: Dump, after: Dump, missing: list[str]) -> list[Change]:
    one, two = before.radix, after.radix
    if one is None or two is None:
        if one is not two:
            missing.append("prefix cache")
        return []
    was, now = one.slot_indices.numpy(), two.slot_indices.numpy()
    _, left, right = np.intersect1d(was, now, return_indices=True)
    moved = one.positions.numpy()[left] != two.positions.numpy()[right]
    moved |= one.prev_slot_indices.numpy()[left] != two.prev_slot_indices.numpy()[right]
    found = [
        Change(part="prefix cache", what="added", explained=True, numbers=numbers_of(np.setdiff1d(now, was))),
        Change(part="prefix cache", what="evicted", explained=True, numbers=numbers_of(np.setdiff1d(was, now))),
        Change(
            part="prefix cache",
            what="handed out again: at another position or after another slot",
            explained=True,
            numbers=numbers_of(was[left][moved]),
        ),
    ]
    return [change for change in found if change.numbers]
