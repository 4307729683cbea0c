"""Hashing the K/V bytes of a dump: any number of sources, any size, each byte read once.

Bytes are streamed in chunks of slots, so that a mapped file far larger than memory passes through; only 8 bytes a slot
are kept.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from canary_numba.context import RealKvSource
from canary_numba.dump.model import Half, Source
from canary_numba.launch import launch_real_kv_hash_kernel
from canary_numba.layout import RealKvHashMode
from canary_numba.sources import read_bytes_of

CHUNK_BYTES = 256 << 20
"""K/V bytes in flight at once."""


def bytes_per_slot(half: Half, mode: RealKvHashMode) -> int:
    """K/V bytes that ``mode`` reads for one slot of all sources together."""
    return 0 if mode == RealKvHashMode.NONE else sum(read_bytes_of(source, mode) for source in half.sources)


def _gather(source: Source, slots: torch.Tensor, device: torch.device) -> tuple[RealKvSource, torch.Tensor]:
    """Copy the rows that hold ``slots`` to ``device``; return them as a source, and the slots in its numbers."""
    rows = torch.unique(slots // source.page_size)
    piece = source.tensor.view(torch.uint8)[rows].to(device)
    local = torch.searchsorted(rows, slots // source.page_size) * source.page_size + slots % source.page_size
    gathered = RealKvSource(
        tensor=piece,
        page_size=source.page_size,
        num_bytes_per_token=source.num_bytes_per_token,
        read_bytes=source.read_bytes,
    )
    return gathered, local.to(device)


def _in_place(source: Source) -> RealKvSource:
    return RealKvSource(
        tensor=source.tensor,
        page_size=source.page_size,
        num_bytes_per_token=source.num_bytes_per_token,
        read_bytes=source.read_bytes,
    )


def hash_slots(
    half: Half,
    mode: RealKvHashMode,
    slots: torch.Tensor,
    *,
    engine: str,
    device: torch.device,
    advance: Callable[[int], None],
) -> torch.Tensor:
    """Compute the real-KV hash that each of ``slots`` should carry.

    Parameters
    ----------
    half
        Its sources are folded in order.
    mode
        PARTIAL or ALL.
    slots
        int64 ``[n]`` on the CPU, distinct, inside the pool.
    engine, device
        Who folds, and on which device's tensors. Mapped bytes are read where they lie by CPU engines, and gathered
        chunk by chunk for CUDA.
    advance
        Told the bytes done after each chunk.

    Returns
    -------
    torch.Tensor
        int64 ``[num_slots]`` on ``device``, zero for slots not listed.
    """
    width = bytes_per_slot(half, mode)
    step = max(1, CHUNK_BYTES // max(width, 1))
    by_slot = torch.zeros(half.num_slots, dtype=torch.int64, device=device)
    for chunk in torch.split(slots, step):
        hashes = torch.zeros(chunk.shape[0], dtype=torch.int64, device=device)
        for source in half.sources:
            if device.type == "cuda":
                piece, local = _gather(source, chunk, device)
            else:
                piece, local = _in_place(source), chunk
            launch_real_kv_hash_kernel(
                real_kv_sources=(piece,),
                real_kv_hash_mode=mode,
                slot_indices=local,
                hashes_out=hashes,
                engine=engine,
            )
        by_slot[chunk.to(device)] = hashes
        advance(chunk.shape[0] * width)
    return by_slot
