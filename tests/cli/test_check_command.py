"""``canary-check``: exit codes, what goes to stdout and stderr, and to files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import click
import pytest
import torch
from canary_cli import exit_codes, main

from canary_numba.dump import load_dump, save_dump

DUMPS = Path(__file__).parents[2] / "examples" / "dumps"
CORRUPT = str(DUMPS / "double_allocation.pt")
CLEAN = str(DUMPS / "clean.pt")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main.run(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_clean_and_corrupt(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, CLEAN)
    assert code == exit_codes.CLEAN
    assert "CLEAN" in out
    assert len(out.splitlines()) <= 3
    assert err.startswith("canary-check: 1 dump checked, 0 corrupt, 0 violations")
    code, out, err = run(capsys, CLEAN, CORRUPT)
    assert code == exit_codes.CORRUPT
    assert "CORRUPT" in out
    assert "2 dumps checked, 1 corrupt, 12 violations" in err


def test_one_unreadable_dump_does_not_hide_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "missing.pt", CORRUPT, "-q")
    assert code == exit_codes.USAGE
    assert out == f"CORRUPT {CORRUPT}\n"
    assert err == "canary-check: error: missing.pt: cannot be read: No such file or directory\n"


def test_json_bounds_violations(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, CORRUPT, "--format", "json", "--max-violations", "3")
    (dump,) = json.loads(out)["dumps"]
    assert (dump["violations_total"], dump["violations_shown"], len(dump["violations"])) == (12, 3, 3)
    assert dump["violations"][0]["stored_chain_hash"].startswith("0x")


def test_output_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "report.json"
    assert run(capsys, CORRUPT, "--format", "json", "-o", str(target))[:2] == (exit_codes.CORRUPT, "")
    first = target.read_text()
    assert json.loads(first)["verdict"] == "corrupt"
    code, out, err = run(capsys, CLEAN, "-o", str(target))
    assert (code, out) == (exit_codes.USAGE, "")
    assert err == f"canary-check: error: {target}: exists already; --force replaces it\n"
    assert target.read_text() == first
    assert run(capsys, CLEAN, "-o", str(target), "--force")[0] == exit_codes.CLEAN
    assert "CLEAN" in target.read_text()
    assert list(tmp_path.iterdir()) == [target]


def test_an_output_file_that_exists_is_refused_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("checked a dump whose report has nowhere to go")

    monkeypatch.setattr("canary_numba.check.check_dump", fail)
    assert run(capsys, CLEAN, "-o", str(DUMPS / "clean.pt"))[0] == exit_codes.USAGE


def test_output_where_nothing_can_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "no folder" / "report.txt"
    code, out, err = run(capsys, CLEAN, "-o", str(target))
    assert (code, out) == (exit_codes.USAGE, "")
    assert err == f"canary-check: error: {target}: cannot be written: No such file or directory\n"
    code, _, err = run(capsys, CLEAN, "-o", str(tmp_path))
    assert code == exit_codes.USAGE
    assert "is a directory" in err


def test_an_output_file_is_there_whole_or_not_at_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    target = tmp_path / "report.txt"
    monkeypatch.setattr("os.fsync", fail)
    code, _, err = run(capsys, CLEAN, "-o", str(target))
    assert code == exit_codes.USAGE
    assert err == f"canary-check: error: {target}: cannot be written: No space left on device\n"
    assert list(tmp_path.iterdir()) == []


def test_quiet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = f"CLEAN {CLEAN}\nCORRUPT {CORRUPT}\n"
    assert run(capsys, "-q", CLEAN, CORRUPT) == (exit_codes.CORRUPT, said, "")
    target = tmp_path / "verdicts.txt"
    assert run(capsys, "--quiet", CLEAN, CORRUPT, "-o", str(target)) == (exit_codes.CORRUPT, "", "")
    assert target.read_text() == said


def test_the_command_may_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "check", CORRUPT)[:2] == run(capsys, CORRUPT)[:2]


def test_a_clean_dump_is_clean_when_strict(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, CLEAN, "--strict")[0] == exit_codes.CLEAN


def test_never_written_records_may_be_forgiven(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump = torch.load(CLEAN, weights_only=True)
    last = int(dump["requests"]["prefix_lens"][2]) - 1
    slot = int(dump["requests"]["req_to_token"][dump["requests"]["req_pool_indices"][2], last])
    for half in dump["groups"][0]["halves"].values():
        half["head"][slot] = half["tail"][slot] = 0
    path = str(tmp_path / "dump.pt")
    torch.save(dump, path)
    assert run(capsys, path)[0] == exit_codes.CORRUPT
    code, out, _ = run(capsys, path, "--zero-init-okay")
    assert code == exit_codes.CLEAN
    assert "records never written" in out


@pytest.mark.parametrize(
    ("error", "code"),
    [(KeyboardInterrupt(), 130), (click.Abort(), 130), (RuntimeError("boom"), 3), (OSError("disk"), 2)],
)
def test_errors_end_in_one_line(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.delenv("CANARY_DEBUG", raising=False)
    monkeypatch.setattr("canary_numba.check.check_dump", fail)
    found, _, err = run(capsys, CLEAN)
    assert found == code
    # Click ends the line that a terminal shows ^C on before anything else is said.
    (line,) = err.strip().splitlines()
    assert line.startswith("canary-check: error: ")
    assert ("internal error, please report it: RuntimeError: boom" in line) == (code == exit_codes.INTERNAL)


def test_a_traceback_on_request(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr("canary_numba.check.check_dump", fail)
    monkeypatch.setenv("CANARY_DEBUG", "1")
    code, _, err = run(capsys, CLEAN)
    assert code == exit_codes.INTERNAL
    assert "Traceback" in err


def test_no_engine_without_a_gpu(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    code, _, err = run(capsys, CLEAN, "--engine", "cuda")
    assert code == exit_codes.USAGE
    assert "engine cuda: " in err
    assert "Use --engine cpu" in err


def test_a_dump_with_nothing_to_check_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump = replace(load_dump(CLEAN), requests=None, radix=None)
    path = tmp_path / "bare.pt"
    save_dump(dump, path)
    assert main.run([str(path)]) == exit_codes.CLEAN
    out = " ".join(capsys.readouterr().out.split())
    assert "no record was checked" in out
    assert "the dump has no requests" in out
