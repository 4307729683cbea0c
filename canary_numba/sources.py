"""A K/V source as the engines read it: one flat run of bytes, and how to find a slot's bytes in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from canary_numba.errors import ArgumentError
from canary_numba.layout import PARTIAL_READ_BYTES, RealKvHashMode


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatSource:
    """A source, flattened.

    Slot s starts at byte ``(s // page_size) * row_stride + (s % page_size) * token_bytes`` of ``flat``.

    Attributes
    ----------
    flat : torch.Tensor
        uint8 ``[n]``, from the first byte of row 0 to the last byte of the last row, gaps between rows included.
    row_stride, token_bytes, read_bytes : int
        Bytes from row to row, from slot to slot in a row, and folded of each slot (what the hash mode reads).
    page_size, num_slots : int
        Slots in a row, and in all rows.
    alignment : int
        16 or 8 when every slot starts at such an address and is read in whole such pieces, else 1.
    """

    flat: torch.Tensor
    row_stride: int
    token_bytes: int
    read_bytes: int
    page_size: int
    num_slots: int
    alignment: int

    @property
    def words(self) -> torch.Tensor:
        """int64 ``[n // 8]`` view of ``flat``; only with an alignment of 8 or 16."""
        return self.flat[: self.flat.shape[0] // 8 * 8].view(torch.int64)


def read_bytes_of(source: Any, mode: RealKvHashMode) -> int:
    """Bytes of each slot that ``mode`` folds: PARTIAL the first 16 (or all of a narrower slot), ALL ``read_bytes``."""
    if mode == RealKvHashMode.PARTIAL:
        return min(PARTIAL_READ_BYTES, int(source.num_bytes_per_token))
    return int(source.read_bytes)


def flatten_source(source: Any, mode: RealKvHashMode) -> FlatSource:
    """Flatten a :class:`~canary_numba.context.RealKvSource` (or SGLang's) without copying a byte.

    Raises
    ------
    ArgumentError
        A row of the tensor is not contiguous, or rows run backwards.
    """
    tensor = source.tensor.detach()
    rows = tensor.shape[0]
    if rows and not tensor[0].is_contiguous():
        raise ArgumentError(
            f"real_kv_sources: expected contiguous rows, got strides {list(tensor.stride())} for shape "
            f"{list(tensor.shape)}"
        )
    item = tensor.element_size()
    row_bytes = tensor[0].numel() * item if rows else 0
    row_stride = tensor.stride(0) * item if rows > 1 else row_bytes
    total = (rows - 1) * row_stride + row_bytes if rows else 0
    elements = tensor.as_strided((total // item,), (1,), tensor.storage_offset())
    flat = elements.view(torch.uint8)
    source_bytes = FlatSource(
        flat=flat,
        row_stride=row_stride,
        token_bytes=int(source.num_bytes_per_token),
        read_bytes=read_bytes_of(source, mode),
        page_size=int(source.page_size),
        num_slots=rows * int(source.page_size),
        alignment=1,
    )
    return _with_alignment(source_bytes)


def _with_alignment(source: FlatSource) -> FlatSource:
    steps = [source.flat.data_ptr(), source.flat.storage_offset(), source.row_stride, source.read_bytes]
    if source.page_size > 1:
        steps.append(source.token_bytes)
    for alignment in (16, 8):
        if all(step % alignment == 0 for step in steps):
            return FlatSource(
                flat=source.flat,
                row_stride=source.row_stride,
                token_bytes=source.token_bytes,
                read_bytes=source.read_bytes,
                page_size=source.page_size,
                num_slots=source.num_slots,
                alignment=alignment,
            )
    return source


def active_sources(context: Any) -> list[FlatSource]:
    """The flattened sources that a context's records fingerprint; none in mode NONE."""
    mode = RealKvHashMode(int(context.real_kv_hash_mode))
    if mode == RealKvHashMode.NONE:
        return []
    return [flatten_source(source, mode) for source in context.real_kv_sources]
