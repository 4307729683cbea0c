"""Dumps that hold the K/V bytes of few slots: what is refused, checked, taken at its word, and shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from dump_samples import in_half, int64, refused

from canary_numba.capture.suspects import MAX_SUSPECTS, NEIGHBOURS, keep_slots, with_neighbours
from canary_numba.check import check_dump
from canary_numba.diagnosis import partial_sources
from canary_numba.diagnosis.partial_sources import spread_sources
from canary_numba.dump import Dump, Half, Source, load_dump, save_dump

EXAMPLES = Path(__file__).parents[2] / "examples" / "dumps"


def cut(dump: Dump, slots: torch.Tensor) -> Dump:
    """Keep the bytes of ``slots`` only."""
    halves = {
        name: replace(half, sources=keep_slots(half.sources, slots), source_slots=slots)
        for name, half in dump.groups[0].halves.items()
    }
    return replace(dump, groups=(replace(dump.groups[0], halves=halves),))


def flipped_slot() -> tuple[Dump, int]:
    dump = load_dump(EXAMPLES / "kv_bit_flip.pt")
    (row,) = next(check.rows.tolist() for check in check_dump(dump, engine="cpu").checks if check.rows.shape[0])
    return dump, int(row[1])


@pytest.mark.parametrize("form", ["pt", "safetensors"])
def test_kept_slots_are_checked_and_others_taken_at_their_word(form: str, tmp_path: Path) -> None:
    dump, slot = flipped_slot()
    whole = check_dump(dump, engine="cpu").num_violations
    assert whole > 0
    for slots, found in ((int64(slot - 1, slot, slot + 1), whole), (int64(slot + 1, slot + 2), 0), (int64(), 0)):
        path = tmp_path / f"{found}-{slots.shape[0]}.{form}"
        save_dump(cut(dump, slots), path)
        assert check_dump(load_dump(path), engine="cpu").num_violations == found


def test_pages_are_cut_slot_by_slot() -> None:
    tensor = torch.arange(4 * 14, dtype=torch.int16).reshape(4, 14)
    source = Source(name="k", tensor=tensor[:, :13], page_size=3, num_bytes_per_token=8, read_bytes=7)
    (kept,) = keep_slots((source,), int64(1, 5, 9))
    assert kept.tensor.tolist() == [[4, 5, 6, 7], [22, 23, 24, 25], [42, 43, 44, 45]]
    assert (kept.page_size, kept.num_bytes_per_token, kept.read_bytes) == (1, 8, 7)


@pytest.mark.parametrize("slots", [int64(3, 2), int64(2, 2), int64(-1, 2), int64(2, 9)])
def test_slots_ascend_inside_the_pool(slots: torch.Tensor) -> None:
    refused(in_half("source_slots", slots), "groups[0].halves.K.source_slots", "ascending slots from 0 to 8")


def test_sources_hold_every_slot_listed() -> None:
    def spoil(dump: dict[str, Any]) -> None:
        half = dump["groups"][0]["halves"]["K"]
        half["sources"][0]["tensor"] = half["sources"][0]["tensor"][:1]
        half["source_slots"] = int64(1, 2, 4)

    refused(spoil, "groups[0].halves.K.sources[0].tensor", "bytes for the 3 slots of source_slots")


def test_bytes_are_spread_over_the_pool_for_the_diagnosis(monkeypatch: pytest.MonkeyPatch) -> None:
    dump, slot = flipped_slot()
    part = cut(dump, int64(slot - 1, slot))
    half: Half = spread_sources(part).groups[0].halves["K"]
    before = dump.groups[0].halves["K"].sources[0]
    (again,) = keep_slots((half.sources[0],), int64(slot - 1, slot, slot + 1))
    (there,) = keep_slots((before,), int64(slot - 1, slot))
    assert torch.equal(again.tensor[:2], there.tensor)
    assert not again.tensor[2].any()
    assert half.source_slots is None
    monkeypatch.setattr(partial_sources, "MAX_BYTES", 100)
    assert spread_sources(part).groups[0].halves["K"].sources == ()


def test_neighbours_stay_in_the_pool_and_suspects_are_few() -> None:
    assert with_neighbours(int64(2, 99, -5, 1 << 40), 100).tolist() == [*range(11), *range(91, 100)]
    many = with_neighbours(torch.arange(10 * MAX_SUSPECTS), 10 * MAX_SUSPECTS)
    assert many.shape[0] == MAX_SUSPECTS + NEIGHBOURS
