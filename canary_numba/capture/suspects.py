"""Which slots' K/V bytes are worth keeping when keeping all is too much, and how they are kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import torch

from canary_numba.capture.copies import to_host
from canary_numba.capture.hashes import combine_source_hashes
from canary_numba.dump.model import Source
from canary_numba.layout import (
    CANARY_FIELD_REAL_KV_HASH,
    CANARY_FIELDS_PER_SLOT,
    NUM_LAUNCH_TAGS,
    VIOLATION_FIELD_KERNEL_KIND,
    VIOLATION_FIELD_SLOT_IDX,
    CanaryLaunchTag,
)
from canary_numba.reference.words import read_records, records_of

NEIGHBOURS: Final[int] = 8
"""Slots kept on either side of one under suspicion: what overwrites memory seldom stops at one slot."""
MAX_SUSPECTS: Final[int] = 4096


def reported_slots(ring: torch.Tensor, kind: str) -> torch.Tensor:
    """Slots of the pool ``kind`` that rows of the violation ring (int64 ``[n, 8]``, on the host) name."""
    tags = [tag.value for tag in CanaryLaunchTag if tag.pool_kind == kind]
    known = torch.zeros(NUM_LAUNCH_TAGS, dtype=torch.bool)
    known[tags] = True
    kinds = ring[:, VIOLATION_FIELD_KERNEL_KIND]
    ours = known[kinds.clamp(0, NUM_LAUNCH_TAGS - 1)] & (kinds >= 0) & (kinds < NUM_LAUNCH_TAGS)
    slots: torch.Tensor = ring[ours, VIOLATION_FIELD_SLOT_IDX]
    return slots


def changed_slots(tail: torch.Tensor, slots: torch.Tensor, single: torch.Tensor) -> torch.Tensor:
    """Those of ``slots`` whose bytes no longer hash to what their TAIL record says, on the host.

    Parameters
    ----------
    tail
        uint8 ``[num_slots, stride]``.
    slots
        int64 ``[n]``.
    single
        int64 ``[n, sources]``, the hashes of their bytes as they are now.
    """
    records = read_records(records_of(tail), slots)
    written = (records[:, :CANARY_FIELDS_PER_SLOT] != 0).any(dim=1)
    differ = records[:, CANARY_FIELD_REAL_KV_HASH] != combine_source_hashes(single)
    return to_host(slots[written & differ])


def with_neighbours(suspects: torch.Tensor, num_slots: int) -> torch.Tensor:
    """Add the neighbours of the first ``MAX_SUSPECTS`` slots: int64 ``[k]``, ascending, inside the pool."""
    inside = torch.unique(suspects[(suspects >= 0) & (suspects < num_slots)])[:MAX_SUSPECTS]
    around = inside[:, None] + torch.arange(-NEIGHBOURS, NEIGHBOURS + 1)
    there: torch.Tensor = torch.unique(around[(around >= 0) & (around < num_slots)])
    return there


def keep_slots(sources: Sequence[Source], slots: torch.Tensor) -> tuple[Source, ...]:
    """Copy the bytes of ``slots`` (int64 ``[k]``) to the host, one slot a row."""
    return tuple(_keep(source, slots.to(source.tensor.device)) for source in sources)


def _keep(source: Source, slots: torch.Tensor) -> Source:
    width, item = source.num_bytes_per_token, source.tensor.element_size()
    rows = source.tensor.view(torch.uint8)[:, : source.page_size * width]
    paged = rows.view(rows.shape[0], source.page_size, width)
    kept = to_host(paged[slots // source.page_size, slots % source.page_size])
    return replace(source, tensor=kept.view(source.tensor.dtype) if width % item == 0 else kept, page_size=1)
