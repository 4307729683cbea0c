"""Folding K/V bytes on the CPU, in parallel over slots, straight from the source's memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numba import njit, prange

from canary_numba.mixing import fold_word
from canary_numba.sources import FlatSource, flatten_source

_BYTE = np.uint64(8)


@njit(parallel=True, cache=True)
def _fold_words(words: Any, row_words: Any, page_size: Any, token_words: Any, read_words: Any, slots: Any, out: Any):
    num_slots = slots.shape[0]
    for i in prange(num_slots):
        slot = slots[i]
        if slot >= 0:
            start = (slot // page_size) * row_words + (slot % page_size) * token_words
            acc = np.uint64(0)
            for k in range(read_words):
                acc = fold_word(acc, words[start + k])
            out[i] = fold_word(out[i], acc)


@njit(parallel=True, cache=True)
def _fold_bytes(data: Any, row_bytes: Any, page_size: Any, token_bytes: Any, read_bytes: Any, slots: Any, out: Any):
    num_slots = slots.shape[0]
    for i in prange(num_slots):
        slot = slots[i]
        if slot >= 0:
            start = (slot // page_size) * row_bytes + (slot % page_size) * token_bytes
            acc = np.uint64(0)
            for word_start in range(0, read_bytes, 8):
                word = np.uint64(0)
                for b in range(min(8, read_bytes - word_start)):
                    word |= np.uint64(data[start + word_start + b]) << (np.uint64(b) * _BYTE)
                acc = fold_word(acc, word)
            out[i] = fold_word(out[i], acc)


def fold_sources(sources: Sequence[FlatSource], slots: np.ndarray, hashes: np.ndarray) -> None:
    """Fold each source, in order, into ``hashes`` (uint64 ``[n]``, in place) for ``slots`` (int64 ``[n]``).

    A slot outside any of the sources leaves its hash as it is.
    """
    limit = min(source.num_slots for source in sources)
    inside = np.where(slots < limit, slots, -1)
    for source in sources:
        if source.alignment >= 8:
            _fold_words(
                source.words.numpy().view(np.uint64),
                source.row_stride // 8,
                source.page_size,
                source.token_bytes // 8,
                source.read_bytes // 8,
                inside,
                hashes,
            )
        else:
            _fold_bytes(
                source.flat.numpy(),
                source.row_stride,
                source.page_size,
                source.token_bytes,
                source.read_bytes,
                inside,
                hashes,
            )


def hash_real_kv(
    *, real_kv_sources: Any, real_kv_hash_mode: Any, slot_indices: torch.Tensor, hashes_out: torch.Tensor
) -> None:
    """Run :func:`canary_numba.launch.launch_real_kv_hash_kernel` on the CPU."""
    sources = [flatten_source(source, real_kv_hash_mode) for source in real_kv_sources]
    fold_sources(sources, slot_indices.numpy(), hashes_out.numpy().view(np.uint64))
