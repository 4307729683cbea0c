"""Files that are no dumps, and dumps that are not sound: one line that says what and where, exit code 2, no harm."""

from __future__ import annotations

import json
import os
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from canary_cli import exit_codes, main

CLEAN = Path(__file__).parents[2] / "examples" / "dumps" / "clean.pt"
CORRUPT = CLEAN.with_name("double_allocation.pt")


def refused(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    code = main.run([str(path)])
    captured = capsys.readouterr()
    assert code == exit_codes.USAGE
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    assert captured.err.startswith(f"canary-check: error: {path}: ")
    return captured.err


class _Hostile:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.target),))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "the file is empty"),
        (b"hello, this is text\n", "neither a .pt file of torch.save nor a safetensors file"),
        (random.Random(1).randbytes(4096), "neither a .pt file of torch.save nor a safetensors file"),
        (CLEAN.read_bytes()[:5000], ""),
        (CLEAN.read_bytes()[:-1], ""),
        (b"PK\3\4", ""),
        (b"\x80\x04.", "a bare pickle"),
        (b"\xff" * 8 + b"{", ""),
    ],
)
def test_files_that_are_no_dumps(content: bytes, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "dump.pt"
    path.write_bytes(content)
    assert refused(path, capsys).startswith(f"canary-check: error: {path}: {said}")


@pytest.mark.parametrize(
    "content", [{"weight": torch.zeros(3)}, [1, 2], torch.zeros(3), torch.nn.Linear(2, 2).state_dict(), 7, None]
)
def test_files_of_torch_that_hold_something_else(
    content: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "weights.pt"
    torch.save(content, path)
    refused(path, capsys)


def test_missing_files_and_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "No such file" in refused(tmp_path / "none.pt", capsys)
    assert "directory" in refused(tmp_path, capsys)


def test_hostile_pickles_run_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "made"
    bare, zipped = tmp_path / "bare.pt", tmp_path / "zipped.pt"
    bare.write_bytes(pickle.dumps(_Hostile(target)))
    torch.save({"format": _Hostile(target)}, zipped)
    refused(bare, capsys)
    refused(zipped, capsys)
    assert not target.exists()


def _set(*keys: Any) -> Callable[[dict[str, Any], Any], None]:
    def change(dump: dict[str, Any], value: Any) -> None:
        place: Any = dump
        for key in keys[:-1]:
            place = place[key]
        if value is _DROP:
            del place[keys[-1]]
        else:
            place[keys[-1]] = value

    return change


_DROP = object()
_TAIL = ("groups", 0, "halves", "K", "tail")
_SOURCE = ("groups", 0, "halves", "K", "sources", 0)
_SHORT = torch.zeros((500, 64), dtype=torch.uint8)


@pytest.mark.parametrize(
    ("keys", "value", "said"),
    [
        (("format",), "other", "format: expected 'canary-dump', got 'other'"),
        (("format",), _DROP, "format: expected 'canary-dump', got nothing: the key is missing"),
        (("version",), 2, "version: this dump is of format version 2, this reader knows version 1"),
        (("version",), _DROP, "version: expected int from "),
        (("version",), "1", "version: expected int from "),
        (("hash_mode",), "some", "hash_mode: expected 'none' or 'partial' or 'all', got 'some'"),
        (("groups",), [], "groups: expected list of at least one group, got an empty list"),
        (("groups",), _DROP, "groups: expected list"),
        (("groups", 0, "kind"), "HALF", "groups[0].kind: expected 'FULL' or 'SWA', got 'HALF'"),
        (("groups", 0, "halves", "K"), _DROP, "groups[0].halves.K: expected a dict, got nothing"),
        (("groups", 0, "swa_window_size"), -1, "groups[0].swa_window_size: expected int from 0 to 0, got int -1"),
        (_TAIL, torch.zeros((513, 32), dtype=torch.int8), "groups[0].halves.K.tail: expected uint8"),
        (_TAIL, torch.zeros((513, 24), dtype=torch.uint8), "groups[0].halves.K.tail: expected uint8"),
        (_TAIL, torch.zeros(513, dtype=torch.uint8), "groups[0].halves.K.tail: expected uint8"),
        (_TAIL, torch.zeros((99, 32), dtype=torch.uint8), "groups[0].halves.K.tail: expected as many slots as head"),
        (_TAIL, "bytes", "groups[0].halves.K.tail: expected uint8"),
        ((*_SOURCE, "page_size"), 0, "groups[0].halves.K.sources[0].page_size: expected int from 1 to "),
        ((*_SOURCE, "page_size"), 2**40, "groups[0].halves.K.sources[0].page_size: expected int from 1 to "),
        ((*_SOURCE, "num_bytes_per_token"), -64, "groups[0].halves.K.sources[0].num_bytes_per_token: expected int"),
        (
            (*_SOURCE, "read_bytes"),
            65,
            "groups[0].halves.K.sources[0].read_bytes: expected int from 1 to 64, got int 65",
        ),
        ((*_SOURCE, "tensor"), _SHORT, "groups[0].halves.K.sources[0].tensor: expected bytes for the 513 slots"),
        (("requests",), [], "requests: expected a dict, got "),
        (("requests", "req_pool_indices"), _DROP, "requests.req_pool_indices: expected int64"),
        (("requests", "req_to_token"), torch.zeros((3, 4)), "requests.req_to_token: expected int32"),
        (("requests", "req_to_token"), torch.zeros(9, dtype=torch.int32), "requests.req_to_token: expected int32"),
        (("requests", "prefix_lens"), torch.tensor([-1, 1, 1, 1]), "requests.prefix_lens: expected "),
        (("requests", "prefix_lens"), torch.tensor([1, 1, 1, 2**40]), "requests.prefix_lens: expected "),
        (("requests", "prefix_lens"), torch.tensor([1, 1]), "requests.prefix_lens: expected int64"),
        (("requests", "prefix_lens"), torch.tensor([1.0, 1, 1, 1]), "requests.prefix_lens: expected int64"),
        (("requests", "rids"), ["a"], "requests.rids: expected list of 4, got "),
        (("requests", "rids"), [1, 2, 3, 4], "requests.rids[0]: expected str"),
        (("radix", "positions"), _DROP, "radix.positions: expected int64"),
        (("allocator", "page_size"), 0, "allocator.page_size: expected int from 1 to "),
    ],
)
def test_unsound_dumps(
    keys: tuple[Any, ...], value: Any, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump = torch.load(CLEAN, weights_only=True)
    _set(*keys)(dump, value)
    path = tmp_path / "dump.pt"
    torch.save(dump, path)
    message = refused(path, capsys).removeprefix(f"canary-check: error: {path}: ")
    assert message.startswith(said)
    assert ", got " in message or keys == ("version",)


def test_bad_dumps_among_good_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty, text = tmp_path / "empty.pt", tmp_path / "text.pt"
    empty.touch()
    text.write_text("no dump")
    code = main.run([str(empty), str(CLEAN), str(text), str(CORRUPT), "-q"])
    captured = capsys.readouterr()
    assert code == exit_codes.USAGE
    assert captured.out == f"CLEAN {CLEAN}\nCORRUPT {CORRUPT}\n"
    assert [line.split(": ")[2] for line in captured.err.splitlines()] == [str(empty), str(text)]


def test_bad_dumps_are_counted_in_the_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([str(tmp_path / "none.pt"), str(CORRUPT), "--format", "json"]) == exit_codes.USAGE
    captured = capsys.readouterr()
    assert [dump["path"] for dump in json.loads(captured.out)["dumps"]] == [str(CORRUPT)]
    assert "1 dump checked, 1 corrupt, 12 violations, 1 unreadable;" in captured.err.splitlines()[-1]


def test_no_report_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "report.json"
    assert main.run([str(tmp_path / "none.pt"), "--format", "json", "-o", str(target)]) == exit_codes.USAGE
    assert capsys.readouterr().out == ""
    assert list(tmp_path.iterdir()) == []


def test_more_tokens_than_can_be_counted(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("canary_numba.check_plans.MAX_ENTRIES", 100)
    assert "requests.prefix_lens: expected at most 100 cached tokens in all, got 281" in refused(CLEAN, capsys)


def test_wrong_values_are_findings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump = torch.load(CLEAN, weights_only=True)
    dump["requests"]["prefix_lens"][0] = 1000
    dump["requests"]["req_to_token"][dump["requests"]["req_pool_indices"][1], 3] = -5
    path = tmp_path / "dump.pt"
    torch.save(dump, path)
    assert main.run([str(path)]) == exit_codes.CORRUPT
    assert "bad slot" in capsys.readouterr().out
