"""splitmix64, the chain hash and the byte fold: published pins, and the compiled functions against plain integers."""

from __future__ import annotations

import hypothesis.strategies as st
import naive
import numpy as np
import pytest
import torch
from hypothesis import given

from canary_numba import compute_slot_hash, mixing, splitmix64, splitmix64_mix3
from canary_numba.errors import ArgumentError
from canary_numba.reference import words

ANCHOR = 0xC0FFEE1234567890
PINS = {0: 0, 1: 0x5692161D100B05E5, 2**64 - 1: 0xB4D055FCF2CBBD7B, ANCHOR: 0xDE7FAE23A9A1B716}
# The published outputs of the generator seeded with 0 are the mixer on multiples of the golden gamma.
GOLDEN_GAMMA = 0x9E3779B97F4A7C15
GENERATOR_OUTPUTS = (0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F)

u64s = st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1])


@pytest.mark.parametrize(("value", "expected"), list(PINS.items()))
def test_pins(value: int, expected: int) -> None:
    assert splitmix64(value) == expected
    assert int(mixing.splitmix64_u64(np.uint64(value))) == expected
    assert int(words.mix(torch.tensor(naive.signed(value)))) % 2**64 == expected


@pytest.mark.parametrize(("step", "expected"), list(enumerate(GENERATOR_OUTPUTS, start=1)))
def test_published_generator_outputs(step: int, expected: int) -> None:
    assert splitmix64(step * GOLDEN_GAMMA) == expected


@given(u64s)
def test_splitmix64_is_the_same_everywhere(value: int) -> None:
    expected = naive.splitmix64(value)
    assert splitmix64(value) == expected
    assert int(mixing.splitmix64_u64(np.uint64(value))) == expected
    assert int(words.mix(torch.tensor(naive.signed(value)))) % 2**64 == expected


@given(u64s, u64s, u64s)
def test_the_slot_hash_is_the_same_everywhere(prev_hash: int, token: int, position: int) -> None:
    expected = naive.mix3(prev_hash, token, position)
    assert splitmix64_mix3(prev_hash, token, position) == expected
    assert splitmix64_mix3(*map(naive.signed, (prev_hash, token, position))) == expected
    assert int(mixing.slot_hash_u64(*map(np.uint64, (prev_hash, token, position)))) == expected
    record = torch.tensor([[0, 0, 0, 0], [*map(naive.signed, (token, position, prev_hash)), 7]])
    assert compute_slot_hash(record, 1) == expected


@given(st.binary(max_size=41))
def test_the_byte_fold_pads_its_last_word_with_zeros(data: bytes) -> None:
    acc = np.uint64(0)
    padded = data + bytes(-len(data) % 8)
    for word in np.frombuffer(padded, dtype="<u8"):
        acc = np.uint64(mixing.fold_word(acc, word))
    assert int(acc) == naive.fold_bytes(data)


def test_the_compiled_functions_return_uint64() -> None:
    top = np.uint64(2**64 - 1)
    for result in (
        mixing.splitmix64_u64(top),
        mixing.slot_hash_u64(top, top, top),
        mixing.fold_word(top, top),
    ):
        assert isinstance(result, (int, np.uint64))
        assert 0 <= int(result) < 2**64
    for function in (mixing.splitmix64_u64, mixing.slot_hash_u64, mixing.fold_word):
        assert [str(overload.signature.return_type) for overload in function.overloads.values()] == ["uint64"]


def test_a_chain_starts_with_the_mixed_anchor() -> None:
    assert int(mixing.CHAIN_HEAD_HASH) == PINS[ANCHOR]
    assert naive.signed(PINS[ANCHOR]) == words.CHAIN_HEAD_WORD
    records = torch.zeros((2, 4), dtype=torch.int64)
    assert compute_slot_hash(records, -1) == PINS[ANCHOR]
    assert compute_slot_hash(records, -(2**40)) == PINS[ANCHOR]


def test_compute_slot_hash_refuses_a_slot_past_the_buffer() -> None:
    with pytest.raises(ArgumentError, match=r"^source_slot_idx: expected a slot of the buffer \(below 2\), got 2$"):
        compute_slot_hash(torch.zeros((2, 4), dtype=torch.int64), 2)


@pytest.mark.parametrize("bits", [1, 27, 30, 31, 63])
def test_the_reference_shifts_zeros_in(bits: int) -> None:
    numbers = torch.tensor([-1, -(2**63), 2**63 - 1, 0, 5])
    expected = [naive.signed((number % 2**64) >> bits) for number in numbers.tolist()]
    assert words.logical_shift_right(numbers, bits).tolist() == expected
