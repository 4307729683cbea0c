"""Real-KV hashes over any number of sources, of the slots that a plan or a write is about.

A launch takes four sources; for more, the hashes are made beforehand, four sources at a time, and handed to the launch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from canary_numba.check_hashes import combine_source_hashes
from canary_numba.dump.model import Source
from canary_numba.launch import launch_real_kv_hash_kernel
from canary_numba.layout import MAX_REAL_KV_SOURCES, RealKvHashMode


class SourceHasher:
    """Hashes the K/V bytes of slots.

    Parameters
    ----------
    sources
        Any number, on one device.
    mode
        PARTIAL or ALL.
    engine
        Who hashes.
    """

    def __init__(self, sources: Sequence[Source], mode: RealKvHashMode, engine: str) -> None:
        self.sources, self.mode, self.engine = tuple(sources), mode, engine

    def combined(self, slots: torch.Tensor) -> torch.Tensor:
        """Hash of all sources for each slot (int64 ``[n]``), as a record holds it; 0 for a slot outside the sources."""
        hashes = torch.zeros_like(slots)
        for start in range(0, len(self.sources), MAX_REAL_KV_SOURCES):
            self._fold(self.sources[start : start + MAX_REAL_KV_SOURCES], slots, hashes)
        return hashes

    def single(self, slots: torch.Tensor) -> torch.Tensor:
        """Hash of each source alone: int64 ``[n, sources]``."""
        columns = []
        for source in self.sources:
            hashes = torch.zeros_like(slots)
            self._fold((source,), slots, hashes)
            columns.append(hashes)
        return torch.stack(columns, dim=1)

    def _fold(self, sources: Sequence[Source], slots: torch.Tensor, hashes: torch.Tensor) -> None:
        launch_real_kv_hash_kernel(
            real_kv_sources=tuple(sources),
            real_kv_hash_mode=self.mode,
            slot_indices=slots,
            hashes_out=hashes,
            engine=self.engine,
        )


def put_by_slot(table: torch.Tensor, slots: torch.Tensor, values: torch.Tensor) -> None:
    """Set ``table[slot]`` for each slot; slots outside the table are left out. Does not synchronise.

    Parameters
    ----------
    table
        ``[num_slots, ...]``, changed in place.
    slots
        int64 ``[n]``.
    values
        ``[n, ...]``.
    """
    inside = (slots >= 0) & (slots < table.shape[0])
    shape = (-1, *(1,) * (table.ndim - 1))
    # What must not be stored goes to slot 0, which is padding; choosing the slots instead would wait for the device.
    table[torch.where(inside, slots, 0)] = torch.where(inside.view(shape), values, table[:1])


__all__ = ["SourceHasher", "combine_source_hashes", "put_by_slot"]
