"""The real-KV hash kernel: fold the K/V bytes of listed slots onto accumulators, 32 slots a warp.

Bytes moved per slot: 8 of index, 16 of accumulator, ``read_bytes`` of each source.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numba import uint64

from canary_numba.engines.cuda.device import (
    WARP,
    cuda,
    cuda_kernel,
    multiprocessors,
)
from canary_numba.engines.cuda.fold import (
    FOLD_CARVEOUT,
    SourceShape,
    block_threads,
    kernel_sources,
    make_real_kv_fold,
    warp_tile_words,
)
from canary_numba.engines.cuda.launcher import PreparedLaunch
from canary_numba.sources import flatten_source

_ZERO = np.uint64(0)
_LANES = np.uint64(WARP)


@lru_cache(maxsize=256)
def make_hash_kernel(shapes: tuple[SourceShape, ...]) -> Any:
    """Build the real-KV hash kernel for sources of these shapes."""
    real_kv_fold = make_real_kv_fold(shapes)
    threads = block_threads(shapes)
    tile_words = max(1, threads // WARP * warp_tile_words(shapes))

    @cuda_kernel(carveout=FOLD_CARVEOUT if warp_tile_words(shapes) else None)
    def real_kv_hash_kernel(
        slots: Any, hashes: Any, num_slots: Any, src0: Any, src1: Any, src2: Any, src3: Any
    ) -> None:
        tile = cuda.shared.array(tile_words, uint64)
        rows = cuda.shared.array(threads, uint64)
        thread = np.uint64(cuda.threadIdx.x)
        lane = thread % _LANES
        warp = thread // _LANES
        count = np.int64(slots.shape[0])
        group = np.int64(cuda.blockIdx.x) * np.int64(cuda.blockDim.x) + np.int64(thread - lane)
        step = np.int64(cuda.gridDim.x) * np.int64(cuda.blockDim.x)
        while group < count:
            entry = group + np.int64(lane)
            slot = np.int64(-1)
            acc = _ZERO
            if entry < count:
                slot = slots[entry]
                acc = hashes[entry]
            inside = 0 <= slot < num_slots
            safe = np.uint64(slot) if inside else _ZERO
            acc = real_kv_fold(acc, src0, src1, src2, src3, safe, tile, rows, warp, lane)
            if inside:
                hashes[entry] = acc
            group += step

    return real_kv_hash_kernel


def hash_real_kv(
    *, real_kv_sources: Any, real_kv_hash_mode: Any, slot_indices: torch.Tensor, hashes_out: torch.Tensor
) -> None:
    """Run :func:`canary_numba.launch.launch_real_kv_hash_kernel` on CUDA."""
    sources = [flatten_source(source, real_kv_hash_mode) for source in real_kv_sources]
    num_slots = min(source.num_slots for source in sources)
    if num_slots == 0 or slot_indices.shape[0] == 0:
        return
    device = hashes_out.device
    shapes = tuple(SourceShape.of(s) for s in sources)
    threads = block_threads(shapes)
    kernel = make_hash_kernel(shapes)
    blocks = min(-(-slot_indices.shape[0] // threads), multiprocessors(device) * 16384 // threads)
    arguments = [
        slot_indices,
        hashes_out.view(torch.uint64),
        np.int64(num_slots),
        *kernel_sources(sources, device),
    ]
    PreparedLaunch(kernel, blocks, threads, device, arguments)()
