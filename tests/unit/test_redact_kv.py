"""Redaction of what a dump says of K/V bytes: of all slots or of few, hashes of each layer beside them or instead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
import torch
from guarded_pool import decode, first_pass, layers_of, table

from canary_numba.capture.layers import PagedPool
from canary_numba.capture.pool import KVCanary
from canary_numba.capture.snapshot import radix_of_paths
from canary_numba.capture.suspects import keep_slots, with_neighbours
from canary_numba.check import check_dump
from canary_numba.diagnosis import diagnose
from canary_numba.dump import Dump, Half, load_dump, save_dump
from canary_numba.dump.tensors import extent_bytes
from canary_numba.layout import CANARY_FIELD_PREV_HASH, CANARY_FIELD_REAL_KV_HASH, CANARY_FIELD_TOKEN
from canary_numba.redact import kv, redact_dump
from canary_numba.reference.words import CHAIN_HEAD_WORD, records_of
from canary_numba.report import build_dump_report

SLOTS = (4, 5, 6)
"""Slots of positions 3 to 5 of request "a", whose K bytes of the last layer get damaged."""


def with_halves(dump: Dump, change: Callable[[Half], Half]) -> Dump:
    (group,) = dump.groups
    halves = {name: change(half) for name, half in group.halves.items()}
    return replace(dump, groups=(replace(group, halves=halves),))


@lru_cache
def sound(dtype: torch.dtype, mode: str, layout: str) -> Dump:
    """A dump of three layers with the hash of each, from passes over two requests."""
    torch.manual_seed(1)
    layers = layers_of(layout, 3)
    for name in ("k_layers", "v_layers"):
        layers[name] = [layer.to(dtype) for layer in layers[name]]
    guard = KVCanary(PagedPool(**layers), table(), keep_source_hashes=True, hash_mode=mode)
    with first_pass(guard, mode="raise"):
        pass
    for step in range(3):
        with decode(guard, step, mode="raise"):
            pass
    return guard.snapshot(
        rids=["a", "b"],
        expected_tokens=[[*range(10), 7, 7, 7], [*range(10, 15), 8, 8, 8]],
        radix=radix_of_paths([guard.req_to_token[1, :10]]),
        free_slots=range(50, 64),
    )


def private(half: Half) -> Half:
    """A half that shares no tensor, so that it can be damaged."""
    assert half.tail is not None
    hashes = half.source_hashes
    return replace(
        half,
        tail=half.tail.clone(),
        sources=tuple(replace(source, tensor=source.tensor.clone()) for source in half.sources),
        source_hashes=None if hashes is None else hashes.clone(),
    )


def cell(half: Half, slot: int) -> torch.Tensor:
    source = half.sources[-1]
    page, width = source.page_size, source.num_bytes_per_token
    return source.tensor.view(torch.uint8)[slot // page, slot % page * width : (slot % page + 1) * width]


def flip(half: Half) -> None:
    cell(half, SLOTS[0])[3] ^= 4


def fill(value: int) -> Callable[[Half], None]:
    def damage(half: Half) -> None:
        for slot in SLOTS:
            cell(half, slot).fill_(value)

    return damage


def copy(half: Half) -> None:
    cell(half, SLOTS[0]).copy_(cell(half, SLOTS[1]).clone())


def overwrite_record(half: Half) -> None:
    assert half.tail is not None
    half.tail[SLOTS[0]] = torch.arange(100, 100 + half.tail.shape[1])


def flip_fingerprint(half: Half) -> None:
    assert half.tail is not None
    records_of(half.tail)[SLOTS[0], CANARY_FIELD_REAL_KV_HASH] ^= 1


def flip_source_hash(half: Half) -> None:
    if half.source_hashes is not None:
        half.source_hashes[SLOTS[0], -1] ^= 2


DAMAGE: dict[str, Callable[[Half], None]] = {
    "none": lambda half: None,
    "flip": flip,
    "zero": fill(0),
    "pattern": fill(0x5A),
    "nan": fill(0xFF),
    "copy": copy,
    "record": overwrite_record,
    "fingerprint": flip_fingerprint,
    "source hash": flip_source_hash,
}


def few(half: Half) -> Half:
    slots = with_neighbours(torch.tensor(SLOTS), half.num_slots)
    return replace(half, sources=keep_slots(half.sources, slots), source_slots=slots)


FORMS: dict[str, Callable[[Half], Half]] = {
    "all bytes": lambda half: replace(half, source_hashes=None),
    "all bytes and hashes": lambda half: half,
    "hashes": lambda half: replace(half, sources=()),
    "few bytes and hashes": few,
    "few bytes": lambda half: few(replace(half, source_hashes=None)),
    "bytes of no slot and hashes": lambda half: replace(
        half, sources=keep_slots(half.sources, torch.zeros(0, dtype=torch.int64)), source_slots=torch.zeros(0).long()
    ),
}
BASES = [
    (torch.bfloat16, "all", "pages"),
    (torch.float8_e4m3fn, "partial", "interleaved slots"),
    (torch.float16, "none", "slots"),
]


def seen(dump: Dump) -> tuple[Any, ...]:
    result = check_dump(dump, engine="cpu")
    report = build_dump_report(dump, result, diagnose(dump, result))
    return (
        [(v.tag, v.slot, v.position, v.reasons, v.request, v.table_position, v.sources) for v in report.violations],
        [(f.fault, f.severity, f.confidence, f.requests, f.positions, f.slots) for f in report.findings],
        report.skipped,
        report.not_tested,
    )


def words(tensor: torch.Tensor) -> set[int]:
    """The 8-byte words of a tensor that are not zero, each of its rows cut to whole ones."""
    rows = tensor.contiguous().view(torch.uint8).flatten(1)
    whole = rows[:, : rows.shape[1] // 8 * 8].contiguous().view(torch.int64)
    return set(whole.flatten().tolist()) - {0}


def secrets_of(half: Half) -> torch.Tensor:
    """Every field of the TAIL records but the position, which stays."""
    assert half.tail is not None
    return records_of(half.tail)[:, [CANARY_FIELD_TOKEN, CANARY_FIELD_PREV_HASH, CANARY_FIELD_REAL_KV_HASH]]


def damaged(base: tuple[torch.dtype, str, str], damage: str, form: str) -> Dump:
    dump = with_halves(sound(*base), private)
    DAMAGE[damage](dump.groups[0].halves["K"])
    return with_halves(dump, FORMS[form])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("base", BASES, ids=lambda base: f"{base[1]}-{base[2]}")
def test_it_checks_and_diagnoses_the_same(base: Any, damage: str, form: str) -> None:
    dump = damaged(base, damage, form)
    assert seen(redact_dump(dump, b"some secret")) == seen(dump)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("damage", ["flip", "copy", "record", "source hash"])
def test_no_byte_and_no_hash_is_left(damage: str, form: str) -> None:
    dump = damaged(BASES[0], damage, form)
    hidden = redact_dump(dump, b"some secret")
    for half, again in zip(dump.groups[0].halves.values(), hidden.groups[0].halves.values(), strict=True):
        assert half.source_hashes is None or again.source_hashes is not None
        for old, new in [
            (half.source_hashes, again.source_hashes),
            (secrets_of(half), secrets_of(again)),
            *((one.tensor, two.tensor) for one, two in zip(half.sources, again.sources, strict=True)),
        ]:
            if old is not None and new is not None:
                # Where a chain starts, every record says the same.
                assert not words(old) & words(new) - {CHAIN_HEAD_WORD}
        assert (again.source_slots is None) == (half.source_slots is None)
        if again.source_slots is not None and half.source_slots is not None:
            assert torch.equal(again.source_slots, half.source_slots)


def test_what_layers_were_changed_is_still_said() -> None:
    dump = damaged(BASES[0], "flip", "few bytes and hashes")
    hidden = redact_dump(dump, b"some secret")
    named = [check.changed_sources for one in (dump, hidden) for check in check_dump(one, engine="cpu").checks]
    assert named.count({SLOTS[0]: ("layer2.k",)}) == 4, "TAIL and SWEEP, before and after"


@pytest.mark.parametrize("base", BASES[:2], ids=lambda base: f"{base[1]}-{base[2]}")
def test_bytes_pass_in_pieces_that_are_let_go(base: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    dump = damaged(base, "nan", "all bytes and hashes")
    whole = redact_dump(dump, b"some secret").groups[0].halves["K"]
    let_go: list[tuple[int, int]] = []
    monkeypatch.setattr(kv, "forget", lambda address, nbytes: let_go.append((address, nbytes)))
    width = dump.groups[0].halves["K"].sources[0].num_bytes_per_token
    # Five slots at a time, while a page holds four.
    monkeypatch.setattr(kv, "PIECE_BYTES", 5 * width + 1)
    pieces = redact_dump(dump, b"some secret").groups[0].halves["K"]
    assert pieces.source_hashes is not None
    assert whole.source_hashes is not None
    assert torch.equal(pieces.source_hashes, whole.source_hashes)
    assert [torch.equal(*pair) for pair in zip(_tensors(pieces), _tensors(whole), strict=True)] == [True] * 3
    for half in dump.groups[0].halves.values():
        for source in half.sources:
            start, end = source.tensor.data_ptr(), source.tensor.data_ptr() + extent_bytes(source.tensor)
            assert sum(start <= address < address + nbytes <= end for address, nbytes in let_go) == 13


@pytest.mark.parametrize("kind", ["pt", "safetensors"])
def test_kept_bytes_stay_and_the_file_is_read_back(kind: str, tmp_path: Any) -> None:
    dump = damaged(BASES[0], "flip", "few bytes and hashes")
    path = tmp_path / f"dump.{kind}"
    save_dump(redact_dump(dump, b"some secret", keep_kv=True), path)
    kept = load_dump(path)
    assert seen(kept) == seen(dump)
    half, again = dump.groups[0].halves["K"], kept.groups[0].halves["K"]
    assert half.source_hashes is not None
    assert again.source_hashes is not None
    assert torch.equal(again.source_hashes, half.source_hashes)
    assert [torch.equal(*pair) for pair in zip(_tensors(half), _tensors(again), strict=True)] == [True] * 3


def _tensors(half: Half) -> list[torch.Tensor]:
    return [source.tensor.view(torch.uint8) for source in half.sources]
