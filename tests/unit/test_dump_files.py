"""Dumps on disk: round trips, which reader takes a file, atomic writing, memory mapping."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from dump_samples import SLOTS, mutated, same, sample
from safetensors import safe_open

from canary_numba.dump import Dump, decode, encode, load_dump, save_dump
from canary_numba.errors import ArgumentError, DumpError, DumpFormatError, DumpReadError

SUFFIXES = (".pt", ".safetensors")


def with_source(dump: Dump, tensor: torch.Tensor) -> Dump:
    """The dump with ``tensor`` in place of the first K source of its first group."""
    group = dump.groups[0]
    half = group.halves["K"]
    sources = (replace(half.sources[0], tensor=tensor), *half.sources[1:])
    halves = {**group.halves, "K": replace(half, sources=sources)}
    return replace(dump, groups=(replace(group, halves=halves), *dump.groups[1:]))


def test_every_shared_dump_survives_both_formats(shared: Path, tmp_path: Path) -> None:
    paths = sorted((shared / "dumps").glob("*.pt"))
    assert paths
    for path in paths:
        original = load_dump(path)
        save_dump(original, tmp_path / "a.safetensors", force=True)
        through_safetensors = load_dump(tmp_path / "a.safetensors")
        save_dump(through_safetensors, tmp_path / "a.pt", force=True)
        raw = torch.load(path, weights_only=True)
        raw["requests"]["extend_seq_lens"] = torch.zeros_like(raw["requests"]["prefix_lens"])
        assert same(encode(original), raw)
        assert same(original, through_safetensors)
        assert same(original, load_dump(tmp_path / "a.pt"))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_documented_key_survives(tmp_path: Path, suffix: str) -> None:
    save_dump(decode(sample()), tmp_path / f"a{suffix}")
    loaded = load_dump(tmp_path / f"a{suffix}")
    assert same(encode(loaded), sample())
    assert loaded.path == str(tmp_path / f"a{suffix}")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_same_dump_gives_the_same_bytes(tmp_path: Path, suffix: str) -> None:
    for name in ("a", "b"):
        save_dump(decode(sample()), tmp_path / f"{name}{suffix}")
    assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_smallest_dump_survives(tmp_path: Path, suffix: str) -> None:
    tail = torch.zeros((0, 32), dtype=torch.uint8)
    groups = [{"kind": "FULL", "halves": {"K": {"tail": tail}}}]
    dump = decode({"format": "canary-dump", "version": 1, "hash_mode": "none", "groups": groups})
    save_dump(dump, tmp_path / f"a{suffix}")
    assert same(load_dump(tmp_path / f"a{suffix}"), dump)


def test_content_decides_which_reader_takes_a_file(tmp_path: Path) -> None:
    dump = decode(sample())
    save_dump(dump, tmp_path / "a.pt")
    save_dump(dump, tmp_path / "a.safetensors")
    (tmp_path / "a.pt").rename(tmp_path / "b.safetensors")
    (tmp_path / "a.safetensors").rename(tmp_path / "b.pt")
    assert same(load_dump(tmp_path / "b.safetensors"), dump)
    assert same(load_dump(tmp_path / "b.pt"), dump)


def test_a_dump_written_by_plain_torch_save_is_read(tmp_path: Path) -> None:
    torch.save(sample(), tmp_path / "plain.pt")
    assert same(encode(load_dump(tmp_path / "plain.pt")), sample())


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.uint16, torch.float32, torch.bool, torch.complex64])
def test_sources_of_any_dtype_survive_as_pt(tmp_path: Path, dtype: torch.dtype) -> None:
    dump = with_source(decode(sample()), torch.ones((SLOTS, 24), dtype=torch.uint8).to(dtype))
    save_dump(dump, tmp_path / "a.pt")
    loaded = load_dump(tmp_path / "a.pt")
    assert same(loaded, dump)
    assert loaded.groups[0].halves["K"].sources[0].tensor.dtype == dtype


def test_a_dtype_that_safetensors_lacks_is_refused_by_key(tmp_path: Path) -> None:
    dump = with_source(decode(sample()), torch.zeros((SLOTS, 24), dtype=torch.complex64))
    with pytest.raises(DumpFormatError, match=r"groups\[0\]\.halves\.K\.sources\[0\]\.tensor: .* got complex64"):
        save_dump(dump, tmp_path / "a.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_interleaved_sources_share_their_storage_in_a_pt_file(tmp_path: Path) -> None:
    mapping = sample()
    pool = torch.arange(SLOTS * 4 * 1024, dtype=torch.int32).reshape(SLOTS, 4, 1024)
    mapping["groups"][0]["halves"]["K"]["sources"] = [
        {"name": f"layer{i}", "tensor": pool[:, i], "page_size": 1, "num_bytes_per_token": 4096, "read_bytes": 4096}
        for i in range(4)
    ]
    del mapping["groups"][0]["halves"]["K"]["source_hashes"]
    dump = decode(mapping)
    save_dump(dump, tmp_path / "a.pt")
    save_dump(dump, tmp_path / "a.safetensors")
    strided = load_dump(tmp_path / "a.pt").groups[0].halves["K"].sources[2].tensor
    packed = load_dump(tmp_path / "a.safetensors").groups[0].halves["K"].sources[2].tensor
    assert strided.stride() == (4096, 1)
    assert packed.is_contiguous()
    assert strided.equal(pool[:, 2])
    assert packed.equal(pool[:, 2])
    assert (tmp_path / "a.pt").stat().st_size < 2 * pool.untyped_storage().nbytes()


def test_a_file_holds_no_bytes_that_the_dump_does_not_show(tmp_path: Path) -> None:
    """A table cut out of a live pool must not bring the pool along."""
    mapping = sample()
    pool = torch.full((1000, 6), 0x5EC2E7, dtype=torch.int32)
    mapping["requests"]["req_to_token"] = pool[10:14]
    save_dump(decode(mapping), tmp_path / "a.pt")
    held = (tmp_path / "a.pt").read_bytes().count(0x5EC2E7.to_bytes(4, "little"))
    assert held == 4 * 6


def test_safetensors_of_others_are_read_and_ours_by_others(tmp_path: Path) -> None:
    save_dump(decode(sample()), tmp_path / "a.safetensors")
    with safe_open(tmp_path / "a.safetensors", framework="pt") as file:
        rest = json.loads(file.metadata()["canary_dump"])
        tail = file.get_tensor("groups/1/halves/K/tail")
    assert tail.equal(sample()["groups"][1]["halves"]["K"]["tail"])
    assert rest["context"] == sample()["context"]
    assert "tail" not in rest["groups"][1]["halves"]["K"]


def test_safetensors_rest_may_leave_out_dicts_that_hold_only_tensors(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    rest = {"format": "canary-dump", "version": 1, "hash_mode": "none", "groups": [{"kind": "FULL"}]}
    tensors = {"groups/0/halves/K/tail": torch.zeros((2, 32), dtype=torch.uint8)}
    for name in ("slot_indices", "positions", "prev_slot_indices"):
        tensors[f"radix/{name}"] = torch.zeros(3, dtype=torch.int64)
    save_file(tensors, tmp_path / "a.safetensors", metadata={"canary_dump": json.dumps(rest)})
    dump = load_dump(tmp_path / "a.safetensors")
    assert dump.radix is not None
    assert dump.radix.positions.tolist() == [0, 0, 0]


def test_many_list_items_keep_their_order_in_safetensors(tmp_path: Path) -> None:
    mapping = sample()
    event = mapping["events"][0]
    mapping["events"] = [{**event, "slots": torch.tensor([i])} for i in range(120)]
    save_dump(decode(mapping), tmp_path / "a.safetensors")
    assert [int(event.slots) for event in load_dump(tmp_path / "a.safetensors").events] == list(range(120))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_sources_stay_on_disk(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    save_dump(decode(sample()), path)
    half = load_dump(path).groups[0].halves["K"]
    mapped = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(str(path))]
    spans = [tuple(int(end, 16) for end in fields[0].split("-")) for fields in mapped]
    assert half.tail is not None
    for tensor in (half.sources[0].tensor, half.tail):
        assert any(low <= tensor.data_ptr() < high for low, high in spans)


def test_safetensors_starts_wide_tensors_at_wide_addresses(tmp_path: Path) -> None:
    dump = with_source(decode(sample()), torch.zeros((SLOTS, 64), dtype=torch.uint8))
    save_dump(dump, tmp_path / "a.safetensors")
    half = load_dump(tmp_path / "a.safetensors").groups[0].halves["K"]
    assert half.sources[0].tensor.data_ptr() % 64 == 0
    assert half.head is not None
    assert half.head.data_ptr() % 8 == 0


def test_writing_replaces_only_when_told_to(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    path.write_text("precious")
    with pytest.raises(DumpError, match=r"a\.pt: exists already; it is replaced only with force=True"):
        save_dump(decode(sample()), path)
    assert path.read_text() == "precious"
    save_dump(decode(sample()), path, force=True)
    assert same(encode(load_dump(path)), sample())
    assert list(tmp_path.iterdir()) == [path]


def test_a_dump_can_replace_the_file_it_was_read_from(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    save_dump(decode(sample()), path)
    save_dump(load_dump(path), path, force=True)
    assert same(encode(load_dump(path)), sample())


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(storage: Any) -> Any:
        yield memoryview(b"half a dump")
        raise KeyboardInterrupt

    monkeypatch.setattr("canary_numba.dump.pt._chunks", fail)
    (tmp_path / "a.pt").write_text("the old one")
    with pytest.raises(KeyboardInterrupt):
        save_dump(decode(sample()), tmp_path / "a.pt", force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["a.pt"]
    assert (tmp_path / "a.pt").read_text() == "the old one"


def test_what_could_not_be_read_back_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("canary_numba.dump.pt.MAX_PICKLE_BYTES", 100)
    with pytest.raises(DumpError, match=r"a\.pt: cannot be written: its zip member 'data\.pkl' has"):
        save_dump(decode(sample()), tmp_path / "a.pt")
    assert list(tmp_path.iterdir()) == []


def test_a_dump_that_no_reader_takes_is_not_written(tmp_path: Path) -> None:
    dump = replace(decode(sample()), context={"nested": {"a": 1}})
    with pytest.raises(DumpFormatError, match=r"context\.nested"):
        save_dump(dump, tmp_path / "a.pt")
    log = replace(decode(sample()).violation_log, write_index=1 << 31)
    with pytest.raises(DumpFormatError, match=r"violation_log\.write_index: expected an int32, got int 2147483648"):
        save_dump(replace(decode(sample()), violation_log=log), tmp_path / "a.pt")
    assert list(tmp_path.iterdir()) == []


def test_a_tensor_that_no_file_can_hold_is_refused_by_key(tmp_path: Path) -> None:
    dump = with_source(decode(sample()), torch.zeros((SLOTS, 24), device="meta"))
    with pytest.raises(DumpFormatError, match=r"groups\[0\]\.halves\.K\.sources\[0\]\.tensor: .* a tensor on meta"):
        save_dump(dump, tmp_path / "a.pt")


def test_unknown_endings_and_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"expected a name that ends in \.pt or \.safetensors, got 'a\.json'"):
        save_dump(decode(sample()), "a.json")
    with pytest.raises(DumpError, match="cannot be written: No such file or directory"):
        save_dump(decode(sample()), tmp_path / "nowhere" / "a.pt")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_truncation_is_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    save_dump(decode(sample()), path)
    whole = path.read_bytes()
    for length in (1, 7, 8, 9, 100, len(whole) // 2, len(whole) - 22, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(DumpReadError):
            load_dump(path)


def test_a_path_with_a_null_byte_is_refused() -> None:
    with pytest.raises(DumpReadError, match="cannot be read: embedded null byte"):
        load_dump("a\0b")


def test_format_errors_name_the_file(tmp_path: Path) -> None:
    torch.save(mutated(lambda dump: dump.pop("hash_mode")), tmp_path / "a.pt")
    with pytest.raises(DumpFormatError, match=r"a\.pt: hash_mode: expected 'none' or 'partial' or 'all', got nothing"):
        load_dump(tmp_path / "a.pt")


def test_importing_the_package_needs_no_numba() -> None:
    code = "import sys, canary_numba.dump; assert not {'numba', 'llvmlite'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
