"""Which positions a plan covers: scalar rules that the CPU engine and the CUDA kernels share.

Lengths and rows come from a process that may be corrupt, so every rule is total: any int64 gives a bounded answer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from canary_numba.layout import REQ_POOL_IDX_PADDING

_PADDING_ROW = np.int64(REQ_POOL_IDX_PADDING)
_ZERO = np.int64(0)
_ONE = np.int64(1)


@njit
def effective_prefix(row: Any, prefix: Any, width: Any) -> Any:
    """Cached tokens to look at: 0 for padding rows and negative prefixes, at most one past the table's width (int64).

    The one entry past the width stands for all positions that the table cannot hold.
    """
    if row == _PADDING_ROW or prefix < _ZERO:
        return _ZERO
    return min(prefix, width + _ONE)


@njit
def window_start(prefix: Any, window: Any) -> Any:
    """First position that a window of ``window`` tokens (0 = all) keeps of ``prefix`` (int64)."""
    if window > _ZERO and prefix > window:
        return prefix - window
    return _ZERO


@njit
def write_length(row: Any, extend: Any) -> Any:
    """Tokens to write: none for padding rows and negative lengths (int64)."""
    if row == _PADDING_ROW or extend < _ZERO:
        return _ZERO
    return extend
