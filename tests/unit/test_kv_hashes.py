"""K/V bytes of a dump: any number of sources of any shape, hashed as the naive oracle hashes them."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import harness
import naive
import pytest
import torch

from canary_numba import kv_hashes
from canary_numba.check import check_dump
from canary_numba.dump import Dump, Source, load_dump
from canary_numba.layout import RealKvHashMode
from canary_numba.violation_list import ViolationList

CLEAN = Path(__file__).parents[2] / "examples" / "dumps" / "clean.pt"


def with_half(dump: Dump, **changes: object) -> Dump:
    group = dump.groups[0]
    halves = dict(group.halves) | {"K": replace(group.halves["K"], **changes)}  # type: ignore[arg-type]
    return replace(dump, groups=(replace(group, halves=halves),))


def with_sources(dump: Dump, sources: tuple[Source, ...]) -> Dump:
    """The dump with other K/V bytes in its K half, and the hashes of those by the naive oracle in its tail records."""
    half = dump.groups[0].halves["K"]
    assert half.tail is not None
    plain = [harness.source_of(kv_hashes.in_place(source)) for source in sources]
    mode = int(dump.hash_mode)
    hashes = [naive.signed(naive.real_kv_hash(plain, mode, slot)) for slot in range(half.num_slots)]
    tail = half.tail.clone()
    tail.view(torch.int64)[:, 3] = torch.tensor(hashes)
    return with_half(dump, sources=sources, tail=tail)


def noise(num_slots: int, *, page_size: int, token_bytes: int, read_bytes: int, seed: int = 0) -> Source:
    generator = torch.Generator().manual_seed(seed)
    rows = -(-num_slots // page_size)
    tensor = torch.randint(0, 256, (rows, page_size * token_bytes), generator=generator).to(torch.uint8)
    return Source(
        name=f"layer{seed}",
        tensor=tensor,
        page_size=page_size,
        num_bytes_per_token=token_bytes,
        read_bytes=read_bytes,
    )


@pytest.mark.parametrize(
    "shapes",
    [
        pytest.param([(1, 64, 64)] * 6, id="more sources than a launch takes"),
        pytest.param([(16, 584, 584)], id="584 bytes a slot, 16 slots a page"),
        pytest.param([(16, 584, 580), (1, 24, 9), (4, 7, 7), (1, 64, 64), (2, 1, 1)], id="all kinds"),
    ],
)
def test_sources_of_any_number_and_shape(engine: str, shapes: list[tuple[int, int, int]]) -> None:
    clean = load_dump(CLEAN)
    slots = clean.groups[0].halves["K"].num_slots
    sources = tuple(
        noise(slots, page_size=page, token_bytes=width, read_bytes=read, seed=i)
        for i, (page, width, read) in enumerate(shapes)
    )
    dump = with_sources(clean, sources)
    assert check_dump(dump, engine=engine).num_violations == 0

    assert clean.radix is not None
    slot = int(clean.radix.slot_indices[100])
    for i, (page, width, read) in enumerate(shapes):
        tensor = sources[i].tensor.clone()
        tensor[slot // page, (slot % page) * width + read - 1] ^= 1
        spoilt = (*sources[:i], replace(sources[i], tensor=tensor), *sources[i + 1 :])
        half = dump.groups[0].halves["K"]
        broken = with_half(dump, sources=spoilt, tail=half.tail)
        found = ViolationList(broken, check_dump(broken, engine=engine))
        assert {v.tag for v in found} <= {"TAIL_K_FULL", "SWEEP_K_FULL"}
        assert {(v.slot, v.fail_reason_bits) for v in found} == {(slot, 4)}


@pytest.mark.parametrize("mode", [RealKvHashMode.PARTIAL, RealKvHashMode.ALL])
def test_slots_not_asked_for_stay_zero(mode: RealKvHashMode, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    half = load_dump(CLEAN).groups[0].halves["K"]
    sources = tuple(noise(half.num_slots, page_size=4, token_bytes=24, read_bytes=20, seed=i) for i in range(5))
    half = replace(half, sources=sources)
    slots = torch.tensor([1, 7, 8, 300, half.num_slots - 1])
    # Two slots a piece: 1 alone, 7 alone, 8 alone, ..., since those between them count as well.
    monkeypatch.setattr(kv_hashes, "PIECE_BYTES", 2 * 24)
    done: list[int] = []
    hashes = kv_hashes.hash_slots(
        half, mode, slots, engine=engine, device=torch.device(harness.device_of(engine)), advance=done.append
    ).cpu()
    plain = [harness.source_of(kv_hashes.in_place(source)) for source in sources]
    assert hashes[slots].tolist() == [naive.signed(naive.real_kv_hash(plain, int(mode), s)) for s in slots.tolist()]
    assert int(hashes.count_nonzero()) == 5
    width = 16 if mode == RealKvHashMode.PARTIAL else 20
    assert done == [width] * 5 * 5


@pytest.mark.skipif(not Path("/proc/self/pagemap").exists(), reason="Linux only")
@pytest.mark.parametrize(("mode", "step"), [(RealKvHashMode.ALL, 1), (RealKvHashMode.PARTIAL, 50)])
def test_a_mapped_file_does_not_pile_up_in_memory(mode: RealKvHashMode, step: int, tmp_path: Path) -> None:
    program = f"""
import torch
from pathlib import Path
from measure import resident_kib
from canary_numba import kv_hashes
from canary_numba.dump import Half, Source
from canary_numba.layout import RealKvHashMode

kv_hashes.PIECE_BYTES = 16 << 20
rows = 1 << 17
sources = []
for name in ("a", "b"):
    path = {str(tmp_path)!r} + "/" + name
    with open(path, "wb") as file:
        file.truncate(rows << 12)
    mapped = torch.from_file(path, shared=False, size=rows << 12, dtype=torch.uint8).view(rows, 4096)
    sources.append(Source(name=name, tensor=mapped, page_size=1, num_bytes_per_token=4096, read_bytes=4096))
half = Half(tail=torch.zeros((rows, 32), dtype=torch.uint8), sources=tuple(sources))
def hash_them(slots):
    kv_hashes.hash_slots(half, RealKvHashMode({int(mode)}), slots, engine="cpu", device=torch.device("cpu"),
                         advance=lambda done: None)
hash_them(torch.arange(10))
Path("/proc/self/clear_refs").write_text("5")
before = resident_kib("VmRSS")
hash_them(torch.arange(0, rows, {step}))
print(resident_kib("VmHWM") - before)
"""
    attacks = Path(__file__).parents[1] / "attacks"
    environment = os.environ | {"PYTHONPATH": str(attacks)}
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True)
    # A gibibyte was mapped and every page of it, or every fiftieth, touched.
    assert int(run.stdout) < 128 << 10
