"""K/V bytes that stream through a GPU's buffers: the same hashes as where they lie, however small the pieces."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from canary_numba import kv_hashes
from canary_numba.check import check_dump
from canary_numba.dump import Half, Source, load_dump
from canary_numba.kv_hashes import hash_slots
from canary_numba.layout import RealKvHashMode
from canary_numba.violation_list import ViolationList

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")]

SLOTS = 20_000
CORRUPT = Path(__file__).parents[2] / "examples" / "dumps" / "double_allocation.pt"


def half_of(*shapes: tuple[int, int, int]) -> Half:
    """Random bytes: (slots a page, bytes a slot, bytes read) for each source."""
    generator = torch.Generator().manual_seed(3)
    sources = []
    for i, (page, width, read) in enumerate(shapes):
        rows = -(-SLOTS // page)
        tensor = torch.randint(0, 256, (rows, page * width), generator=generator).to(torch.uint8)
        sources.append(
            Source(name=f"layer{i}", tensor=tensor, page_size=page, num_bytes_per_token=width, read_bytes=read)
        )
    return Half(tail=torch.zeros((SLOTS, 32), dtype=torch.uint8), sources=tuple(sources))


def hashes_of(half: Half, mode: RealKvHashMode, slots: torch.Tensor, engine: str) -> torch.Tensor:
    device = torch.device("cuda", 0) if engine == "cuda" else torch.device("cpu")
    done: list[int] = []
    hashes = hash_slots(half, mode, slots, engine=engine, device=device, advance=done.append).cpu()
    assert sum(done) == slots.shape[0] * kv_hashes.bytes_per_slot(half, mode)
    return hashes


@pytest.mark.parametrize("piece_bytes", [40_000, 1 << 20, 1 << 30])
@pytest.mark.parametrize("mode", [RealKvHashMode.PARTIAL, RealKvHashMode.ALL])
@pytest.mark.parametrize("kind", ["all", "scattered"])
def test_the_gpu_hashes_as_the_cpu_does(
    kind: str, mode: RealKvHashMode, piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = half_of((1, 1024, 1024), (16, 584, 580), (1, 64, 64), (4, 24, 9), (SLOTS, 128, 128))
    slots = torch.arange(SLOTS)
    if kind == "scattered":
        slots = torch.randperm(SLOTS, generator=torch.Generator().manual_seed(5))[:777]
    expected = hashes_of(half, mode, slots, "cpu")
    monkeypatch.setattr(kv_hashes, "PIECE_BYTES", piece_bytes)
    # More than once: a copy that overtakes a kernel does not do so every time.
    for _ in range(3):
        assert hashes_of(half, mode, slots, "cuda").equal(expected)


def test_a_dump_checks_the_same_in_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    dump = load_dump(CORRUPT)
    whole = ViolationList(dump, check_dump(dump, engine="cpu"))
    monkeypatch.setattr(kv_hashes, "PIECE_BYTES", 1000)
    assert ViolationList(dump, check_dump(dump, engine="cuda")) == whole


def test_bytes_of_a_mapped_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbytes = 64 << 20
    path = tmp_path / "bytes"
    torch.randint(0, 256, (nbytes,), generator=torch.Generator().manual_seed(1)).to(torch.uint8).numpy().tofile(path)
    mapped = torch.from_file(str(path), shared=False, size=nbytes, dtype=torch.uint8).view(-1, 4096)
    source = Source(name="", tensor=mapped, page_size=1, num_bytes_per_token=4096, read_bytes=4096)
    half = Half(tail=torch.zeros((mapped.shape[0], 32), dtype=torch.uint8), sources=(source,))
    monkeypatch.setattr(kv_hashes, "PIECE_BYTES", 8 << 20)
    slots = torch.arange(mapped.shape[0])
    expected = hashes_of(half, RealKvHashMode.ALL, slots, "cpu")
    assert hashes_of(half, RealKvHashMode.ALL, slots, "cuda").equal(expected)
