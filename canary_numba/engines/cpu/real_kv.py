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


@njit
def _start_of(slot: Any, row_size: Any, page_size: Any, token_size: Any):
    # A slot that is not to be folded is read like slot 0, and then left out. Unsigned: a signed index would be tested
    # for counting from the end at every load.
    slot = max(slot, 0)
    return np.uint64((slot // page_size) * row_size + (slot % page_size) * token_size)


@njit(parallel=True, cache=True)
def _fold_words(words: Any, row_words: Any, page_size: Any, token_words: Any, read_words: Any, slots: Any, out: Any):
    # A fold is one long chain of dependent multiplications; four at a time keep the multiplier busy.
    num_slots = slots.shape[0]
    for step in prange((num_slots + 3) // 4):
        i = 4 * step
        slot_0 = slots[i]
        slot_1 = slots[i + 1] if i + 1 < num_slots else -1
        slot_2 = slots[i + 2] if i + 2 < num_slots else -1
        slot_3 = slots[i + 3] if i + 3 < num_slots else -1
        start_0 = _start_of(slot_0, row_words, page_size, token_words)
        start_1 = _start_of(slot_1, row_words, page_size, token_words)
        start_2 = _start_of(slot_2, row_words, page_size, token_words)
        start_3 = _start_of(slot_3, row_words, page_size, token_words)
        acc_0 = acc_1 = acc_2 = acc_3 = np.uint64(0)
        for k in range(np.uint64(read_words)):
            acc_0 = fold_word(acc_0, words[start_0 + k])
            acc_1 = fold_word(acc_1, words[start_1 + k])
            acc_2 = fold_word(acc_2, words[start_2 + k])
            acc_3 = fold_word(acc_3, words[start_3 + k])
        if slot_0 >= 0:
            out[i] = fold_word(out[i], acc_0)
        if slot_1 >= 0:
            out[i + 1] = fold_word(out[i + 1], acc_1)
        if slot_2 >= 0:
            out[i + 2] = fold_word(out[i + 2], acc_2)
        if slot_3 >= 0:
            out[i + 3] = fold_word(out[i + 3], acc_3)


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
    if limit == 0:
        return
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
