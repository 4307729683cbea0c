"""Who holds which slot of a dump: live requests by name, and the prefix cache."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from canary_numba.check_plans import map_slots
from canary_numba.diagnosis.chains import Int64s, digest_records
from canary_numba.diagnosis.view import Bools
from canary_numba.dump.model import Dump, Group, Requests
from canary_numba.layout import CANARY_FIELDS_PER_SLOT
from canary_numba.mixing import CHAIN_HEAD_HASH

POSITIONS = 1 << 32
"""More than there are positions: holder * this + position is a key of both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdings:
    """Who holds which slot of a pool: ``keys`` int64 ``[n]`` ascending (holder, position), ``slots`` int64 ``[n]``."""

    keys: Int64s
    slots: Int64s


def cached_row(requests: Requests, index: int) -> Int64s:
    """The cached part of a request's table row; empty for a row outside the table."""
    row, length = int(requests.req_pool_indices[index]), max(0, int(requests.prefix_lens[index]))
    if not 0 < row < requests.req_to_token.shape[0]:
        return np.empty(0, dtype=np.int64)
    return requests.req_to_token[row, :length].numpy().astype(np.int64)


def holdings(dump: Dump, group: Group, names: dict[str, int]) -> Holdings:
    """What live requests, by name, hold in a pool's own numbers."""
    keys, slots = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
    requests, window = dump.requests, group.swa_window_size
    if requests is not None:
        for index, rid in enumerate(requests.rids):
            row = cached_row(requests, index)
            first = max(0, row.shape[0] - window) if window else 0
            keys.append(names.setdefault(rid, len(names) + 1) * POSITIONS + np.arange(first, row.shape[0]))
            slots.append(row[first:])
    key, full = np.concatenate(keys), torch.from_numpy(np.concatenate(slots))
    mapped = map_slots(full, group.full_to_swa_index_mapping).numpy()
    key, first_of = np.unique(key, return_index=True)
    return Holdings(keys=key, slots=mapped[first_of])


def nodes_of(dump: Dump, group: Group) -> tuple[Int64s, Int64s, Int64s]:
    """Slot, position and slot before of each prefix-cache node, in a pool's own numbers."""
    radix, mapping = dump.radix, group.full_to_swa_index_mapping
    if radix is None:
        empty: Int64s = np.empty(0, dtype=np.int64)
        return empty, empty, empty
    slots, prev = (map_slots(one, mapping).numpy() for one in (radix.slot_indices, radix.prev_slot_indices))
    return slots, radix.positions.numpy(), prev


def cached_slots(dump: Dump, group: Group, num_slots: int) -> Bools:
    """Slots that the prefix cache holds, bool ``[num_slots]``."""
    found: Bools = np.zeros(num_slots, dtype=np.bool_)
    found[inside(nodes_of(dump, group)[0], num_slots)] = True
    return found


def sound_nodes(dump: Dump, group: Group, num_slots: int) -> Bools:
    """Cached slots whose records have the right position and follow the records before them, in every buffer."""
    slots, positions, prev = nodes_of(dump, group)
    usable = (slots > 0) & (slots < num_slots) & (prev < num_slots)
    slots, positions, prev = slots[usable], positions[usable], prev[usable]
    found = cached_slots(dump, group, num_slots)
    for half in group.halves.values():
        for buf in half.buffers.values():
            records = buf.numpy().view(np.int64)[:, :CANARY_FIELDS_PER_SLOT]
            if not records.any():
                # A half that the model does not use.
                continue
            due = np.where(prev < 0, CHAIN_HEAD_HASH, digest_records(records)[np.maximum(prev, 0)])
            stored = np.ascontiguousarray(records[slots, 2]).view(np.uint64)
            wrong = (records[slots, 1] != positions) | ((prev != 0) & (stored != due))
            found[slots[wrong]] = False
    return found


def inside(slots: Int64s, num_slots: int) -> Int64s:
    """Those of ``slots`` that are slots of the pool other than padding."""
    return slots[(slots > 0) & (slots < num_slots)]
