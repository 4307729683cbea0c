"""``canary-check log`` and ``check --format log``: what one prints, the other reads."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from canary_cli import exit_codes, main

DUMPS = Path(__file__).parents[2] / "examples" / "dumps"
DUMP = str(DUMPS / "double_allocation.pt")
LINE = (
    "kv_canary violation: launch_tag=TAIL_K_FULL fail_reason=verify_chain_hash+verify_token slot_idx=91 position=17 "
    "stored_token=5 expected_token=-1 stored_chain_hash=0x00000000000000ff expected_aux=0xffffffffffffffff"
)


def test_what_check_prints_log_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "server.log"
    check = ["check", DUMP, "--engine", "cpu", "--max-violations", "0", "--format"]
    assert main.run([*check, "log", "-o", str(log)]) == exit_codes.CORRUPT
    capsys.readouterr()
    assert main.run([*check, "json"]) == exit_codes.CORRUPT
    wanted = json.loads(capsys.readouterr().out)["dumps"][0]["violations"]
    assert main.run(["log", str(log), "--format", "json", "--max-violations", "0"]) == exit_codes.CORRUPT
    read = json.loads(capsys.readouterr().out)
    assert read["violations_total"] == len(wanted) == 12
    assert {slot["slot"] for slot in read["slots"]} == {138, 165}
    for line, violation in zip(read["violations"], wanted, strict=True):
        del line["line"], line["prefix"]
        assert line == {key: violation[key] for key in line}


def test_several_dumps_and_a_limit(capsys: pytest.CaptureFixture[str]) -> None:
    clean = str(DUMPS / "clean.pt")
    main.run(["check", DUMP, clean, "--engine", "cpu", "--format", "log", "--max-violations", "3"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(": ")[0] for line in lines] == [DUMP] * 4
    assert "9 more violations" in lines[-1]


def test_a_clean_dump_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([str(DUMPS / "clean.pt"), "--engine", "cpu", "--format", "log"]) == exit_codes.CLEAN
    assert capsys.readouterr().out == ""


def test_the_table_from_stdin(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"\xff\n[10:00:00 TP1] {LINE}\n{LINE}\n{LINE[:50]}\n"
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode("latin-1"))))
    assert main.run(["log", "-", "--max-violations", "1"]) == exit_codes.CORRUPT
    out = capsys.readouterr().out
    assert "VIOLATIONS  stdin\n2 violations of 1 slots in 4 log lines\n" in out
    assert "cut or garbled: line 4" in out
    assert "chain 2, token 2" in out
    assert "first line 2: [10:00:00 TP1]" in out
    assert "Violations (1 of 2)" in out
    assert max(map(len, out.splitlines())) <= 80


def test_a_log_without_violations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "server.log"
    log.write_bytes(b"\xff\xfe all is well\n")
    assert main.run(["log", str(log)]) == exit_codes.CLEAN
    assert "OK" in capsys.readouterr().out


def test_a_reason_of_a_later_version_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "server.log"
    log.write_text(LINE.replace("verify_token", "verify_scale") + "\n")
    assert main.run(["log", str(log)]) == exit_codes.CORRUPT
    assert "verify_scale 1" in capsys.readouterr().out


def test_a_missing_log_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["log", str(tmp_path / "none.log")]) == exit_codes.USAGE
    assert "none.log" in capsys.readouterr().err
