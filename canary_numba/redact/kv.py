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
from canary_numba.dump.pages import forget
from canary_numba.kv_hashes import extent_of, in_place
from canary_numba.launch import launch_real_kv_hash_kernel
from canary_numba.layout import RealKvHashMode
from canary_numba.redact.chains import Known, few_bits
from canary_numba.redact.secret import Secret
from canary_numba.reference.words import mix
from canary_numba.sources import flatten_source

WORD_BYTES = 8
PIECE_BYTES = 16 << 20
"""K/V bytes of one source that are looked at at once."""
SHORT_LOOK = 16
"""Bytes of a slot that are looked at before the rest of them; almost no bytes go on alike for so long."""
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
        if mode == RealKvHashMode.NONE:
            self.near.append((np.arange(half.num_slots), np.zeros(half.num_slots, dtype=np.uint64)))
        count = half.num_slots if half.source_slots is None else half.source_slots.shape[0]
        sources = []
        old, new = (np.zeros((len(half.sources), count), dtype=np.uint64) for _ in range(2))
        for number, source in enumerate(half.sources):
            hidden, old[number] = self._hide(source, count)
            new[number] = _hashes(hidden, RealKvHashMode.ALL, np.arange(count))
            sources.append(hidden)
        if sources:
            self._alone.add(old.ravel(), new.ravel())
            held = np.arange(count) if half.source_slots is None else half.source_slots.numpy()
            self._combine(np.ascontiguousarray(old.T), held)
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

    def _as_if_hashed(self, hashes: Digests) -> Digests:
        """New hashes of bytes that are gone: those of eight keyed bytes."""
        words = self._secret.words(hashes, b"kv-bytes").view(np.int64)
        return np.asarray(mix(mix(torch.from_numpy(words))).numpy().view(np.uint64))

    def _hide(self, source: Source, count: int) -> tuple[Source, Digests]:
        """Hide the bytes of slots 0 to ``count - 1``, each read once, and tell their hashes: uint64 ``[count]``."""
        words = torch.zeros((-(-count // source.page_size) * source.page_size, WORD_BYTES), dtype=torch.uint8)
        hashes: Digests = np.zeros(count, dtype=np.uint64)
        flat = flatten_source(in_place(source), self._mode)
        step = max(1, PIECE_BYTES // max(1, source.num_bytes_per_token))
        for begin in range(0, count, step):
            slots = np.arange(begin, min(begin + step, count))
            found = _hashes(source, self._mode, slots)
            piece = torch.from_numpy(
                self._secret.words(found, b"kv-bytes").view(np.uint8).reshape(-1, WORD_BYTES).copy()
            )
            _imitate(piece, slot_bytes(source, slots, self._mode), source.tensor.dtype)
            piece[torch.from_numpy(found == 0)] = 0
            hashes[slots], words[begin : begin + slots.shape[0]] = found, piece
            forget(*extent_of(flat, torch.from_numpy(slots)))
        tensor = words.reshape(-1, source.page_size * WORD_BYTES).view(source.tensor.dtype)
        return replace(source, tensor=tensor, num_bytes_per_token=WORD_BYTES, read_bytes=WORD_BYTES), hashes


def _hashes(source: Source, mode: RealKvHashMode, slots: Int64s) -> Digests:
    """The hash of what ``slots`` hold of one source, uint64 ``[n]``."""
    hashes = torch.zeros(slots.shape[0], dtype=torch.int64)
    launch_real_kv_hash_kernel(
        real_kv_sources=(in_place(source),),
        real_kv_hash_mode=mode,
        slot_indices=torch.from_numpy(slots),
        hashes_out=hashes,
        engine="cpu",
    )
    return np.asarray(hashes.numpy().view(np.uint64))


def _imitate(words: torch.Tensor, raw: torch.Tensor, dtype: torch.dtype) -> None:
    """Give new bytes, uint8 ``[n, 8]``, what tells damage of the old, uint8 ``[n, bytes]``: repetition, NaN and Inf."""
    # What repeats fewer bytes repeats more as well, so that each width looks at few of the slots before it.
    rows = torch.arange(raw.shape[0])
    for width in (4, 2, 1):
        if raw.shape[1] % width == 0:
            for most in (min(SHORT_LOOK, raw.shape[1]), raw.shape[1]):
                items = raw[rows, :most].reshape(rows.shape[0], most // width, width)
                rows = rows[(items == items[:, :1]).all(dim=2).all(dim=1)]
            words[rows] = words[rows][:, :width].repeat(1, WORD_BYTES // width)
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
