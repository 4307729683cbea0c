"""Lets the diagnosis read K/V bytes by slot number where a dump holds those of few slots."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from canary_numba.dump.model import Dump, Half, Source

MAX_BYTES = 1 << 30
"""K/V bytes of all slots together, held or not, up to which those of few are spread out."""


def spread_sources(dump: Dump) -> Dump:
    """Put bytes kept of few slots where they lay in the pool, zeros elsewhere; leave them out of a pool too large."""
    groups = []
    for group in dump.groups:
        halves = {name: half if half.source_slots is None else _spread(half) for name, half in group.halves.items()}
        groups.append(replace(group, halves=halves))
    return replace(dump, groups=tuple(groups))


def _spread(half: Half) -> Half:
    assert half.source_slots is not None
    whole = sum(half.num_slots * source.num_bytes_per_token for source in half.sources)
    sources: tuple[Source, ...] = ()
    if whole <= MAX_BYTES:
        sources = tuple(_in_place(source, half.source_slots, half.num_slots) for source in half.sources)
    return replace(half, sources=sources, source_slots=None)


def _in_place(source: Source, slots: torch.Tensor, num_slots: int) -> Source:
    width, item = source.num_bytes_per_token, source.tensor.element_size()
    rows = source.tensor.view(torch.uint8)[:, : source.page_size * width]
    # numpy's zeros take no memory until they are written.
    pool = torch.from_numpy(np.zeros((num_slots, width), dtype=np.uint8))
    pool[slots] = rows.reshape(-1, width)[: slots.shape[0]]
    whole_elements = width % item == 0
    return replace(source, tensor=pool.view(source.tensor.dtype) if whole_elements else pool, page_size=1)
