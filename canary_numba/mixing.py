"""splitmix64 and the folds built on it, written once for the CPU, CUDA and the simulator.

Each function is an ``@njit`` scalar function over ``numpy.uint64``: the CPU engine calls it, a CUDA kernel inlines it
and a simulated kernel runs it compiled. The rules that keep the arithmetic exact (a signed operand silently turns an
unsigned expression signed, a comparison of the two goes through float64): every operand is a uint64, every constant is
bound below as one, no function takes a plain ``int``.

The mixer is the finalizer of Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators" (OOPSLA 2014),
with Stafford's constants (variant 13) and without the additive gamma.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from canary_numba.layout import (
    CANARY_CHAIN_ANCHOR,
    SPLITMIX64_MULTIPLIER_1,
    SPLITMIX64_MULTIPLIER_2,
    SPLITMIX64_SHIFTS,
)

U64 = np.uint64
_M1 = np.uint64(SPLITMIX64_MULTIPLIER_1)
_M2 = np.uint64(SPLITMIX64_MULTIPLIER_2)
_S1 = np.uint64(SPLITMIX64_SHIFTS[0])
_S2 = np.uint64(SPLITMIX64_SHIFTS[1])
_S3 = np.uint64(SPLITMIX64_SHIFTS[2])

_U64_MASK = (1 << 64) - 1


@njit
def splitmix64_u64(x: Any) -> Any:
    """Mix one word. ``x``: uint64. Returns uint64, a bijection of ``x``."""
    x = (x ^ (x >> _S1)) * _M1
    x = (x ^ (x >> _S2)) * _M2
    return x ^ (x >> _S3)


@njit
def slot_hash_u64(prev_hash: Any, token: Any, position: Any) -> Any:
    """Hash of a record, stored by its successor as PREV_HASH. All uint64 (two's complement of the int64 fields)."""
    h = splitmix64_u64(prev_hash)
    h = splitmix64_u64(h ^ token)
    return splitmix64_u64(h ^ position)


@njit
def fold_word(acc: Any, word: Any) -> Any:
    """Fold one little-endian 8-byte word, or one source's hash, into the uint64 accumulator ``acc``."""
    return splitmix64_u64(acc ^ word)


# splitmix64 is shift, multiply, shift, multiply, shift. Along a chain the last shift of a step, the word that is xored
# in and the first shift of the next step are all linear over xor, so they collapse into one stage. A walk that keeps
# the "open" state y, with h = y ^ (y >> 31), has fewer dependent operations a step: that is what bounds its speed.


@njit
def open_state(h: Any) -> Any:
    """The open state y of a mixed word ``h`` = y ^ (y >> 31). uint64 to uint64."""
    return h ^ (h >> _S3) ^ (h >> (_S3 + _S3))


@njit
def close_state(y: Any) -> Any:
    """The mixed word of an open state. uint64 to uint64."""
    return y ^ (y >> _S3)


@njit
def first_shift(word: Any) -> Any:
    """What a word contributes to an open step: its own share of the first shift. uint64 to uint64."""
    return word ^ (word >> _S1)


@njit
def open_step(y: Any, shifted: Any) -> Any:
    """The open state after ``splitmix64(h ^ word)``, with ``shifted`` = ``first_shift(word)``. All uint64."""
    x = (y ^ (y >> _S1)) ^ ((y >> _S3) ^ ((y >> (_S1 + _S3)) ^ shifted))
    x = x * _M1
    x = x ^ (x >> _S2)
    return x * _M2


def splitmix64(value: int) -> int:
    """Mix one 64-bit word given as a Python int; the result is in ``[0, 2**64)``."""
    x = value & _U64_MASK
    x = ((x ^ (x >> SPLITMIX64_SHIFTS[0])) * SPLITMIX64_MULTIPLIER_1) & _U64_MASK
    x = ((x ^ (x >> SPLITMIX64_SHIFTS[1])) * SPLITMIX64_MULTIPLIER_2) & _U64_MASK
    return x ^ (x >> SPLITMIX64_SHIFTS[2])


def splitmix64_mix3(a: int, b: int, c: int) -> int:
    """Chain three 64-bit words given as Python ints (negative ones enter as two's complement)."""
    h = splitmix64(a)
    h = splitmix64(h ^ (b & _U64_MASK))
    return splitmix64(h ^ (c & _U64_MASK))


_INVERSE_1 = pow(SPLITMIX64_MULTIPLIER_1, -1, 1 << 64)
_INVERSE_2 = pow(SPLITMIX64_MULTIPLIER_2, -1, 1 << 64)


def splitmix64_inverse(value: int) -> int:
    """Undo :func:`splitmix64`: the word that it mixes to ``value``, in ``[0, 2**64)``."""
    first, second, last = SPLITMIX64_SHIFTS
    x = value & _U64_MASK
    x ^= (x >> last) ^ (x >> 2 * last)
    x = (x * _INVERSE_2) & _U64_MASK
    x ^= (x >> second) ^ (x >> 2 * second)
    x = (x * _INVERSE_1) & _U64_MASK
    return x ^ (x >> first) ^ (x >> 2 * first)


def splitmix64_mix3_middle(a: int, c: int, mixed: int) -> int:
    """Solve ``splitmix64_mix3(a, b, c) == mixed`` for ``b``, in ``[0, 2**64)``: always one solution.

    With ``a`` the PREV_HASH that belongs at position ``c`` and ``mixed`` the PREV_HASH stored at position ``c + 1``, it
    is the token that stood at ``c``. A solution that is no token id says that the two do not belong to one chain.
    """
    h = splitmix64_inverse(mixed) ^ (c & _U64_MASK)
    return splitmix64_inverse(h) ^ splitmix64(a)


CHAIN_HEAD_HASH = np.uint64(splitmix64(CANARY_CHAIN_ANCHOR))
"""PREV_HASH of the first record of a chain."""
