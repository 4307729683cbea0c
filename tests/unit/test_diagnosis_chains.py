"""Digests, chains of tokens, equal hashes, and the token that a gap held."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from naive import HEAD, mix3

from canary_numba.diagnosis.chains import chain_tokens, digest_records, find_equal, group_by_slot, recovered_token
from canary_numba.mixing import splitmix64, splitmix64_inverse, splitmix64_mix3, splitmix64_mix3_middle

WORDS = st.integers(0, 2**64 - 1)


@given(WORDS)
def test_inverse(word: int) -> None:
    assert splitmix64_inverse(splitmix64(word)) == word
    assert splitmix64(splitmix64_inverse(word)) == word


@given(WORDS, WORDS, WORDS)
def test_middle(a: int, b: int, c: int) -> None:
    assert splitmix64_mix3_middle(a, c, splitmix64_mix3(a, b, c)) == b


@given(WORDS, st.integers(0, 2**31 - 1), st.integers(0, 2**20))
def test_a_token_is_recovered_and_what_is_none_is_refused(before: int, token: int, position: int) -> None:
    after = splitmix64_mix3(before, token, position)
    assert recovered_token(before, position, after) == token
    assert recovered_token(before, position + 1, after) is None


def test_chains_of_several_requests() -> None:
    tokens = np.array([9, 9, 5, 6, 7, 5], dtype=np.int64)
    starts = np.array([0, 3, 3, 4], dtype=np.int64)
    found = chain_tokens(tokens, np.array([2, 0, 5], dtype=np.int64), starts)
    expected, h = [], HEAD
    for position, token in enumerate((5, 6, 7)):
        h = mix3(h, token, position)
        expected.append(h)
    assert found.tolist() == [*expected, mix3(HEAD, 5, 0)]


def test_digests_are_what_successors_store() -> None:
    records = np.array([[0, 0, 0, 9], [5, 3, -7, 1], [-1, 2**62, 4, 0]], dtype=np.int64)
    assert digest_records(records).tolist() == [mix3(p, t, q) for t, q, p, _ in records.tolist()]


def test_slots_grouped() -> None:
    slots = np.array([3, 0, 1, 3, -1, 99], dtype=np.int64)
    starts, order = group_by_slot(slots, 4)
    assert [order[starts[s] : starts[s + 1]].tolist() for s in range(4)] == [[], [2], [], [0, 3]]


@given(st.lists(st.integers(0, 9)), st.lists(st.integers(0, 9)))
def test_equal_hashes(wanted: list[int], among: list[int]) -> None:
    found = find_equal(np.array(wanted, dtype=np.uint64), np.array(among, dtype=np.uint64))
    naive = {w: [i for i, a in enumerate(among) if a == w] for w in wanted if w and w in among}
    assert found == naive


def test_equal_hashes_are_limited() -> None:
    found = find_equal(np.array([7], dtype=np.uint64), np.full(1000, 7, dtype=np.uint64), limit=3)
    assert found == {7: [0, 1, 2]}
