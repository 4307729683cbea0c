"""Records and K/V bytes of one pool of an open dump: copied, wiped, written anew, fingerprinted again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from canary_numba.context import RealKvSource
from canary_numba.dump.model import Group, Source
from canary_numba.faults.slot_bytes import random_content, read_slots, write_slots
from canary_numba.launch import launch_real_kv_hash_kernel
from canary_numba.layout import (
    CANARY_FIELD_POSITION,
    CANARY_FIELD_PREV_HASH,
    CANARY_FIELD_REAL_KV_HASH,
    CANARY_FIELD_TOKEN,
    CANARY_FIELDS_PER_SLOT,
    RealKvHashMode,
)

Int64s = NDArray[np.int64]


class Pool:
    """One group of a dump whose records may be changed in place. Slots are this pool's own numbers.

    Attributes
    ----------
    records : dict of numpy.ndarray
        int64 ``[num_slots, 4]`` by (half, stage), of the halves in use; changes reach the dump.
    mapping : numpy.ndarray or None
        int64 ``[n]``: this pool's slot of each FULL slot, for a window pool; changes reach the dump.
    """

    def __init__(self, group: Group, mode: RealKvHashMode, rng: np.random.Generator) -> None:
        self.group = group
        self.mode = mode
        self.rng = rng
        self._copied: set[str] = set()
        used = {name: any(bool(buf.any()) for buf in half.buffers.values()) for name, half in group.halves.items()}
        self.halves = [name for name in group.halves if used[name] or not any(used.values())]
        self.num_slots = group.halves[self.halves[0]].num_slots
        self.records: dict[tuple[str, str], Int64s] = {
            (name, stage): buf.view(torch.int64).numpy()[:, :CANARY_FIELDS_PER_SLOT]
            for name in self.halves
            for stage, buf in group.halves[name].buffers.items()
        }
        indices = group.full_to_swa_index_mapping
        self.mapping: Int64s | None = None if indices is None else indices.numpy()

    @property
    def main(self) -> Int64s:
        """The records of the first buffer."""
        return next(iter(self.records.values()))

    def own(self, full_slots: list[int] | Int64s) -> Int64s:
        """Turn FULL slots into this pool's numbers; 0 where it has none."""
        slots = np.asarray(full_slots, dtype=np.int64)
        if self.mapping is None:
            return slots
        inside = (slots >= 0) & (slots < self.mapping.shape[0])
        return np.where(inside, self.mapping[np.where(inside, slots, 0)], 0)

    def copy(self, source: Int64s, target: Int64s, *, records: bool = True, halves: str = "KV") -> None:
        """Copy K/V bytes, and with them the records, of slots onto others."""
        for name in self.halves:
            if name not in halves:
                continue
            for layer in self.own_sources(name):
                write_slots(layer, _tensor(target), read_slots(layer, _tensor(source)))
            each = self.group.halves[name].source_hashes
            if records and each is not None:
                each[_tensor(target)] = each[_tensor(source)]
        for buffer in self.records.values() if records else ():
            buffer[target] = buffer[source].copy()

    def wipe(self, slots: Int64s, *, halves: str = "KV", records: bool = True, content: bool = True) -> None:
        """Put slots back to the state of a new pool: all zero."""
        for name in self.halves:
            if name not in halves:
                continue
            for layer in self.own_sources(name) if content else ():
                width = layer.num_bytes_per_token
                write_slots(layer, _tensor(slots), torch.zeros((len(slots), width), dtype=torch.uint8))
            for stage in self.group.halves[name].buffers if records else ():
                self.records[name, stage][slots] = 0

    def fill(self, slots: Int64s) -> None:
        """Put new K/V bytes into slots; their records stay as they are."""
        for name in self.halves:
            for layer in self.own_sources(name):
                content = random_content(self.rng, layer.tensor.dtype, len(slots), layer.num_bytes_per_token)
                write_slots(layer, _tensor(slots), content)

    def write(self, slots: Int64s, tokens: list[int], positions: list[int], prev_hashes: list[int]) -> None:
        """Write records over the bytes that lie in slots now; ``prev_hashes``: unsigned."""
        for (name, stage), buffer in self.records.items():
            buffer[slots, CANARY_FIELD_TOKEN] = tokens
            buffer[slots, CANARY_FIELD_POSITION] = positions
            buffer[slots, CANARY_FIELD_PREV_HASH] = np.array(prev_hashes, dtype=np.uint64).view(np.int64)
            buffer[slots, CANARY_FIELD_REAL_KV_HASH] = self.hashes(name, slots) if stage == "TAIL" else 0
        self._hash_each(slots)

    def own_sources(self, half: str) -> tuple[Source, ...]:
        """Sources of a half whose bytes may be written: copied when they are first asked for."""
        content = self.group.halves[half]
        if half not in self._copied:
            self._copied.add(half)
            sources = tuple(replace(source, tensor=source.tensor.clone()) for source in content.sources)
            content = replace(content, sources=sources)
            self.group = replace(self.group, halves={**self.group.halves, half: content})
        return content.sources

    def _hash_each(self, slots: Int64s) -> None:
        """Bring the hash of each source alone up to date, where the dump has it."""
        for name in self.halves:
            half = self.group.halves[name]
            if half.source_hashes is None or self.mode == RealKvHashMode.NONE:
                continue
            for i, layer in enumerate(half.sources):
                half.source_hashes[_tensor(slots), i] = self._fold((layer,), slots)

    def hashes(self, half: str, slots: Int64s) -> Int64s:
        """Real-KV hashes of the bytes that lie in slots now, int64 ``[n]``."""
        layers = self.group.halves[half].sources if self.mode != RealKvHashMode.NONE else ()
        return np.asarray(self._fold(layers, slots).numpy())

    def _fold(self, layers: tuple[Source, ...], slots: Int64s) -> torch.Tensor:
        out = torch.zeros(len(slots), dtype=torch.int64)
        for layer in layers:
            source = RealKvSource(
                tensor=layer.tensor,
                page_size=layer.page_size,
                num_bytes_per_token=layer.num_bytes_per_token,
                read_bytes=layer.read_bytes,
            )
            launch_real_kv_hash_kernel(
                real_kv_sources=(source,),
                real_kv_hash_mode=self.mode,
                slot_indices=_tensor(slots),
                hashes_out=out,
                engine="cpu",
            )
        return out

    def refresh(self, slots: Int64s) -> None:
        """Fingerprint the bytes of slots again, in the TAIL records."""
        for (name, stage), buffer in self.records.items():
            if stage == "TAIL":
                buffer[slots, CANARY_FIELD_REAL_KV_HASH] = self.hashes(name, slots)
        self._hash_each(slots)


def _tensor(slots: Int64s) -> torch.Tensor:
    return torch.from_numpy(np.asarray(slots, dtype=np.int64))
