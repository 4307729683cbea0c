"""What the plan kernels are made of: a scan over a block, the request of an entry, the slot of a position."""

from __future__ import annotations

from typing import Any

import numpy as np

from canary_numba.engines.cuda.device import BLOCK_THREADS, cuda, device_function
from canary_numba.layout import SLOT_OUT_OF_RANGE

_OUT_OF_RANGE = np.int64(SLOT_OUT_OF_RANGE)
_BLOCK_SHIFT = np.int64(BLOCK_THREADS.bit_length() - 1)


@device_function
def block_exclusive_scan(verify: Any, write: Any, verify_sums: Any, write_sums: Any) -> Any:
    """Sums of ``verify`` and ``write`` over the threads before this one; totals stand at index ``BLOCK_THREADS - 1``.

    Hillis and Steele's scan in shared memory (int64 ``[BLOCK_THREADS]`` each); all threads call it together.
    """
    thread = np.int64(cuda.threadIdx.x)
    verify_sums[thread] = verify
    write_sums[thread] = write
    cuda.syncthreads()
    reach = np.int64(1)
    while reach < BLOCK_THREADS:
        more_verify = np.int64(0)
        more_write = np.int64(0)
        if thread >= reach:
            more_verify = verify_sums[thread - reach]
            more_write = write_sums[thread - reach]
        cuda.syncthreads()
        verify_sums[thread] += more_verify
        write_sums[thread] += more_write
        cuda.syncthreads()
        reach += reach
    return verify_sums[thread] - verify, write_sums[thread] - write


@device_function
def verify_start(verify_starts: Any, verify_bases: Any, shift: Any, request: Any) -> Any:
    """First verify entry of ``request``: what the chunks before its own hold, and its place in its chunk."""
    return verify_bases[request >> shift] + verify_starts[request]


@device_function
def find_request(verify_starts: Any, verify_bases: Any, shift: Any, first: Any, last: Any, entry: Any) -> Any:
    """The request in ``[first, last)`` that ``entry`` belongs to: the last one that starts at or before it."""
    low = first
    high = last
    while high - low > 1:
        middle = (low + high) >> 1
        if verify_start(verify_starts, verify_bases, shift, middle) <= entry:
            low = middle
        else:
            high = middle
    return low


@device_function
def find_request_together(verify_starts: Any, verify_bases: Any, shift: Any, first: Any, last: Any, entry: Any) -> Any:
    """Same as :func:`find_request`, by all threads of the block together.

    Each round cuts the range by ``BLOCK_THREADS``: two loads one after another for 65,536 requests, where bisecting
    takes sixteen.
    """
    thread = np.int64(cuda.threadIdx.x)
    low = first
    high = last
    while high - low > 1:
        reach = (high - low + np.int64(BLOCK_THREADS - 1)) >> _BLOCK_SHIFT
        probe = low + thread * reach
        started = 0
        if probe < high and verify_start(verify_starts, verify_bases, shift, probe) <= entry:
            started = 1
        low += (np.int64(cuda.syncthreads_count(started)) - 1) * reach
        high = min(low + reach, high)
    return low


@device_function
def lookup_slot(
    table: Any, stride: Any, num_rows: Any, width: Any, row: Any, position: Any, mapping: Any, has_mapping: Any
) -> Any:
    """The slot that ``row`` holds at ``position``, through the mapping if there is one."""
    if row < 0 or row >= num_rows or position >= width:
        return _OUT_OF_RANGE
    slot = np.int64(table[row * stride + position])
    if has_mapping != 0 and slot >= 0:
        if slot >= mapping.shape[0]:
            return _OUT_OF_RANGE
        return np.int64(mapping[slot])
    return slot
