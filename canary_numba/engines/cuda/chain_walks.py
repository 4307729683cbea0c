"""The two ways to walk 32 staged tokens: all lanes together at full speed, or one lane with an eye on everything.

The careful step of one token also serves requests of few tokens, a lane each.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from canary_numba.engines.cuda.device import (
    close_state,
    device_function,
    load_pair,
    open_state,
    open_step,
    slot_hash,
    warp_sync,
)
from canary_numba.engines.cuda.ring import append_row
from canary_numba.layout import FailReason

_WRITE_TOKEN = int(FailReason.WRITE_TOKEN_MISMATCH)
_WRITE_POSITION = int(FailReason.WRITE_POSITION_MISMATCH)
_SLOT_RANGE = int(FailReason.VERIFY_SLOT_OUT_OF_RANGE)

_ZERO = np.uint64(0)
_ONE = np.uint64(1)
_TWO = np.uint64(2)
_UNROLL = 8
_UNROLLED = np.uint64(_UNROLL)


def make_walk_plain(store_link: Any) -> Any:
    """Build the device function that walks ``count`` staged tokens of which none is special, and stores their records.

    It takes the hash before the first and returns the one after the last.
    """

    @device_function
    def step(staged_shifts: Any, at: Any, y: Any) -> Any:
        token_shift, position_shift = load_pair(staged_shifts, _TWO * at)
        return open_step(open_step(open_step(y, _ZERO), token_shift), position_shift)

    @device_function
    def walk_plain(
        pool: Any,
        staged: Any,
        staged_shifts: Any,
        first: Any,
        count: Any,
        lane: Any,
        slot: Any,
        token: Any,
        position: Any,
        h: Any,
    ) -> Any:
        y = open_state(h)
        leads = lane == _ZERO
        k = _ZERO
        while k + _UNROLLED <= count:
            for i in range(_UNROLL):
                at = first + k + np.uint64(i)
                if leads:
                    staged[_TWO * at] = y
                y = step(staged_shifts, at, y)
            k += _UNROLLED
        while k < count:
            if leads:
                staged[_TWO * (first + k)] = y
            y = step(staged_shifts, first + k, y)
            k += _ONE
        warp_sync()
        if lane < count:
            before = close_state(staged[_TWO * (first + lane)])
            store_link(pool.records, np.uint64(slot) * pool.stride, np.uint64(token), np.uint64(position), before)
        return close_state(y)

    return walk_plain


def make_step_careful(store_link: Any) -> Any:
    """Build the device function by which one lane writes one token of any kind, the ``entry``-th of all.

    It takes and returns the hash and the position before. A negative slot leaves both as they are.
    """

    @device_function
    def step_careful(
        pool: Any,
        given: Any,
        log: Any,
        entry: Any,
        slot: Any,
        token: Any,
        position: Any,
        h: Any,
        last_position: Any,
        check_chain: Any,
    ) -> Any:
        if slot < 0:
            return h, last_position
        expected_token = token
        expected_position = position
        bits = 0
        if given.assert_input:
            expected_token = np.int64(given.expected_tokens[entry])
            expected_position = np.int64(given.expected_positions[entry])
            if token != expected_token:
                bits |= _WRITE_TOKEN
            if position != expected_position:
                bits |= _WRITE_POSITION
        if slot >= pool.num_slots:
            bits |= _SLOT_RANGE
        if bits != 0:
            append_row(log, entry, slot, position, token, expected_token, h, expected_position, bits)
        if slot >= pool.num_slots:
            return h, last_position
        if check_chain and position != last_position + 1:
            append_row(log, entry, slot, position, token, token, h, last_position + 1, _WRITE_POSITION)
        store_link(pool.records, np.uint64(slot) * pool.stride, np.uint64(token), np.uint64(position), h)
        return slot_hash(h, np.uint64(token), np.uint64(position)), position

    return step_careful


def make_walk_careful(store_link: Any) -> Any:
    """Build the device function by which one lane walks ``count`` staged tokens of any kind.

    It takes and returns the hash and the position before; ``base`` is the flat index of the first.
    """
    step_careful = make_step_careful(store_link)

    @device_function
    def walk_careful(
        pool: Any,
        given: Any,
        log: Any,
        staged: Any,
        staged_slot: Any,
        first: Any,
        base: Any,
        count: Any,
        h: Any,
        last_position: Any,
        check_chain: Any,
    ) -> Any:
        for k in range(count):
            at = first + np.uint64(k)
            h, last_position = step_careful(
                pool,
                given,
                log,
                base + k,
                staged_slot[at],
                np.int64(staged[_TWO * at]),
                np.int64(staged[_TWO * at + _ONE]),
                h,
                last_position,
                check_chain,
            )
        return h, last_position

    return walk_careful
