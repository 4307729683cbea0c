"""Several contexts in one launch: K and V of a stage share the plan, so one launch can serve both.

Block (x, y) of a batched kernel is block y of context x. Blocks start with x running fastest, so both contexts read a
piece of the plan at about the same time and memory delivers it once. What differs between the contexts is passed as
tuples of that length; all else must agree, and contexts that do not go into launches of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from canary_numba.engines.cuda.device import cuda, in_global_memory, in_place
from canary_numba.engines.cuda.fold_shapes import TILE_WORDS, SourceShape, kernel_sources
from canary_numba.engines.cuda.records import record_words, records_are_paired
from canary_numba.sources import active_sources

_MOST = 2
"""Contexts in a launch. A pool has two halves."""


@in_place
def _first(values: Any) -> Any:
    return values[0]


@in_place
def _own_value(values: Any) -> Any:
    chosen = values[0]
    if cuda.blockIdx.x > 0:
        chosen = values[1]
    return chosen


@in_place
def _own_array(arrays: Any) -> Any:
    chosen = arrays[0]
    if cuda.blockIdx.x > 0:
        chosen = arrays[1]
    return in_global_memory(chosen)


def make_picks(count: int) -> tuple[Any, Any]:
    """The device functions that take the block's own element of a tuple with one for each of ``count`` contexts.

    The first takes it of a tuple of arrays, the second of one of numbers.
    """
    return (_first, _first) if count == 1 else (_own_array, _own_value)


class Layout(NamedTuple):
    """What contexts of one launch have in common: compile-time constants, sizes, and where they report."""

    shapes: tuple[SourceShape, ...]
    paired: bool
    num_slots: int
    stride: int
    shared: tuple[int, ...]


class Operand(NamedTuple):
    """A context as a kernel takes it; ``hashes``: expected real-KV hash of each slot, or nothing."""

    layout: Layout
    context: Any
    sources: list[torch.Tensor]
    hashes: torch.Tensor


def operand_of(context: Any, *, widest: int = TILE_WORDS, hashes: torch.Tensor | None = None) -> Operand:
    """Flatten a context; its sources are folded in tiles at most ``widest`` words wide, unless ``hashes`` are given."""
    buf = context.canary_buf
    num_slots = buf.shape[0]
    sources = active_sources(context) if hashes is None and num_slots > 0 else []
    shared = (context.violation_ring, context.violation_write_index, context.enable_chain_position_assert)
    layout = Layout(
        shapes=tuple(SourceShape.of(source, widest) for source in sources),
        paired=records_are_paired(buf),
        num_slots=num_slots,
        stride=buf.shape[1] // 8,
        shared=(*(tensor.data_ptr() for tensor in shared), context.violation_ring.shape[0], int(hashes is not None)),
    )
    none = torch.empty(0, dtype=torch.int64, device=buf.device)
    return Operand(layout, context, kernel_sources(sources, buf.device), none if hashes is None else hashes)


def _share_records(one: Operand, other: Operand) -> bool:
    first, second = (operand.context.canary_buf for operand in (one, other))
    # Of one layout, so of one size.
    return abs(int(first.data_ptr()) - int(second.data_ptr())) < int(first.numel())


def in_batches(operands: Sequence[Operand], *, writing: bool = False) -> list[list[Operand]]:
    """Neighbours of one layout together, at most as many as a launch takes; writers of the same records apart."""
    batches: list[list[Operand]] = []
    for operand in operands:
        fits = bool(batches) and len(batches[-1]) < _MOST and batches[-1][0].layout == operand.layout
        if fits and not (writing and any(_share_records(other, operand) for other in batches[-1])):
            batches[-1].append(operand)
        else:
            batches.append([operand])
    return batches


class BatchArguments(NamedTuple):
    """The arguments of a batched kernel that tell its contexts apart, as tuples of one element a context."""

    records: tuple[torch.Tensor, ...]
    sources: tuple[tuple[torch.Tensor, ...], ...]
    hashes: tuple[torch.Tensor, ...]
    kinds: tuple[np.int64, ...]
    slot_runs: tuple[torch.Tensor, ...]
    kernel_runs: tuple[torch.Tensor, ...]

    @classmethod
    def of(cls, batch: Sequence[Operand]) -> BatchArguments:
        """Collect them; ``sources`` has one tuple for each of a kernel's source arguments."""
        contexts = [operand.context for operand in batch]
        return cls(
            records=tuple(record_words(context.canary_buf) for context in contexts),
            sources=tuple(zip(*(operand.sources for operand in batch), strict=True)),
            hashes=tuple(operand.hashes for operand in batch),
            kinds=tuple(np.int64(int(context.kernel_kind)) for context in contexts),
            slot_runs=tuple(context.slot_run_counter for context in contexts),
            kernel_runs=tuple(context.kernel_run_counter for context in contexts),
        )
