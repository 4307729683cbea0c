"""The real-KV hash kernel: fold the K/V bytes of listed slots onto accumulators, 32 slots a warp.

Bytes moved per slot: 8 of index, 16 of accumulator, ``read_bytes`` of each source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
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
from canary_numba.engines.cuda.fold import make_real_kv_fold
from canary_numba.engines.cuda.fold_shapes import (
    FOLD_CARVEOUT,
    SourceShape,
    block_threads,
    kernel_sources,
    warp_tile_words,
)
from canary_numba.engines.cuda.launcher import PreparedLaunch
from canary_numba.layout import RealKvHashMode
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


class HashLaunch(PreparedLaunch):
    """A hash launch whose slots and accumulators may be replaced by others."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        mode = RealKvHashMode(int(arguments["real_kv_hash_mode"]))
        slots, hashes = arguments["slot_indices"], arguments["hashes_out"]
        sources = [flatten_source(source, mode) for source in arguments["real_kv_sources"]]
        shapes = tuple(SourceShape.of(s) for s in sources)
        num_slots = np.int64(min(source.num_slots for source in sources))
        self._block_threads = block_threads(shapes)
        packed = [slots, hashes.view(torch.uint64), num_slots, *kernel_sources(sources, hashes.device)]
        blocks = self._blocks(slots, hashes.device)
        super().__init__(make_hash_kernel(shapes), blocks, self._block_threads, hashes.device, packed)

    def replace_flat(self, flat: Sequence[torch.Tensor]) -> None:
        """Hash these from the next call on: the tensors of :data:`FLAT`, of any one length."""
        for index, tensor in enumerate(flat):
            self.rebind(index, tensor)
        self.grid = (self._blocks(flat[0], self._device), 1)

    def _blocks(self, slots: torch.Tensor, device: torch.device) -> int:
        most = multiprocessors(device) * 16384 // self._block_threads
        return max(1, min(-(-slots.shape[0] // self._block_threads), most))


FLAT = itemgetter("slot_indices", "hashes_out")
"""Takes of the arguments those that differ from call to call, in the kernel's order."""


def prepare_hash(**arguments: Any) -> list[HashLaunch]:
    """Prepare the launch for the arguments of :func:`canary_numba.launch.launch_real_kv_hash_kernel`."""
    # Without a slot there is nothing to hash, nor a byte that the kernel could read in its place.
    slots = min(source.tensor.shape[0] for source in arguments["real_kv_sources"])
    return [HashLaunch(arguments)] if slots else []
