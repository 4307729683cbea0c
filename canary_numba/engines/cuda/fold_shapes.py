"""The layouts that K/V folds are compiled for, and what each takes of a block: tile width, shared memory, threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from canary_numba.engines.cuda.device import SIMULATED, WARP
from canary_numba.layout import MAX_REAL_KV_SOURCES
from canary_numba.sources import FlatSource

TILE_WORDS = 32
"""Widest tile where folding is all there is to do: 256 bytes of each row at once, which scattered rows want."""
NARROW_TILE_WORDS = 16
"""Widest tile beside chain warps: fewer registers, so more warps to fill the slots that a chain leaves."""
_SHARED_BYTES = 24 << 10
"""Shared memory a block may use for tiles; two and more blocks then fit a multiprocessor at any register count."""
FOLD_CARVEOUT = 58
"""Percent of shared memory where folding is all there is to do. Loads in flight wait in L1, 8 KiB a tile: with
more shared memory more warps run, and each is slower (1 KiB rows on an H200: 324 us at 86 percent, 275 at 58)."""
DIRECT_WORDS = 2
"""Up to this many words a lane reads its row itself: one access, so there is nothing to coalesce."""


class SourceShape(NamedTuple):
    """The layout of a source that a kernel is compiled for; sizes in ``unit`` bytes (8, or 1 for unaligned rows)."""

    unit: int
    pairs: bool
    row_stride: int
    page_size: int
    token_size: int
    read_size: int
    widest: int = TILE_WORDS

    @classmethod
    def of(cls, source: FlatSource, widest: int = TILE_WORDS) -> SourceShape:
        """The shape of a flattened source, to be folded in tiles at most ``widest`` words wide."""
        unit = 8 if source.alignment >= 8 else 1
        return cls(
            unit,
            source.alignment == 16,
            source.row_stride // unit,
            source.page_size,
            source.token_bytes // unit,
            source.read_bytes // unit,
            widest,
        )

    @property
    def tile_width(self) -> int:
        """Words of a row that a tile holds; 0 for layouts that need no tile."""
        if self.unit == 1 or self.read_size <= DIRECT_WORDS:
            return 0
        width = self.widest
        while width > self.read_size and width > 4:
            width //= 2
        return width


def warp_tile_words(shapes: Sequence[SourceShape]) -> int:
    """Words of shared memory that a warp needs to fold sources of these shapes."""
    width = max((shape.tile_width for shape in shapes), default=0)
    return WARP * (width + 2) if width else 0


def block_threads(shapes: Sequence[SourceShape]) -> int:
    """Threads in a block of a kernel that folds these shapes: fewer the wider its tiles."""
    if SIMULATED:
        return WARP
    warps = 8
    while warps > 1 and warps * warp_tile_words(shapes) * 8 > _SHARED_BYTES:
        warps //= 2
    return warps * WARP


def kernel_sources(sources: Sequence[FlatSource], device: torch.device) -> list[torch.Tensor]:
    """The tensors that fill a kernel's source arguments: uint64 words or uint8 bytes, padded to 4 with empty ones."""
    tensors = [source.flat if source.alignment == 1 else source.words.view(torch.uint64) for source in sources]
    empty = torch.empty(0, dtype=torch.uint64, device=device)
    return tensors + [empty] * (MAX_REAL_KV_SOURCES - len(tensors))
