"""What the plan kernels are made of: a scan over a block, the request of an entry, the slot of a position."""

from __future__ import annotations

from typing import Any

import numpy as np

from canary_numba.engines.cuda.device import BLOCK_THREADS, cuda, device_function
from canary_numba.layout import SLOT_OUT_OF_RANGE

_OUT_OF_RANGE = np.int64(SLOT_OUT_OF_RANGE)
_INT32_ONE = np.int32(1)
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
def verify_start(starts: Any, request: Any) -> Any:
    """First verify entry of ``request``: what the chunks before its own hold, and its place in its chunk."""
    return starts.of_chunk[request >> starts.shift] + starts.in_chunk[request]


@device_function
def find_request(starts: Any, bs: Any, entry: Any) -> Any:
    """The request that ``entry`` belongs to, the last of all ``bs`` that starts at or before it.

    All threads of the block call it together. Each round cuts the range by ``BLOCK_THREADS``: two loads one after
    another for 65,536 requests, where bisecting takes sixteen.
    """
    thread = np.int64(cuda.threadIdx.x)
    low = np.int64(0)
    high = bs
    while high - low > 1:
        reach = (high - low + np.int64(BLOCK_THREADS - 1)) >> _BLOCK_SHIFT
        probe = low + thread * reach
        started = 0
        if probe < high and verify_start(starts, probe) <= entry:
            started = 1
        low += (np.int64(cuda.syncthreads_count(started)) - 1) * reach
        high = min(low + reach, high)
    return low


@device_function
def find_start(starts: Any, first: Any, last: Any, entry: Any) -> Any:
    """Index of the last of ``starts[first:last]`` (all int32) that is at most ``entry``; the first of them is."""
    low = first
    high = last
    # Cast back at each step: Numba makes the sum of two int32 an int64, of twice the instructions.
    while np.int32(high - low) > 1:
        middle = np.int32(np.int32(low + high) >> _INT32_ONE)
        if starts[np.uint32(middle)] <= entry:
            low = middle
        else:
            high = middle
    return low


@device_function
def row_start(table: Any, row: Any) -> Any:
    """Where ``row`` of flat cells starts; -1 for a row outside the table."""
    if row < 0 or row >= table.rows:
        return np.int64(-1)
    return row * table.stride


@device_function
def lookup_slot(table: Any, start: Any, position: Any) -> Any:
    """The slot that the row starting at ``start`` holds at ``position`` >= 0, through the mapping if there is one."""
    if start < 0 or position >= table.width:
        return _OUT_OF_RANGE
    slot = np.int64(table.cells[np.uint64(start + position)])
    if table.has_mapping != 0 and slot >= 0:
        if slot >= table.mapping.shape[0]:
            return _OUT_OF_RANGE
        return np.int64(table.mapping[np.uint64(slot)])
    return slot


@device_function
def lookup_token(known: Any, start: Any, length: Any, position: Any) -> Any:
    """The token of ``position``, in the row starting at ``start`` of which ``length`` are known; otherwise -1."""
    column = position + known.offset
    if start < 0 or column >= length:
        return np.int64(-1)
    return np.int64(known.cells[np.uint64(start + column)])
