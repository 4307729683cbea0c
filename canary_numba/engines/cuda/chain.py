"""Walking the chain of one request: the serial part of write, kept to what must be serial.

A step needs the PREV_HASH of the step before, 3 splitmix64, and nothing makes one request faster than that. So all else
stays off that path. A warp stages 32 tokens in shared memory; its lanes fetch the next 32 and look for anything
special; then all lanes walk the same 32 steps, the hash before each token goes to shared memory, and they store
their 32 records together. Addresses and stores between the steps would cost as much as the steps do. 32 tokens with
anything special among them (a skipped slot, one named twice, a failed assert) go down a careful path instead, where
lane 0 does everything in order.

A request of few tokens, as every request is when it decodes, is a lane's: 32 of them wait for memory together.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from canary_numba.engines.cuda.chain_walks import make_step_careful, make_walk_careful, make_walk_plain
from canary_numba.engines.cuda.device import WARP, cuda, device_function, first_shift, shares_key, slot_hash, warp_sync
from canary_numba.engines.cuda.records import make_read_record, make_store_link
from canary_numba.engines.cuda.ring import append_row
from canary_numba.layout import FailReason
from canary_numba.mixing import CHAIN_HEAD_HASH

FEW = 4
"""Tokens up to which a request is one lane's."""
_PREV_RANGE = int(FailReason.VERIFY_PREV_SLOT_OUT_OF_RANGE)

_ZERO = np.uint64(0)
_ONE = np.uint64(1)
_TWO = np.uint64(2)
_FOUR = np.uint64(4)
_LANES = np.uint64(WARP)


def _make_begin_chain(paired: bool) -> Any:
    read_record = make_read_record(paired)

    @device_function
    def begin_chain(pool: Any, log: Any, begin: Any, end: Any, seed: Any, reports: Any) -> Any:
        """Hash and position that a chain starts from, and whether a record gave them; ``reports`` a seed beyond all."""
        if 0 <= seed < pool.num_slots and begin < end:
            token, position, prev_hash, _ = read_record(pool.records, np.uint64(seed) * pool.stride)
            return slot_hash(prev_hash, token, position), np.int64(position), True
        if seed >= pool.num_slots and begin < end and reports:
            append_row(log, begin, seed, 0, 0, -1, _ZERO, CHAIN_HEAD_HASH, _PREV_RANGE)
        return CHAIN_HEAD_HASH, np.int64(0), False

    return begin_chain


@lru_cache(maxsize=8)
def make_walk_few(paired: bool, keep_real_hash: bool) -> Any:
    """Build the device function by which one lane writes the chain of a request, of few tokens for speed.

    ``paired`` and ``keep_real_hash`` as for :func:`make_walk_request`; it returns the entries with a slot >= 0.
    """
    begin_chain = _make_begin_chain(paired)
    step_careful = make_step_careful(make_store_link(paired, keep_real_hash))

    @device_function
    def walk_few(pool: Any, given: Any, log: Any, begin: Any, end: Any, seed: Any, assert_chain: Any) -> Any:
        counted = np.int64(0)
        h, last_position, chained = begin_chain(pool, log, begin, end, seed, True)
        check_chain = chained and assert_chain
        entry = begin
        while entry < end:
            slot = np.int64(given.slots[entry])
            if slot >= 0:
                counted += 1
            token = np.int64(given.tokens[entry])
            position = np.int64(given.positions[entry])
            h, last_position = step_careful(
                pool, given, log, entry, slot, token, position, h, last_position, check_chain
            )
            entry += 1
        return counted

    return walk_few


@lru_cache(maxsize=8)
def make_walk_request(paired: bool, keep_real_hash: bool) -> Any:
    """Build the device function that writes the chain of flat entries ``begin`` to ``end`` of one request.

    Parameters
    ----------
    paired
        Records start at multiples of 16 bytes.
    keep_real_hash
        Someone else fills REAL_KV_HASH; otherwise it becomes 0.

    Returns
    -------
    Any
        A device function that all lanes of a warp call together. It returns the entries with a slot >= 0 that this
        lane saw. ``staged`` and ``staged_shifts`` (2 uint64 a thread: token and position, and their first shifts),
        ``staged_slot`` (int64 a thread) and ``state`` (4 uint64 a warp: hash and position that the careful path
        ends with, and whether it must be taken) are the block's shared memory.
    """
    begin_chain = _make_begin_chain(paired)
    store_link = make_store_link(paired, keep_real_hash)
    walk_plain = make_walk_plain(store_link)
    walk_careful = make_walk_careful(store_link)

    @device_function
    def walk_request(
        pool: Any,
        given: Any,
        log: Any,
        begin: Any,
        end: Any,
        seed: Any,
        assert_chain: Any,
        staged: Any,
        staged_shifts: Any,
        staged_slot: Any,
        state: Any,
    ) -> Any:
        thread = np.uint64(cuda.threadIdx.x)
        lane = thread % _LANES
        warp = thread // _LANES
        first = warp * _LANES
        counted = np.int64(0)
        h, last_position, chained = begin_chain(pool, log, begin, end, seed, lane == _ZERO)
        check_chain = chained and assert_chain
        entry = begin + np.int64(lane)
        next_slot = np.int64(-1)
        next_token = np.int64(0)
        next_position = np.int64(0)
        if entry < end:
            next_slot = np.int64(given.slots[entry])
            next_token = np.int64(given.tokens[entry])
            next_position = np.int64(given.positions[entry])
        base = begin
        while base < end:
            slot = next_slot
            token = next_token
            position = next_position
            count = min(end - base, np.int64(WARP))
            staged[_TWO * thread] = np.uint64(token)
            staged[_TWO * thread + _ONE] = np.uint64(position)
            staged_shifts[_TWO * thread] = first_shift(np.uint64(token))
            staged_shifts[_TWO * thread + _ONE] = first_shift(np.uint64(position))
            staged_slot[thread] = slot
            if base + np.int64(lane) >= end:
                staged_slot[thread] = -np.int64(lane) - 1
            if lane == _ZERO:
                state[_FOUR * warp + _TWO] = _ZERO
            warp_sync()
            repeated = shares_key(staged_slot, first, staged_slot[thread])
            # The loads of the next 32 are under way while these are walked.
            entry = base + np.int64(lane)
            if entry + np.int64(WARP) < end:
                next_slot = np.int64(given.slots[entry + np.int64(WARP)])
                next_token = np.int64(given.tokens[entry + np.int64(WARP)])
                next_position = np.int64(given.positions[entry + np.int64(WARP)])
            # An entry that needs more than a store and a step sends its 32 down the careful path.
            if entry < end:
                if slot >= 0:
                    counted += 1
                previous = last_position
                if lane > _ZERO:
                    previous = np.int64(staged[_TWO * thread - _ONE])
                plain = 0 <= slot < pool.num_slots and not (check_chain and position != previous + 1)
                if plain and given.assert_input:
                    plain = token == given.expected_tokens[entry] and position == given.expected_positions[entry]
                # Stores of one slot by two lanes would land in any order.
                if repeated or not plain:
                    state[_FOUR * warp + _TWO] = _ONE
            warp_sync()
            if state[_FOUR * warp + _TWO] == _ZERO:
                h = walk_plain(pool, staged, staged_shifts, first, np.uint64(count), lane, slot, token, position, h)
                last_position = np.int64(staged[_TWO * (first + np.uint64(count)) - _ONE])
            else:
                if lane == _ZERO:
                    h, last_position = walk_careful(
                        pool, given, log, staged, staged_slot, first, base, count, h, last_position, check_chain
                    )
                    state[_FOUR * warp] = h
                    state[_FOUR * warp + _ONE] = np.uint64(last_position)
                warp_sync()
                h = state[_FOUR * warp]
                last_position = np.int64(state[_FOUR * warp + _ONE])
            warp_sync()
            base += np.int64(WARP)
        return counted

    return walk_request
