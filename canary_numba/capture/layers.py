"""K/V tensors as an engine holds them -> sources whose bytes the records fingerprint, without copying a byte."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from canary_numba.dump.groups import MAX_SOURCES
from canary_numba.dump.model import Source
from canary_numba.errors import ArgumentError


@dataclass(frozen=True, kw_only=True)
class PagedPool:
    """The K/V tensors of one pool of slots, one tensor a layer.

    Attributes
    ----------
    k_layers, v_layers : sequence of torch.Tensor
        Any dtype. With ``page_size`` 1: ``[num_slots, ...]``, one slot a row. Else ``[pages, ...]``, where dimension
        ``slot_axis`` counts the slots of a page: ``[pages, page_size, heads, dim]`` with ``slot_axis=1``,
        ``[pages, heads, page_size, dim]`` with ``slot_axis=2``. Strides may be anything regular: K and V may interleave
        in one storage. ``v_layers`` is empty for pools without a V half (MLA). Each layer given is hashed, so give
        those that are worth the time.
    page_size : int
        Slots in one row of each tensor.
    slot_axis : int
        See above.
    layer_names : sequence of str
        One for each layer. Default ``layer0``, ``layer1``, ...
    num_slots : int or None
        Slots that get a record, slot 0 included. Default: all that the tensors have.
    """

    k_layers: Sequence[torch.Tensor]
    v_layers: Sequence[torch.Tensor] = ()
    page_size: int = 1
    slot_axis: int = 1
    layer_names: Sequence[str] | None = None
    num_slots: int | None = None

    def sources(self, half: str) -> tuple[Source, ...]:
        """Return the sources of half ``"K"`` or ``"V"``, in order of layers.

        Raises
        ------
        ArgumentError
            A tensor is empty, has no such dimension, or its slots lie at no regular distance.
        """
        layers = self.k_layers if half == "K" else self.v_layers
        names = self.layer_names or [f"layer{i}" for i in range(len(layers))]
        if len(names) != len(layers):
            raise ArgumentError(f"layer_names: expected {len(layers)} names, one for each layer, got {len(names)}")
        found = tuple(
            source
            for name, tensor in zip(names, layers, strict=True)
            for source in _sources_of(tensor, f"{name}.{half.lower()}", self.page_size, self.slot_axis)
        )
        if len(found) > MAX_SOURCES:
            raise ArgumentError(f"{half} layers: expected at most {MAX_SOURCES} contiguous pieces, got {len(found)}")
        return found

    @property
    def halves(self) -> tuple[str, ...]:
        """``("K",)`` or ``("K", "V")``."""
        return ("K", "V") if self.v_layers else ("K",)


def _sources_of(tensor: torch.Tensor, name: str, page_size: int, slot_axis: int) -> Iterator[Source]:
    if page_size < 1:
        raise ArgumentError(f"page_size: expected >= 1, got {page_size}")
    tensor = tensor.detach()
    if page_size == 1:
        paged = tensor.unsqueeze(1)
    else:
        if not 1 <= slot_axis < tensor.ndim or tensor.shape[slot_axis] != page_size:
            expected = f"{page_size} slots along dimension {slot_axis}"
            raise ArgumentError(f"{name}: expected {expected}, got shape {list(tensor.shape)}")
        paged = tensor.movedim(slot_axis, 1)
    if paged.numel() == 0:
        raise ArgumentError(f"{name}: expected at least one slot with bytes, got shape {list(tensor.shape)}")
    split = _first_packed(paged)
    for index in itertools.product(*(range(size) for size in paged.shape[2:split])):
        where: Any = (slice(None), slice(None), *index)
        piece = paged[where]
        suffix = "" if not index else str(list(index))
        yield _source(piece, name + suffix)


def _first_packed(paged: torch.Tensor) -> int:
    """First dimension (2 or more) from which on a slot's elements lie side by side."""
    packed = 1
    for dim in range(paged.ndim - 1, 1, -1):
        if paged.shape[dim] > 1 and paged.stride(dim) != packed:
            return dim + 1
        packed *= paged.shape[dim]
    return 2


def _source(piece: torch.Tensor, name: str) -> Source:
    """Make a source of ``[pages, page_size, ...]`` whose slots are packed."""
    pages, page_size = piece.shape[:2]
    width = math.prod(piece.shape[2:])
    row_step = piece.stride(0) if pages > 1 else piece.stride(1) * page_size
    slot_step = piece.stride(1) if page_size > 1 else row_step
    if page_size > 1 and slot_step == width and row_step >= page_size * width:
        rows, row, step, in_a_row = pages, page_size * width, row_step, page_size
    elif slot_step >= width and row_step == page_size * slot_step:
        rows, row, step, in_a_row = pages * page_size, width, slot_step, 1
    else:
        got = f"shape {list(piece.shape)} with strides {list(piece.stride())}"
        raise ArgumentError(f"{name}: expected slots that lie apart at a regular distance, got {got}")
    token_bytes = width * piece.element_size()
    return Source(
        name=name,
        tensor=piece.as_strided((rows, row), (step if rows > 1 else row, 1)),
        page_size=in_a_row,
        num_bytes_per_token=token_bytes,
        read_bytes=token_bytes,
    )
