"""K/V bytes replaced by eight keyed bytes a slot and source, alike where the bytes were alike.

Zero bytes stay zero, bytes that repeat one value repeat another, and what holds a NaN or Inf still does: these are
signs of faults. Records and source hashes follow: a fingerprint that fitted its bytes fits the new ones, and another
does not.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from canary_numba.check_hashes import combine_source_hashes
from canary_numba.diagnosis.chains import Digests, Int64s
from canary_numba.diagnosis.kv_lookup import _EXPONENTS as EXPONENTS
from canary_numba.diagnosis.kv_lookup import non_finite, slot_bytes
from canary_numba.dump.model import Half, Source
from canary_numba.kv_hashes import hash_slots
from canary_numba.layout import RealKvHashMode
from canary_numba.redact.chains import Known, few_bits
from canary_numba.redact.secret import Secret
from canary_numba.reference.words import mix

WORD_BYTES = 8
SLOTS_AT_ONCE = 4096
_NO_NAN = (torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)


class HiddenBytes:
    """K/V bytes of one half, hidden: ``half`` with the new sources, ``known`` = what became of each real-KV hash."""

    def __init__(self, secret: Secret, half: Half, mode: RealKvHashMode) -> None:
        self._secret = secret
        # In mode NONE no record has a hash; the bytes are still told apart by all that is read of them.
        self._mode = mode if mode != RealKvHashMode.NONE else RealKvHashMode.ALL
        self.known = Known({0: 0})
        self._alone = Known({0: 0})
        self.near: list[tuple[Int64s, Digests]] = []
        held = torch.arange(half.num_slots) if half.source_slots is None else half.source_slots
        old, sources = [], []
        for source in half.sources:
            hashes = self._hashes(half, source, held)
            new = self._hide(source, hashes)
            self._alone.add(hashes, self._hashes(half, new, held))
            old.append(hashes)
            sources.append(new)
        if sources:
            self._combine(np.stack(old, axis=1), held.numpy())
        written = None
        if half.source_hashes is not None:
            table = half.source_hashes.numpy().view(np.uint64)
            missing = np.unique(table[~self._alone.find(table.ravel())[0].reshape(table.shape)])
            self._alone.add(missing, self._as_if_hashed(missing))
            self._combine(table, np.arange(half.num_slots))
            written = torch.from_numpy(self._alone.find(table.ravel())[1].reshape(table.shape).view(np.int64))
        self.half = replace(half, sources=tuple(sources), source_hashes=written)

    def stored(self, hashes: Digests) -> Digests:
        """Hide the real-KV hash of each slot's record, uint64 ``[num_slots]``."""
        hit, new = self.known.find(hashes)
        lost = ~hit
        new[lost] = self._secret.words(hashes[lost], b"kv-hash")
        for slots, right in self.near:
            differing = hashes[slots] ^ right
            flipped = lost[slots] & few_bits(differing)
            new[slots[flipped]] = self.known.find(right[flipped])[1] ^ differing[flipped]
            lost[slots[flipped]] = False
        return new

    def _combine(self, table: Digests, slots: Int64s) -> None:
        """Note the hash of all sources together, of a table of hashes uint64 ``[n, sources]`` of each alone."""
        new = self._alone.find(table.ravel())[1].reshape(table.shape)
        before, after = (
            combine_source_hashes(torch.from_numpy(one.view(np.int64))).numpy().view(np.uint64) for one in (table, new)
        )
        self.known.add(before, after)
        self.near.append((slots, before))

    def _hashes(self, half: Half, source: Source, held: torch.Tensor) -> Digests:
        buffer = next(iter(half.buffers.values()))
        alone = Half(tail=buffer if half.source_slots is None else buffer[held], sources=(source,))
        hashes = hash_slots(
            alone,
            self._mode,
            torch.arange(held.shape[0]),
            engine="cpu",
            device=torch.device("cpu"),
            advance=lambda done_bytes: None,
        )
        return np.asarray(hashes.numpy().view(np.uint64))

    def _as_if_hashed(self, hashes: Digests) -> Digests:
        """New hashes of bytes that are gone: those of eight keyed bytes."""
        words = self._secret.words(hashes, b"kv-bytes").view(np.int64)
        return np.asarray(mix(mix(torch.from_numpy(words))).numpy().view(np.uint64))

    def _hide(self, source: Source, hashes: Digests) -> Source:
        words = torch.from_numpy(self._secret.words(hashes, b"kv-bytes").view(np.uint8).reshape(-1, WORD_BYTES).copy())
        for begin in range(0, hashes.shape[0], SLOTS_AT_ONCE):
            piece = words[begin : begin + SLOTS_AT_ONCE]
            slots = np.arange(begin, begin + piece.shape[0])
            _imitate(piece, slot_bytes(source, slots, self._mode), source.tensor.dtype)
        words[torch.from_numpy(hashes == 0)] = 0
        padded = torch.zeros((-(-words.shape[0] // source.page_size) * source.page_size, WORD_BYTES), dtype=torch.uint8)
        padded[: words.shape[0]] = words
        tensor = padded.reshape(-1, source.page_size * WORD_BYTES).view(source.tensor.dtype)
        return replace(source, tensor=tensor, num_bytes_per_token=WORD_BYTES, read_bytes=WORD_BYTES)


def _imitate(words: torch.Tensor, raw: torch.Tensor, dtype: torch.dtype) -> None:
    """Give new bytes, uint8 ``[n, 8]``, what tells damage of the old, uint8 ``[n, bytes]``: repetition, NaN and Inf."""
    for width in (4, 2, 1):
        if raw.shape[1] % width == 0:
            items = raw.reshape(raw.shape[0], -1, width)
            same = (items == items[:, :1]).all(dim=2).all(dim=1)
            words[same] = words[same][:, :width].repeat(1, WORD_BYTES // width)
    bad = non_finite(raw, dtype)
    if bad is not None:
        _set_finite(words, dtype)
        chosen = bad.any(dim=1)
        spoilt = words[chosen]
        _set_non_finite(spoilt, dtype)
        words[chosen] = spoilt
    words[(words == 0).all(dim=1)] = 1


def _set_finite(words: torch.Tensor, dtype: torch.dtype) -> None:
    if dtype in EXPONENTS:
        integer, mask = EXPONENTS[dtype]
        view = words.view(integer)
        view &= ~(mask & -mask)
    elif dtype in _NO_NAN:
        words |= 1
    else:
        words &= 0xF7


def _set_non_finite(words: torch.Tensor, dtype: torch.dtype) -> None:
    if dtype in EXPONENTS:
        integer, mask = EXPONENTS[dtype]
        view = words.view(integer)
        view |= mask
    elif dtype in _NO_NAN:
        words[:] = 0x80
    else:
        words |= 0x7F
