"""Real-KV hashes in torch: word by word over all slots at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from canary_numba.errors import ArgumentError
from canary_numba.layout import PARTIAL_READ_BYTES, RealKvHashMode
from canary_numba.reference.words import mix, within

_WORD_BYTES = 8


def _byte_rows(tensor: torch.Tensor) -> torch.Tensor:
    """View a source as uint8 ``[rows, bytes of a row]`` without copying; rows may be further apart than their width."""
    tensor = tensor.detach()
    if tensor.shape[0] == 0:
        return torch.empty((0, 0), dtype=torch.uint8, device=tensor.device)
    if not tensor[0].is_contiguous():
        raise ArgumentError(
            f"real_kv_sources: expected contiguous rows, got strides {list(tensor.stride())} for shape "
            f"{list(tensor.shape)}"
        )
    # as_strided gives the flattened row the stride 1 that a view of another item size asks for.
    return tensor.as_strided((tensor.shape[0], tensor[0].numel()), (tensor.stride(0), 1)).view(torch.uint8)


def _source_hash(source: Any, read_bytes: int, slots: torch.Tensor) -> torch.Tensor:
    rows = _byte_rows(source.tensor)
    row = slots // source.page_size
    column = (slots % source.page_size) * source.num_bytes_per_token
    acc = torch.zeros_like(slots)
    for begin in range(0, read_bytes, _WORD_BYTES):
        count = min(_WORD_BYTES, read_bytes - begin)
        columns = column[:, None] + torch.arange(begin, begin + count, device=slots.device)
        word = torch.zeros((slots.shape[0], _WORD_BYTES), dtype=torch.uint8, device=slots.device)
        word[:, :count] = rows[row[:, None], columns]
        acc = mix(acc ^ word.view(torch.int64)[:, 0])
    return acc


def fold_sources(sources: Iterable[Any], mode: int, slots: torch.Tensor, hashes: torch.Tensor) -> None:
    """Fold each source, in order, into ``hashes`` (int64 ``[n]``, in place) for ``slots`` (int64 ``[n]``).

    A slot outside any of the sources leaves its hash as it is.
    """
    sources = list(sources)
    inside = torch.ones_like(slots, dtype=torch.bool)
    for source in sources:
        inside &= within(slots, source.tensor.shape[0] * int(source.page_size))
    acc = hashes[inside]
    for source in sources:
        read_bytes = int(source.read_bytes)
        if mode == RealKvHashMode.PARTIAL:
            read_bytes = min(PARTIAL_READ_BYTES, int(source.num_bytes_per_token))
        acc = mix(acc ^ _source_hash(source, read_bytes, slots[inside]))
    hashes[inside] = acc


def hashes_of_slots(context: Any, slots: torch.Tensor) -> torch.Tensor:
    """Real-KV hash of each slot, int64 ``[n]``: 0 in mode NONE and without sources."""
    hashes = torch.zeros_like(slots)
    mode = int(context.real_kv_hash_mode)
    if mode != RealKvHashMode.NONE and context.real_kv_sources:
        fold_sources(context.real_kv_sources, mode, slots, hashes)
    return hashes


def hash_real_kv(
    *, real_kv_sources: Any, real_kv_hash_mode: Any, slot_indices: torch.Tensor, hashes_out: torch.Tensor
) -> None:
    """Run :func:`canary_numba.launch.launch_real_kv_hash_kernel` in torch."""
    fold_sources(real_kv_sources, int(real_kv_hash_mode), slot_indices, hashes_out)
