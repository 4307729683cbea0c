"""``canary-check``: exit codes, what goes to stdout and stderr, files, colours, and the text at two widths."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest
import torch
from canary_cli import exit_codes, main
from canary_cli.render import table

from canary_numba.check import check_dump
from canary_numba.dump import load_dump
from canary_numba.report import Report, build_dump_report, tool_of

DUMPS = Path(__file__).parents[2] / "examples" / "dumps"
CORRUPT = str(DUMPS / "double_allocation.pt")
CLEAN = str(DUMPS / "clean.pt")
EXPECTED = Path(__file__).parent / "expected"


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
    code, _, err = run(capsys, CLEAN, "-o", str(target))
    assert code == exit_codes.USAGE
    assert str(target) in err
    assert target.read_text() == first
    assert run(capsys, CLEAN, "-o", str(target), "--force")[0] == exit_codes.CLEAN
    assert "CLEAN" in target.read_text()
    assert list(tmp_path.iterdir()) == [target]


def test_no_colour_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert "\x1b" not in run(capsys, CORRUPT)[1]


@pytest.mark.parametrize(
    ("error", "code"),
    [(KeyboardInterrupt(), 130), (click.Abort(), 130), (RuntimeError("boom"), 3), (OSError("disk"), 2)],
)
def test_errors_end_in_one_line(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("canary_numba.check.check_dump", fail)
    found, _, err = run(capsys, CLEAN)
    assert found == code
    # Click ends the line that a terminal shows ^C on before anything else is said.
    (line,) = err.strip().splitlines()
    assert line.startswith("canary-check: error: ")


def test_no_engine_without_a_gpu(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    code, _, err = run(capsys, CLEAN, "--engine", "cuda")
    assert code == exit_codes.USAGE
    assert "engine cuda: " in err
    assert "Use --engine cpu" in err


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--version")[1].startswith("canary-check, version ")
    for arguments in (["-h"], ["--help"], ["check", "-h"]):
        code, out, _ = run(capsys, *arguments)
        assert code == 0
        assert out.startswith("Usage: canary-check")
    assert run(capsys)[0] == exit_codes.USAGE
    assert all(command.help for command in main.cli.commands.values())


def test_help_loads_neither_torch_nor_numba() -> None:
    program = (
        "import sys; from canary_cli.main import run; run(['--help']); run(['check', '--help']);"
        "print([m for m in ('torch', 'numba', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n")


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", ["double_allocation", "kv_bit_flip", "clean"])
def test_the_text(name: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(DUMPS.parent)
    dump = load_dump(f"dumps/{name}.pt")
    result = check_dump(dump, engine="cpu")
    report = Report(tool=tool_of(result), dumps=(build_dump_report(dump, result),))
    text = table.render(report, 20, color=False, width=width)
    assert all(len(line) <= width for line in text.splitlines())
    assert "…" not in text
    assert text == (EXPECTED / f"{name}-{width}.txt").read_text()


def test_names_cannot_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump = torch.load(CORRUPT, weights_only=True)
    dump["requests"]["rids"] = [f"\x1b[2J{name}" for name in dump["requests"]["rids"]]
    dump["context"]["model"] = "\x1b]0;title\x07"
    path = tmp_path / "dump.pt"
    torch.save(dump, path)
    _, out, _ = run(capsys, str(path))
    assert "\x1b" not in out
    assert "\\x1b[2Jdoc-1" in out


def test_readme_shows_the_real_help(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    assert run(capsys, "check", "--help")[1] in readme
