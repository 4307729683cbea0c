"""Hashes of single sources: they combine to the record's, name the layer that changed, and stand in for the bytes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import naive
import pytest
import torch
from canary_cli.render import table
from hypothesis import given
from hypothesis import strategies as st
from test_kv_hashes import noise, with_half, with_sources

from canary_numba import check_hashes
from canary_numba.check import check_dump
from canary_numba.check_hashes import combine_source_hashes
from canary_numba.context import RealKvSource
from canary_numba.dump import Dump, load_dump
from canary_numba.launch import launch_real_kv_hash_kernel
from canary_numba.layout import RealKvHashMode
from canary_numba.mixing import splitmix64_inverse
from canary_numba.reference.words import mix, unmix
from canary_numba.report import Report, build_dump_report, tool_of
from canary_numba.violation_list import ViolationList

CLEAN = Path(__file__).parents[2] / "examples" / "dumps" / "clean.pt"
INT64 = st.integers(-(2**63), 2**63 - 1)


@given(st.lists(INT64, min_size=1, max_size=8))
def test_mixing_can_be_undone(words: list[int]) -> None:
    tensor = torch.tensor(words, dtype=torch.int64)
    assert mix(unmix(tensor)).tolist() == unmix(mix(tensor)).tolist() == words
    assert [word % 2**64 for word in unmix(tensor).tolist()] == [splitmix64_inverse(word) for word in words]


@given(st.lists(INT64, max_size=6))
def test_single_hashes_combine_as_a_record_does(folds: list[int]) -> None:
    combined = 0
    for fold in folds:
        combined = naive.splitmix64(combined ^ (fold % 2**64))
    alone = torch.tensor([[naive.signed(naive.splitmix64(fold % 2**64)) for fold in folds]], dtype=torch.int64)
    assert combine_source_hashes(alone.reshape(1, len(folds))).tolist() == [naive.signed(combined)]


def single_hashes(dump: Dump) -> torch.Tensor:
    half = dump.groups[0].halves["K"]
    columns = []
    for source in half.sources:
        hashes = torch.zeros(half.num_slots, dtype=torch.int64)
        launch_real_kv_hash_kernel(
            real_kv_sources=(
                RealKvSource(
                    tensor=source.tensor,
                    page_size=source.page_size,
                    num_bytes_per_token=source.num_bytes_per_token,
                    read_bytes=source.read_bytes,
                ),
            ),
            real_kv_hash_mode=dump.hash_mode,
            slot_indices=torch.arange(half.num_slots),
            hashes_out=hashes,
            engine="reference",
        )
        columns.append(hashes)
    return torch.stack(columns, dim=1)


@pytest.fixture(params=[RealKvHashMode.ALL, RealKvHashMode.PARTIAL])
def layered(request: pytest.FixtureRequest) -> Dump:
    """A dump with five layers of K bytes, one of them without a name, and the hash of each."""
    clean = replace(load_dump(CLEAN), hash_mode=request.param)
    slots = clean.groups[0].halves["K"].num_slots
    sources = [noise(slots, page_size=1 + i % 2 * 3, token_bytes=24, read_bytes=20 + i, seed=i) for i in range(5)]
    sources[3] = replace(sources[3], name="")
    dump = with_sources(clean, tuple(sources))
    half = dump.groups[0].halves["V"]
    if request.param == RealKvHashMode.PARTIAL:
        group = dump.groups[0]
        dump = replace(dump, groups=(replace(group, halves={"K": group.halves["K"]}),))
    assert half.num_slots == slots
    return with_half(dump, source_hashes=single_hashes(dump))


def changed(dump: Dump, slot: int, *layers: int) -> Dump:
    """The dump with a bit of ``slot`` flipped in each of ``layers``."""
    sources = list(dump.groups[0].halves["K"].sources)
    for layer in layers:
        source = sources[layer]
        tensor = source.tensor.clone()
        tensor[slot // source.page_size, slot % source.page_size * source.num_bytes_per_token + 3] ^= 16
        sources[layer] = replace(source, tensor=tensor)
    return with_half(dump, sources=tuple(sources))


def slot_of(dump: Dump, number: int) -> int:
    assert dump.radix is not None
    return int(dump.radix.slot_indices[number])


def test_the_changed_layer_is_named(layered: Dump, engine: str) -> None:
    first, second = slot_of(layered, 100), slot_of(layered, 7)
    dump = changed(changed(layered, first, 2), second, 0, 3)
    result = check_dump(dump, engine=engine)
    found = ViolationList(dump, result)
    assert {(v.slot, v.sources) for v in found} == {(first, ("layer2",)), (second, ("layer0", "source 3"))}
    assert {v.tag for v in found} >= {"SWEEP_K_FULL"}
    data = build_dump_report(dump, result).to_dict()["violations"]
    assert {tuple(violation["sources"]) for violation in data} == {("layer2",), ("layer0", "source 3")}


def test_the_table_has_a_column_for_it(layered: Dump) -> None:
    plain = changed(layered, slot_of(layered, 100), 2)
    for dump, shown in (
        (changed(plain, slot_of(layered, 100), 0, 3), True),
        (with_half(plain, source_hashes=None), False),
    ):
        result = check_dump(dump, engine="cpu")
        report = Report(tool=tool_of(result), dumps=(build_dump_report(dump, result),))
        text = table.render(report, 0, color=False, width=120)
        assert ("changed" in text.split("Violations (")[1].splitlines()[1]) == shown
        assert ("layer0 +2" in text) == shown


def test_the_names_do_not_depend_on_how_many_are_looked_at_once(layered: Dump, monkeypatch: pytest.MonkeyPatch) -> None:
    dump = layered
    for number in range(0, 50, 5):
        dump = changed(dump, slot_of(layered, number), number % 4)
    whole = ViolationList(dump, check_dump(dump, engine="cpu"))
    assert len({v.slot for v in whole}) == 10
    monkeypatch.setattr(check_hashes, "ROWS_AT_ONCE", 3)
    assert ViolationList(dump, check_dump(dump, engine="cpu")) == whole


def test_without_single_hashes_nothing_is_named(layered: Dump) -> None:
    dump = with_half(changed(layered, slot_of(layered, 100), 2), source_hashes=None)
    result = check_dump(dump, engine="cpu")
    assert {v.sources for v in ViolationList(dump, result)} == {None}
    assert all("sources" not in violation for violation in build_dump_report(dump, result).to_dict()["violations"])


def test_single_hashes_of_other_bytes_name_nothing(layered: Dump) -> None:
    slot = slot_of(layered, 100)
    half = layered.groups[0].halves["K"]
    assert half.source_hashes is not None
    stale = half.source_hashes.clone()
    stale[slot, 4] += 1
    dump = with_half(changed(layered, slot, 2), source_hashes=stale)
    assert {(v.slot, v.sources) for v in ViolationList(dump, check_dump(dump, engine="cpu"))} == {(slot, None)}


def test_a_record_whose_hash_was_damaged_accuses_no_layer(layered: Dump) -> None:
    slot = slot_of(layered, 100)
    tail = layered.groups[0].halves["K"].tail
    assert tail is not None
    tail = tail.clone()
    tail[slot, 30] ^= 1
    dump = with_half(layered, tail=tail)
    assert {(v.slot, v.sources) for v in ViolationList(dump, check_dump(dump, engine="cpu"))} == {(slot, None)}


def test_other_failures_of_a_slot_name_no_layer(layered: Dump) -> None:
    slot = slot_of(layered, 100)
    tail = layered.groups[0].halves["K"].tail
    assert tail is not None
    tail = tail.clone()
    tail[slot, 8] ^= 1
    dump = with_half(layered, tail=tail)
    found = ViolationList(dump, check_dump(dump, engine="cpu"))
    assert found
    assert {v.sources for v in found} == {None}


def test_hashes_stand_in_for_bytes_that_were_left_out(layered: Dump, engine: str) -> None:
    dump = with_half(layered, sources=())
    result = check_dump(dump, engine=engine)
    assert result.num_violations == 0
    (skip,) = result.skipped
    assert skip.what == "K/V bytes of TAIL_K_FULL"
    assert skip.reason.endswith("its records were compared with its source_hashes instead")
    half = layered.groups[0].halves["K"]
    slot = slot_of(layered, 100)
    assert half.source_hashes is not None
    assert half.tail is not None
    hashes, tail = half.source_hashes.clone(), half.tail.clone()
    hashes[slot, 1] ^= 1
    tail[slot, 25] ^= 1
    for broken in (with_half(dump, source_hashes=hashes), with_half(dump, tail=tail)):
        found = ViolationList(broken, check_dump(broken, engine=engine))
        assert {(v.slot, v.fail_reason_bits, v.sources) for v in found} == {(slot, 4, None)}
