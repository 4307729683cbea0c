"""Folding K/V bytes on the CPU, in parallel over slots, straight from the source's memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numba import njit, prange

from canary_numba.mixing import fold_word
from canary_numba.sources import FlatSource, flatten_source

_ZERO = np.uint64(0)
_ONE = np.uint64(1)
_BYTE = np.uint64(8)
_GROUP = 64


@njit
def _start_of(slot: Any, row_size: Any, page_size: Any, token_size: Any):
    # Unsigned: a signed index would be tested for counting from the end at every load.
    if page_size == 1:
        return np.uint64(slot * row_size)
    return np.uint64((slot // page_size) * row_size + (slot % page_size) * token_size)


@njit
def _inside(slot: Any, limit: Any):
    # As an unsigned number, a negative slot is beyond every limit.
    return np.uint64(slot) < np.uint64(limit)


@njit
def _slot_at(slots: Any, i: Any, limit: Any):
    """The slot, or -1 where there is none to fold."""
    return slots[i] if i < slots.shape[0] and _inside(slots[i], limit) else np.int64(-1)


@njit
def _put(out: Any, i: Any, slot: Any, source_hash: Any):
    if slot >= 0:
        out[i] = fold_word(out[i], source_hash)


@njit(parallel=True, cache=True)
def _fold_words(
    words: Any, row_words: Any, page_size: Any, token_words: Any, read_words: Any, slots: Any, limit: Any, out: Any
):
    # A fold is one long chain of dependent multiplications; eight at a time keep the multiplier busy. A slot that is
    # not to be folded is read like slot 0, and then left out.
    for step in prange((slots.shape[0] + 7) // 8):
        i = 8 * step
        slot_0 = _slot_at(slots, i, limit)
        slot_1 = _slot_at(slots, i + 1, limit)
        slot_2 = _slot_at(slots, i + 2, limit)
        slot_3 = _slot_at(slots, i + 3, limit)
        slot_4 = _slot_at(slots, i + 4, limit)
        slot_5 = _slot_at(slots, i + 5, limit)
        slot_6 = _slot_at(slots, i + 6, limit)
        slot_7 = _slot_at(slots, i + 7, limit)
        start_0 = _start_of(max(slot_0, 0), row_words, page_size, token_words)
        start_1 = _start_of(max(slot_1, 0), row_words, page_size, token_words)
        start_2 = _start_of(max(slot_2, 0), row_words, page_size, token_words)
        start_3 = _start_of(max(slot_3, 0), row_words, page_size, token_words)
        start_4 = _start_of(max(slot_4, 0), row_words, page_size, token_words)
        start_5 = _start_of(max(slot_5, 0), row_words, page_size, token_words)
        start_6 = _start_of(max(slot_6, 0), row_words, page_size, token_words)
        start_7 = _start_of(max(slot_7, 0), row_words, page_size, token_words)
        acc_0 = acc_1 = acc_2 = acc_3 = acc_4 = acc_5 = acc_6 = acc_7 = _ZERO
        for k in range(np.uint64(read_words)):
            acc_0 = fold_word(acc_0, words[start_0 + k])
            acc_1 = fold_word(acc_1, words[start_1 + k])
            acc_2 = fold_word(acc_2, words[start_2 + k])
            acc_3 = fold_word(acc_3, words[start_3 + k])
            acc_4 = fold_word(acc_4, words[start_4 + k])
            acc_5 = fold_word(acc_5, words[start_5 + k])
            acc_6 = fold_word(acc_6, words[start_6 + k])
            acc_7 = fold_word(acc_7, words[start_7 + k])
        _put(out, i, slot_0, acc_0)
        _put(out, i + 1, slot_1, acc_1)
        _put(out, i + 2, slot_2, acc_2)
        _put(out, i + 3, slot_3, acc_3)
        _put(out, i + 4, slot_4, acc_4)
        _put(out, i + 5, slot_5, acc_5)
        _put(out, i + 6, slot_6, acc_6)
        _put(out, i + 7, slot_7, acc_7)


@njit(parallel=True, cache=True)
def _fold_pairs(words: Any, row_words: Any, page_size: Any, token_words: Any, slots: Any, limit: Any, out: Any):
    # What PARTIAL reads of a slot, two words, is folded in less time than it takes to arrive. A loop that does nothing
    # but load has many slots under way at once.
    num_slots = slots.shape[0]
    for group in prange((num_slots + _GROUP - 1) // _GROUP):
        begin = group * _GROUP
        end = min(begin + _GROUP, num_slots)
        loaded = np.empty(2 * _GROUP, dtype=np.uint64)
        for i in range(begin, end):
            slot = slots[i] if _inside(slots[i], limit) else np.int64(0)
            start = _start_of(slot, row_words, page_size, token_words)
            loaded[2 * (i - begin)] = words[start]
            loaded[2 * (i - begin) + 1] = words[start + _ONE]
        for i in range(begin, end):
            if _inside(slots[i], limit):
                acc = fold_word(fold_word(_ZERO, loaded[2 * (i - begin)]), loaded[2 * (i - begin) + 1])
                out[i] = fold_word(out[i], acc)


@njit(parallel=True, cache=True)
def _fold_bytes(
    data: Any, row_bytes: Any, page_size: Any, token_bytes: Any, read_bytes: Any, slots: Any, limit: Any, out: Any
):
    for i in prange(slots.shape[0]):
        slot = slots[i]
        if _inside(slot, limit):
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
    for source in sources:
        if source.alignment >= 8:
            words = source.words.numpy().view(np.uint64)
            row_words, token_words = source.row_stride // 8, source.token_bytes // 8
            if source.read_bytes == 16:
                _fold_pairs(words, row_words, source.page_size, token_words, slots, limit, hashes)
            else:
                read_words = source.read_bytes // 8
                _fold_words(words, row_words, source.page_size, token_words, read_words, slots, limit, hashes)
        else:
            sizes = (source.row_stride, source.page_size, source.token_bytes, source.read_bytes)
            _fold_bytes(source.flat.numpy(), *sizes, slots, limit, hashes)


def hash_real_kv(
    *, real_kv_sources: Any, real_kv_hash_mode: Any, slot_indices: torch.Tensor, hashes_out: torch.Tensor
) -> None:
    """Run :func:`canary_numba.launch.launch_real_kv_hash_kernel` on the CPU."""
    sources = [flatten_source(source, real_kv_hash_mode) for source in real_kv_sources]
    fold_sources(sources, slot_indices.numpy(), hashes_out.numpy().view(np.uint64))
