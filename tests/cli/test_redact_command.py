"""``canary-check redact``: files in, files out, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from canary_cli import exit_codes, main

from canary_numba.dump import load_dump

DUMPS = Path(__file__).parents[2] / "examples" / "dumps"
BROKEN = DUMPS / "double_allocation.pt"


def findings(capsys: pytest.CaptureFixture[str], path: Path) -> list[Any]:
    main.run(["check", str(path), "--engine", "cpu", "--format", "json"])
    (dump,) = json.loads(capsys.readouterr().out)["dumps"]
    return [(one["fault"], one["positions"], one["slots"]) for one in dump["findings"]]


def test_the_redacted_file_diagnoses_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.safetensors"
    before = BROKEN.read_bytes()
    assert main.run(["redact", str(BROKEN), "-o", str(out)]) == exit_codes.CLEAN
    assert "written" in capsys.readouterr().err
    assert findings(capsys, out) == findings(capsys, BROKEN)
    assert BROKEN.read_bytes() == before
    assert main.run(["redact", str(BROKEN), "-o", str(out)]) == exit_codes.USAGE
    assert "--force" in capsys.readouterr().err


def test_random_keys_differ_and_a_key_file_does_not(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_bytes(bytes(range(32)))
    runs = {"a": [], "b": [], "c": ["--key-file", str(key)], "d": ["--key-file", str(key)]}
    tails = {}
    for name, options in runs.items():
        out = tmp_path / f"{name}.pt"
        assert main.run(["redact", str(BROKEN), "-o", str(out), *options]) == exit_codes.CLEAN
        tail = load_dump(out).groups[0].halves["K"].tail
        assert tail is not None
        tails[name] = tail.numpy().tobytes()
    assert tails["c"] == tails["d"]
    assert len(set(tails.values())) == 3


def test_a_short_or_missing_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = tmp_path / "key"
    key.write_bytes(b"short")
    out = tmp_path / "out.pt"
    assert main.run(["redact", str(BROKEN), "-o", str(out), "--key-file", str(key)]) == exit_codes.USAGE
    assert "at least 16 bytes, got 5" in capsys.readouterr().err
    assert main.run(["redact", str(BROKEN), "-o", str(out), "--key-file", str(tmp_path / "no")]) == exit_codes.USAGE
    assert not out.exists()
