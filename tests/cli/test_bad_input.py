"""Files that are no dumps, and dumps that are not sound: one line that says what and where, exit code 2, no harm."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from canary_cli import exit_codes, main

CLEAN = Path(__file__).parents[2] / "examples" / "dumps" / "clean.pt"


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
    "content", [b"", b"hello, this is text\n", os.urandom(4096), CLEAN.read_bytes()[:5000], b"PK\3\4", b"\x80\x04."]
)
def test_files_that_are_no_dumps(content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "dump.pt"
    path.write_bytes(content)
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


@pytest.mark.parametrize(
    ("keys", "value", "said"),
    [
        (("format",), "other", "format"),
        (("version",), 2, "version"),
        (("version",), _DROP, "version"),
        (("hash_mode",), "some", "hash_mode"),
        (("groups",), [], "groups"),
        (_TAIL, torch.zeros((513, 32), dtype=torch.int8), "groups[0].halves.K.tail: expected uint8"),
        (_TAIL, torch.zeros((513, 24), dtype=torch.uint8), "groups[0].halves.K.tail"),
        (_TAIL, "bytes", "groups[0].halves.K.tail"),
        ((*_SOURCE, "page_size"), 0, "page_size"),
        ((*_SOURCE, "read_bytes"), 65, "read_bytes"),
        ((*_SOURCE, "tensor"), torch.zeros((500, 64), dtype=torch.uint8), "groups[0].halves.K.sources[0]"),
        (("requests", "req_to_token"), torch.zeros((3, 4)), "requests.req_to_token: expected int32"),
        (("requests", "prefix_lens"), torch.tensor([-1, 1, 1, 1]), "requests.prefix_lens"),
        (("requests", "prefix_lens"), torch.tensor([1, 1, 1, 2**40]), "requests.prefix_lens"),
        (("requests", "prefix_lens"), torch.tensor([1, 1]), "requests.prefix_lens"),
        (("requests", "rids"), ["a"], "requests.rids"),
    ],
)
def test_unsound_dumps(
    keys: tuple[Any, ...], value: Any, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump = torch.load(CLEAN, weights_only=True)
    _set(*keys)(dump, value)
    path = tmp_path / "dump.pt"
    torch.save(dump, path)
    assert said in refused(path, capsys)


def test_wrong_values_are_findings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump = torch.load(CLEAN, weights_only=True)
    dump["requests"]["prefix_lens"][0] = 1000
    dump["requests"]["req_to_token"][dump["requests"]["req_pool_indices"][1], 3] = -5
    path = tmp_path / "dump.pt"
    torch.save(dump, path)
    assert main.run([str(path)]) == exit_codes.CORRUPT
    assert "bad slot" in capsys.readouterr().out
