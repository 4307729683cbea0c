"""64-bit unsigned arithmetic on torch int64 tensors, and the hashes built on it.

torch's uint64 lacks addition and shifts, so words are int64 in two's complement: addition, multiplication and xor wrap
to the same bits, only the right shift needs the sign bits masked away.
"""

from __future__ import annotations

import torch

from canary_numba.layout import (
    CANARY_CHAIN_ANCHOR,
    CANARY_FIELD_POSITION,
    CANARY_FIELD_PREV_HASH,
    CANARY_FIELD_TOKEN,
    CANARY_FIELDS_PER_SLOT,
    SPLITMIX64_MULTIPLIER_1,
    SPLITMIX64_MULTIPLIER_2,
    SPLITMIX64_SHIFTS,
)


def signed_word(value: int) -> int:
    """Return the int64 that has the low 64 bits of ``value``."""
    low = value % 2**64
    return low - 2**64 if low >= 2**63 else low


_MULTIPLIERS = (signed_word(SPLITMIX64_MULTIPLIER_1), signed_word(SPLITMIX64_MULTIPLIER_2))


def logical_shift_right(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Shift int64 words right by ``bits`` (1 to 63), filling with zeros."""
    return (words >> bits) & ((1 << (64 - bits)) - 1)


def mix(words: torch.Tensor) -> torch.Tensor:
    """Mix every int64 word with splitmix64's finalizer; same shape, a new tensor."""
    first, second, last = SPLITMIX64_SHIFTS
    words = (words ^ logical_shift_right(words, first)) * _MULTIPLIERS[0]
    words = (words ^ logical_shift_right(words, second)) * _MULTIPLIERS[1]
    return words ^ logical_shift_right(words, last)


_INVERSES = tuple(
    signed_word(pow(multiplier, -1, 2**64)) for multiplier in (SPLITMIX64_MULTIPLIER_1, SPLITMIX64_MULTIPLIER_2)
)


def unmix(words: torch.Tensor) -> torch.Tensor:
    """Undo :func:`mix`: the words that it mixes to ``words``."""
    first, second, last = SPLITMIX64_SHIFTS
    words = _undo_shift(words, last) * _INVERSES[1]
    words = _undo_shift(words, second) * _INVERSES[0]
    return _undo_shift(words, first)


def _undo_shift(words: torch.Tensor, bits: int) -> torch.Tensor:
    # Two terms are enough for shifts of 22 bits and more: the third would shift everything out.
    return words ^ logical_shift_right(words, bits) ^ logical_shift_right(words, 2 * bits)


def slot_hash(prev_hash: torch.Tensor, token: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """Hash records: what the successor of each stores as PREV_HASH. All int64 of one shape."""
    return mix(mix(mix(prev_hash) ^ token) ^ position)


CHAIN_HEAD_WORD = int(mix(torch.tensor(signed_word(CANARY_CHAIN_ANCHOR), dtype=torch.int64)))
"""PREV_HASH of the first record of a chain, as int64."""


def records_of(canary_buf: torch.Tensor) -> torch.Tensor:
    """View the uint8 ``[num_slots, stride]`` buffer as int64 ``[num_slots, stride / 8]``."""
    return canary_buf.view(torch.int64)


def within(indices: torch.Tensor, length: int) -> torch.Tensor:
    """Tell which indices are in ``[0, length)`` (bool, same shape)."""
    return (indices >= 0) & (indices < length)


def gather(values: torch.Tensor, indices: torch.Tensor, missing: int) -> torch.Tensor:
    """Read ``values[indices]`` along dimension 0, and ``missing`` for every index that is outside."""
    inside = within(indices, values.shape[0])
    out = torch.full((indices.shape[0], *values.shape[1:]), missing, dtype=values.dtype, device=values.device)
    out[inside] = values[indices[inside]]
    return out


def read_records(records: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Read the four fields of each slot, int64 ``[n, 4]``; zeros for a slot outside the buffer."""
    return gather(records[:, :CANARY_FIELDS_PER_SLOT], slots, 0)


def hash_records(fields: torch.Tensor) -> torch.Tensor:
    """Slot hash of each row of int64 ``[n, 4]`` records."""
    return slot_hash(fields[:, CANARY_FIELD_PREV_HASH], fields[:, CANARY_FIELD_TOKEN], fields[:, CANARY_FIELD_POSITION])
