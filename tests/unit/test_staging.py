"""Pieces that are gathered and moved instead of read in place: the same hashes, and buffers used in turns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_kv_hashes import noise

from canary_numba import kv_hashes
from canary_numba.dump import Half, load_dump
from canary_numba.engines.cpu.gather import gather_slots
from canary_numba.kv_hashes import bytes_per_slot, hash_slots
from canary_numba.layout import RealKvHashMode
from canary_numba.sources import flatten_source

CLEAN = Path(__file__).parents[2] / "examples" / "dumps" / "clean.pt"
SHAPES = [(1, 64, 64), (16, 584, 584), (4, 24, 9), (2, 7, 7), (513, 32, 32), (3, 40, 1)]


class Mover:
    """Stands in for a GPU's buffers. What may be overwritten at any time is: nobody may have it in use any more."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.calls: list[tuple[str, int]] = []
        self.hosts = [torch.empty(nbytes, dtype=torch.uint8) for _ in range(2)]
        self.devices = [torch.empty(nbytes, dtype=torch.uint8) for _ in range(2)]

    def host(self, turn: int) -> torch.Tensor:
        self.calls.append(("host", turn))
        return self.hosts[turn].fill_(0xAA)

    def send(self, turn: int, nbytes: int) -> torch.Tensor:
        self.calls.append(("send", turn))
        self.devices[turn][:nbytes] = self.hosts[turn][:nbytes]
        self.hosts[turn].fill_(0xBB)
        return self.devices[turn][:nbytes]

    def used(self, turn: int) -> None:
        self.calls.append(("used", turn))
        self.devices[turn].fill_(0xCC)


def half_of(*shapes: tuple[int, int, int]) -> Half:
    half = load_dump(CLEAN).groups[0].halves["K"]
    sources = tuple(
        noise(half.num_slots, page_size=page, token_bytes=width, read_bytes=read, seed=i)
        for i, (page, width, read) in enumerate(shapes)
    )
    return replace(half, sources=sources)


@pytest.mark.parametrize("piece_bytes", [1, 700, 5000, 1 << 30])
@pytest.mark.parametrize("mode", [RealKvHashMode.PARTIAL, RealKvHashMode.ALL])
def test_moved_or_in_place(mode: RealKvHashMode, piece_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_hashes, "PIECE_BYTES", piece_bytes)
    half = half_of(*SHAPES)
    slots = torch.randperm(half.num_slots, generator=torch.Generator().manual_seed(1))[:300]
    movers: list[Mover] = []

    def staging(nbytes: int) -> Mover:
        movers.append(Mover(nbytes))
        return movers[-1]

    done: list[int] = []
    moved = hash_slots(
        half, mode, slots, engine="cpu", device=torch.device("cpu"), advance=done.append, staging=staging
    )
    in_place = hash_slots(
        half, mode, slots, engine="reference", device=torch.device("cpu"), advance=lambda done_bytes: None
    )
    assert moved.equal(in_place)
    assert sum(done) == 300 * bytes_per_slot(half, mode)
    (mover,) = movers
    assert mover.nbytes <= max(piece_bytes + 8 * 300, 584)
    steps = [("host", "send", "used")[i % 3] for i in range(len(mover.calls))]
    assert [name for name, _ in mover.calls] == steps
    assert [turn for _, turn in mover.calls] == [i // 3 % 2 for i in range(len(mover.calls))]
    assert len(done) == len(mover.calls) // 3


def test_nothing_to_hash_moves_nothing() -> None:
    def staging(nbytes: int) -> Mover:
        raise AssertionError("no buffer is needed")

    none = torch.empty(0, dtype=torch.int64)
    hashes = hash_slots(
        half_of((1, 64, 64)),
        RealKvHashMode.ALL,
        none,
        engine="cpu",
        device=torch.device("cpu"),
        advance=lambda done_bytes: None,
        staging=staging,
    )
    assert not hashes.any()


@given(st.sampled_from(SHAPES), st.lists(st.integers(0, 512), max_size=20), st.integers(0, 2))
def test_gathering(shape: tuple[int, int, int], slots: list[int], gap: int) -> None:
    page, width, read = shape
    source = noise(513, page_size=page, token_bytes=width, read_bytes=read)
    rows = source.tensor.shape[0]
    spaced = torch.zeros((rows, source.tensor.shape[1] + gap), dtype=torch.uint8)
    spaced[:, : source.tensor.shape[1]] = source.tensor
    flat = flatten_source(kv_hashes.in_place(replace(source, tensor=spaced[:, : source.tensor.shape[1]])), 2)
    out = torch.full((len(slots), -(-read // 8) * 8), 9, dtype=torch.uint8)
    gather_slots(flat, torch.tensor(slots, dtype=torch.int64), out)
    for slot, row in zip(slots, out, strict=True):
        start = slot % page * width
        assert row[:read].equal(source.tensor[slot // page, start : start + read])
        assert not row[read:].any()
