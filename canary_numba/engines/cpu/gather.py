"""Gathering the K/V bytes of scattered slots into one packed piece, in parallel over slots."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import njit, prange

from canary_numba.sources import FlatSource


@njit(parallel=True, cache=True)
def _gather(data: Any, row_stride: Any, page_size: Any, token_size: Any, read_size: Any, slots: Any, out: Any) -> None:
    num_slots = slots.shape[0]
    for i in prange(num_slots):
        slot = slots[i]
        start = (slot // page_size) * row_stride + (slot % page_size) * token_size
        for k in range(read_size):
            out[i, k] = data[start + k]
        for k in range(read_size, out.shape[1]):
            out[i, k] = 0


def gather_slots(source: FlatSource, slots: torch.Tensor, out: torch.Tensor) -> None:
    """Copy what a hash mode reads of each slot into a row of ``out``; the rest of the row becomes zero.

    Parameters
    ----------
    source
        Where from; its bytes are on the CPU.
    slots
        int64 ``[n]``, all of them slots of the source.
    out
        uint8 ``[n, width]``, ``width`` a multiple of 8 of at least ``source.read_bytes``; contiguous, aligned to 8.
    """
    if source.alignment >= 8:
        words = source.words.numpy().view(np.uint64)
        sizes = (source.row_stride // 8, source.page_size, source.token_bytes // 8, source.read_bytes // 8)
        _gather(words, *sizes, slots.numpy(), out.numpy().view(np.uint64))
    else:
        sizes = (source.row_stride, source.page_size, source.token_bytes, source.read_bytes)
        _gather(source.flat.numpy(), *sizes, slots.numpy(), out.numpy())
