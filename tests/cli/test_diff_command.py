"""``canary-check diff``: exit code, table and JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from canary_cli import exit_codes, main

CLEAN = str(Path(__file__).parents[2] / "examples" / "dumps" / "clean.pt")


def test_the_same_dump_twice(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["diff", CLEAN, CLEAN]) == exit_codes.CLEAN
    assert "nothing changed" in capsys.readouterr().out


def test_damage_in_between(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    broken = str(tmp_path / "broken.pt")
    assert main.run(["inject", CLEAN, "--fault", "kv_bytes_changed", "-o", broken]) == exit_codes.CLEAN
    slots = json.loads(capsys.readouterr().out)["slots"]
    assert main.run(["diff", CLEAN, broken, "--format", "json"]) == exit_codes.CORRUPT
    data = json.loads(capsys.readouterr().out)
    assert (data["schema_version"], data["explained"]) == (1, False)
    assert {number for change in data["changes"] for number in change["numbers"]} == set(slots)
    assert main.run(["diff", CLEAN, broken]) == exit_codes.CORRUPT
    out = capsys.readouterr().out
    assert "UNEXPLAINED" in out.splitlines()[0]
    assert "K/V bytes of" in out
    assert max(map(len, out.splitlines()[2:])) <= 80


def test_an_unreadable_dump(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["diff", CLEAN, str(tmp_path / "none.pt")]) == exit_codes.USAGE
    assert "none.pt" in capsys.readouterr().err
