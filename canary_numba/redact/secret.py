"""The secret of a redaction: token ids, hashes and names go in, and nothing that can be undone without it comes out.

Everything rests on BLAKE2b under the key (RFC 7693). Token ids are permuted by a Feistel network on 24 or 32 bits that
is walked until it lands in range again, so that equal ids stay equal and distinct ones distinct. Ids below 2**24, those
of a vocabulary, stay below; those above, hashes of images and sounds, stay above: a diagnosis tells them apart.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from canary_numba.diagnosis.own_records import PLACEHOLDER

Int64s = NDArray[np.int64]
Words = NDArray[np.uint64]

KEY_BYTES = 32
_ROUNDS = 8
_TOKEN_BITS = 31
_TOKEN_MASK = (1 << _TOKEN_BITS) - 1


class Secret:
    """A key of any length; two redactions under one key agree on every token, hash and name."""

    def __init__(self, key: bytes) -> None:
        self._key = hashlib.blake2b(key, digest_size=KEY_BYTES, person=b"canary-redact").digest()
        self._tokens: dict[int, int] = {}

    def _hash(self, purpose: bytes, data: bytes) -> bytes:
        return hashlib.blake2b(data, digest_size=8, key=self._key, person=purpose).digest()

    def tokens(self, ids: Int64s) -> Int64s:
        """Hide token ids, int64 of any shape. -1 ("none") stays; so do the bits above the 31 that token ids have."""
        unique, inverse = np.unique(ids, return_inverse=True)
        hidden: Int64s = np.array([self.token(one) for one in unique.tolist()], dtype=np.int64)
        return hidden[inverse].reshape(ids.shape)

    def token(self, one: int) -> int:
        """Hide a token id."""
        if one == -1:
            return one
        low = one & _TOKEN_MASK
        if low not in self._tokens:
            half_bits, first, last = (12, 0, PLACEHOLDER) if low < PLACEHOLDER else (16, PLACEHOLDER, 1 << _TOKEN_BITS)
            walked = self._permute(low, half_bits)
            while not first <= walked < last:
                walked = self._permute(walked, half_bits)
            self._tokens[low] = walked
        return (one & ~_TOKEN_MASK) | self._tokens[low]

    def _permute(self, word: int, half_bits: int) -> int:
        mask = (1 << half_bits) - 1
        left, right = word >> half_bits, word & mask
        for number in range(_ROUNDS):
            mixed = self._hash(b"token", bytes([number, half_bits]) + right.to_bytes(2, "little"))
            left, right = right, left ^ int.from_bytes(mixed, "little") & mask
        return left << half_bits | right

    def words(self, values: Words, purpose: bytes) -> Words:
        """Replace 64-bit words, uint64 of any shape, by keyed hashes of them; equal words stay equal."""
        unique, inverse = np.unique(values, return_inverse=True)
        hashed = b"".join(self._hash(purpose, value.to_bytes(8, "little")) for value in unique.tolist())
        hidden: Words = np.frombuffer(hashed, dtype="<u8").astype(np.uint64)
        return hidden[inverse].reshape(values.shape)

    def name(self, text: str) -> str:
        """Hide a name; the same name gives the same result."""
        return f"id-{self._hash(b'name', text.encode('utf-8', 'surrogatepass')).hex()}"
