"""Reading and storing 32-byte records in a kernel, in two 16-byte accesses where the buffer is aligned for them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch

from canary_numba.engines.cuda.device import device_function, load_pair, store_pair

_ZERO = np.uint64(0)
_ONE = np.uint64(1)
_TWO = np.uint64(2)
_THREE = np.uint64(3)


def records_are_paired(canary_buf: torch.Tensor) -> bool:
    """Whether every record of the buffer starts at a multiple of 16 bytes."""
    return canary_buf.data_ptr() % 16 == 0 and canary_buf.shape[1] % 16 == 0


def record_words(canary_buf: torch.Tensor) -> torch.Tensor:
    """The buffer as flat uint64 words, sharing its memory."""
    return canary_buf.view(torch.uint64).view(-1)


@lru_cache(maxsize=8)
def make_read_record(paired: bool) -> Any:
    """Build the device function that reads a record: (token, position, prev hash, real-KV hash), all uint64.

    ``paired``: the buffer's address and stride are multiples of 16, so two accesses do.
    """

    @device_function
    def read_record(records: Any, at: Any) -> Any:
        if paired:
            token, position = load_pair(records, at)
            prev_hash, real_hash = load_pair(records, at + _TWO)
            return token, position, prev_hash, real_hash
        return records[at], records[at + _ONE], records[at + _TWO], records[at + _THREE]

    return read_record


@lru_cache(maxsize=8)
def make_store_link(paired: bool, keep_real_hash: bool) -> Any:
    """Build the device function that stores token, position and prev hash of a record (uint64), real-KV hash 0.

    ``keep_real_hash``: someone else fills that field, so it is left alone.
    """

    @device_function
    def store_link(records: Any, at: Any, token: Any, position: Any, prev_hash: Any) -> None:
        if paired:
            store_pair(records, at, token, position)
        else:
            records[at] = token
            records[at + _ONE] = position
        if keep_real_hash:
            records[at + _TWO] = prev_hash
        elif paired:
            store_pair(records, at + _TWO, prev_hash, _ZERO)
        else:
            records[at + _TWO] = prev_hash
            records[at + _THREE] = _ZERO

    return store_link
