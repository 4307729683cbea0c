"""Hashing the K/V bytes of a dump: any number of sources, any size, each byte read once.

Bytes stream through in pieces, so that a mapped file far larger than memory passes: a piece is a run of slots of one
source. CPU engines read it where it lies, while the system fetches the next; for a GPU it is gathered, without the
bytes that the hash mode leaves out, and copied beside the kernels. Only 8 bytes a slot are kept.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from canary_numba.context import RealKvSource
from canary_numba.dump.model import Half, Source
from canary_numba.dump.pages import fetch, forget
from canary_numba.launch import launch_real_kv_hash_kernel
from canary_numba.layout import RealKvHashMode
from canary_numba.sources import FlatSource, flatten_source, read_bytes_of
from canary_numba.staging import CudaStaging, Staging

PIECE_BYTES = 128 << 20
"""From the first to the last byte of a piece, at most, whatever part of it is read. So much of a mapped file is in
memory at a time, and no staging buffer is larger."""

_WORD_BYTES = 8


def bytes_per_slot(half: Half, mode: RealKvHashMode) -> int:
    """K/V bytes that ``mode`` reads for one slot of all sources together."""
    return 0 if mode == RealKvHashMode.NONE else sum(read_bytes_of(source, mode) for source in half.sources)


def hash_slots(
    half: Half,
    mode: RealKvHashMode,
    slots: torch.Tensor,
    *,
    engine: str,
    device: torch.device,
    advance: Callable[[int], None],
    staging: Callable[[int], Staging] | None = None,
) -> torch.Tensor:
    """Compute the real-KV hash that each of ``slots`` should carry.

    Parameters
    ----------
    half
        Its sources are folded in order. Their tensors are on the CPU, most often mapped files.
    mode
        PARTIAL or ALL.
    slots
        int64 ``[n]`` on the CPU, distinct, inside the pool.
    engine, device
        Who folds, and on which device's tensors.
    advance
        Told the bytes done after each piece.
    staging
        Makes what moves pieces to the device, given the bytes of the largest. Default: for CUDA pinned buffers and a
        stream for the copies, else none: the bytes are read where they are.

    Returns
    -------
    torch.Tensor
        int64 ``[num_slots]`` on ``device``, zero for slots not listed.
    """
    if staging is None and device.type == "cuda":
        staging = functools.partial(CudaStaging, device=device)
    pieces = _Pieces(half, mode, slots)
    # All in device memory until the end: a copy from here in between would wait for the kernels before it.
    hashes = torch.zeros(pieces.slots.shape[0], dtype=torch.int64, device=device)
    parts = torch.split(hashes, [chunk.shape[0] for chunk in pieces.chunks])
    mover = staging(pieces.most_bytes) if staging is not None and pieces.chunks else None
    for number, (chunk, part) in enumerate(zip(pieces.chunks, parts, strict=True)):
        for place, flat in enumerate(pieces.flats):
            pieces.fetch_after(number, place)
            if mover is None:
                source, local = in_place(half.sources[place]), chunk
            else:
                turn = (number * len(pieces.flats) + place) % 2
                source, local = _stage(flat, chunk, mover, turn), torch.arange(chunk.shape[0], device=device)
            launch_real_kv_hash_kernel(
                real_kv_sources=(source,),
                real_kv_hash_mode=mode if mover is None else RealKvHashMode.ALL,
                slot_indices=local,
                hashes_out=part,
                engine=engine,
            )
            if mover is not None:
                mover.used(turn)
            forget(*extent_of(flat, chunk))
            advance(chunk.shape[0] * flat.read_bytes)
    by_slot = torch.zeros(half.num_slots, dtype=torch.int64, device=device)
    by_slot[pieces.slots.to(device)] = hashes
    return by_slot


class _Pieces:
    """The slots in ascending order, cut into chunks, and the sources: a piece for each pair, chunk by chunk.

    ``most_bytes``: what the largest piece takes when it is gathered.
    """

    def __init__(self, half: Half, mode: RealKvHashMode, slots: torch.Tensor) -> None:
        self.flats = [flatten_source(in_place(source), mode) for source in half.sources]
        widest = max((_bytes_between_slots(flat) for flat in self.flats), default=1)
        step = max(1, PIECE_BYTES // widest)
        wanted = torch.zeros(half.num_slots, dtype=torch.bool)
        wanted[slots] = True
        self.slots = wanted.nonzero()[:, 0]
        edges = torch.searchsorted(self.slots, torch.arange(0, half.num_slots, step)[1:])
        self.chunks = [chunk for chunk in torch.tensor_split(self.slots, edges) if chunk.shape[0]]
        most_slots = max((chunk.shape[0] for chunk in self.chunks), default=0)
        self.most_bytes = most_slots * max((_staged_width(flat) for flat in self.flats), default=0)

    def fetch_after(self, number: int, place: int) -> None:
        """Have the system read the piece after that of this chunk and source."""
        number, place = (number, place + 1) if place + 1 < len(self.flats) else (number + 1, 0)
        if number < len(self.chunks):
            start, nbytes = extent_of(self.flats[place], self.chunks[number])
            # Where few of the bytes are wanted, reading all of them would take longer than waiting for these.
            if 2 * self.chunks[number].shape[0] * self.flats[place].read_bytes >= nbytes:
                fetch(start, nbytes)


def in_place(source: Source) -> RealKvSource:
    """A dump's source as launchers take it, over the same bytes."""
    return RealKvSource(
        tensor=source.tensor,
        page_size=source.page_size,
        num_bytes_per_token=source.num_bytes_per_token,
        read_bytes=source.read_bytes,
    )


def _bytes_between_slots(flat: FlatSource) -> int:
    return max(flat.token_bytes, -(-flat.row_stride // flat.page_size))


def extent_of(flat: FlatSource, slots: torch.Tensor) -> tuple[int, int]:
    """Address of the first byte of ascending ``slots``, and the bytes from there to the end of the last."""
    first, last = (
        slot // flat.page_size * flat.row_stride + slot % flat.page_size * flat.token_bytes
        for slot in (int(slots[0]), int(slots[-1]))
    )
    return flat.flat.data_ptr() + first, last - first + flat.read_bytes


def _staged_width(flat: FlatSource) -> int:
    """Bytes of a slot when gathered: its last word is filled up with zeros, as the hash does anyway."""
    return -(-flat.read_bytes // _WORD_BYTES) * _WORD_BYTES


def _stage(flat: FlatSource, slots: torch.Tensor, mover: Staging, turn: int) -> RealKvSource:
    """Gather what is read of ``slots`` and send it; on the device it is a source of slots 0, 1, 2, ..."""
    from canary_numba.engines.cpu.gather import gather_slots

    width = _staged_width(flat)
    nbytes = slots.shape[0] * width
    gather_slots(flat, slots, mover.host(turn)[:nbytes].view(-1, width))
    sent = mover.send(turn, nbytes).view(-1, width)
    return RealKvSource(tensor=sent, page_size=1, num_bytes_per_token=width, read_bytes=width)
