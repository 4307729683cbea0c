"""K/V bytes of few slots: their hashes now, where a hash is found again, and what the bytes look like."""

from __future__ import annotations

import numpy as np
import torch

from canary_numba.diagnosis.chains import Int64s, find_equal
from canary_numba.diagnosis.view import Bools, GroupView
from canary_numba.dump.model import Half, Source
from canary_numba.kv_hashes import hash_slots
from canary_numba.layout import CANARY_FIELD_REAL_KV_HASH, RealKvHashMode
from canary_numba.sources import read_bytes_of

LOOKED_AT = 4096
"""Slots whose bytes are looked at one by one; beyond these, hashes alone have to tell."""


class KvLookup:
    """Questions about the K/V bytes of one pool."""

    def __init__(self, mode: RealKvHashMode, group: GroupView) -> None:
        self.mode = mode
        self.group = group
        self.halves = {name: half for name, half in group.halves.items() if half.sources and half.tail is not None}

    @property
    def known(self) -> bool:
        """Tell whether the dump has K/V bytes and fingerprints of them."""
        return bool(self.halves) and self.mode != RealKvHashMode.NONE

    def stored(self, half: str) -> Int64s:
        """The real-KV hash that each slot's record holds, int64 ``[num_slots]``."""
        return self.group.buffers[f"TAIL_{half}"][:, CANARY_FIELD_REAL_KV_HASH]

    def expected(self, half: str, slots: Int64s) -> Int64s | None:
        """The real-KV hash that the records of ``slots`` should hold; None where the dump cannot tell."""
        if self.mode == RealKvHashMode.NONE:
            return np.zeros(slots.shape[0], dtype=np.int64)
        return self.hashes(half, slots) if half in self.halves else None

    def hashes(self, half: str, slots: Int64s) -> Int64s:
        """The hash of the bytes that ``slots`` (distinct) hold now, int64 of the same shape."""
        return self._hash(self.halves[half], slots)

    def _hash(self, half: Half, slots: Int64s) -> Int64s:
        wanted = torch.from_numpy(np.ascontiguousarray(slots))
        device = torch.device("cpu")
        by_slot = hash_slots(half, self.mode, wanted, engine="cpu", device=device, advance=lambda _: None)
        return np.asarray(by_slot.numpy()[slots], dtype=np.int64)

    def mismatching(self, half: str, slots: Int64s) -> Bools:
        """Which of ``slots`` hold other bytes than their record says, bool of the same shape."""
        return np.asarray(self.hashes(half, slots) != self.stored(half)[slots])

    def found_elsewhere(self, half: str, slots: Int64s) -> dict[int, list[int]]:
        """Other slots whose record describes the very bytes that each of ``slots`` holds now. Zeros are no content."""
        now = self.hashes(half, slots)
        places = find_equal(now.view(np.uint64), self.stored(half).view(np.uint64))
        found = {}
        for slot, digest in zip(slots.tolist(), now.view(np.uint64).tolist(), strict=True):
            others = [other for other in places.get(digest, []) if other != slot]
            if others:
                found[slot] = others
        return found

    def empty(self, half: str, slots: Int64s) -> Bools:
        """Which of ``slots`` hold nothing but zeros, bool of the same shape. Only zeros hash to 0."""
        return np.asarray(self.hashes(half, slots) == 0)

    def looks(self, half: str, slots: Int64s) -> str | None:
        """What the bytes of all ``slots`` have in common: ``zero``, ``one repeated value``, ``non-finite``, or None."""
        if not slots.shape[0] or slots.shape[0] > LOOKED_AT:
            return None
        pieces = [slot_bytes(source, slots, self.mode) for source in self.halves[half].sources]
        if not all(piece.any() for piece in pieces):
            return "zero" if not any(piece.any() for piece in pieces) else None
        damaged = [non_finite_slots(s, slots, self.mode).all() for s in self.halves[half].sources]
        if any(damaged):
            return "non-finite"
        for width in (1, 2, 4):
            if all(_repeats(piece, width) for piece in pieces):
                return "one repeated value"
        return None


def slot_bytes(source: Source, slots: Int64s, mode: RealKvHashMode) -> torch.Tensor:
    """The bytes that ``mode`` reads of ``slots``, uint8 ``[n, bytes]``."""
    page, width = source.page_size, source.num_bytes_per_token
    rows = source.tensor.view(torch.uint8)[:, : page * width]
    wanted = torch.from_numpy(np.ascontiguousarray(slots))
    # Never the whole pages of the slots, which are many times as much.
    return rows.view(rows.shape[0], page, width)[:, :, : read_bytes_of(source, mode)][wanted // page, wanted % page]


def non_finite_slots(source: Source, slots: Int64s, mode: RealKvHashMode) -> Bools:
    """Which of ``slots`` hold a NaN or Inf in what ``mode`` reads, bool ``[n]``; none for a dtype that has no NaN."""
    found = non_finite(slot_bytes(source, slots, mode), source.tensor.dtype)
    return np.zeros(slots.shape[0], dtype=np.bool_) if found is None else found.any(dim=1).numpy()


_EXPONENTS = {
    torch.float16: (torch.int16, 0x7C00),
    torch.bfloat16: (torch.int16, 0x7F80),
    torch.float32: (torch.int32, 0x7F800000),
    torch.float64: (torch.int64, 0x7FF0000000000000),
    torch.float8_e5m2: (torch.uint8, 0x7C),
}
"""By dtype: an integer type of its width, and the exponent bits that are all set in NaN and Inf."""


def non_finite(raw: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
    """NaN and Inf among elements of ``dtype`` given as uint8 ``[n, bytes]``: bool ``[n, m]``; None if it has none."""
    if dtype == torch.float8_e4m3fn:
        return (raw & 0x7F) == 0x7F
    if dtype in (torch.float8_e4m3fnuz, torch.float8_e5m2fnuz):
        return raw == 0x80
    if dtype not in _EXPONENTS:
        return None
    integer, mask = _EXPONENTS[dtype]
    size = integer.itemsize
    if raw.shape[1] < size:
        return torch.zeros((raw.shape[0], 1), dtype=torch.bool)
    # A copy: a view of a wider type asks for aligned strides, which a piece of a page need not have.
    whole = torch.empty((raw.shape[0], raw.shape[1] // size * size), dtype=torch.uint8)
    whole.copy_(raw[:, : whole.shape[1]])
    return (whole.view(integer) & mask) == mask


def _repeats(raw: torch.Tensor, width: int) -> bool:
    if raw.shape[1] % width:
        return False
    items = raw.reshape(-1, width)
    return bool((items == items[:1]).all())
