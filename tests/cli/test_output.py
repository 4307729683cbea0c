"""What a person reads: the text at two widths, where it goes, and what terminals, pipes and encodings make of it.

The expected texts are written anew with ``CANARY_WRITE_EXPECTED=1 pytest tests/cli/test_output.py``.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from canary_cli import exit_codes, main
from canary_cli.render import table
from rich.cells import cell_len

from canary_numba.check import check_dump
from canary_numba.diagnosis import diagnose
from canary_numba.dump import Dump, load_dump
from canary_numba.dump.model import LiveLog
from canary_numba.report import Report, build_dump_report, tool_of

REPO = Path(__file__).parents[2]
DUMPS = REPO / "examples" / "dumps"
CORRUPT = str(DUMPS / "double_allocation.pt")
CLEAN = str(DUMPS / "clean.pt")
EXPECTED = Path(__file__).parent / "expected"
NAMES = ("double_allocation", "kv_bit_flip", "clean", "table_entry_out_of_range", "swa_mapping_stale")
ANSI = "\x1b["


def load(name: str, request: pytest.FixtureRequest | None = None) -> Dump:
    """A dump by name, from the examples or else from the shared data, with a path that is the same everywhere."""
    here = DUMPS / f"{name}.pt"
    if not here.exists():
        assert request is not None
        here = request.getfixturevalue("shared") / "dumps" / f"{name}.pt"
    return replace(load_dump(here), path=f"dumps/{name}.pt")


def text_of(dump: Dump, width: int, max_violations: int = 20) -> str:
    result = check_dump(dump, engine="cpu")
    report = Report(tool=tool_of(result), dumps=(build_dump_report(dump, result, diagnose(dump, result)),))
    return table.render(report, max_violations, color=False, width=width)


def process(*arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    program = "from canary_cli.main import main; main()"
    variables = {key: value for key, value in os.environ.items() if key != "NO_COLOR"} | environment
    return subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, env=variables)


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", NAMES)
def test_the_text(name: str, width: int, request: pytest.FixtureRequest) -> None:
    text = text_of(load(name, request), width)
    expected = EXPECTED / f"{name}-{width}.txt"
    if os.environ.get("CANARY_WRITE_EXPECTED"):
        expected.write_text(text, encoding="utf-8")
    assert text == expected.read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
@pytest.mark.parametrize("name", NAMES)
def test_no_line_is_longer_than_the_terminal_and_no_number_is_cut(
    name: str, width: int, request: pytest.FixtureRequest
) -> None:
    dump = load(name, request)
    text = text_of(dump, width, max_violations=0)
    # The first line holds the path, which stays whole so that it can be copied.
    lines = text.splitlines()
    assert max(cell_len(line) for line in lines[1:]) <= width
    assert "…" not in text
    words = {word for line in lines for word in line.split()}
    result = check_dump(dump, engine="cpu")
    for violation in build_dump_report(dump, result).violations:
        assert str(violation.slot) in words
    if width == 200:
        for violation in build_dump_report(dump, result).violations:
            assert f"0x{violation.stored_chain_hash:016x}" in words
            assert f"0x{violation.expected_aux:016x}" in words


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_long_names_of_requests_are_broken_and_crowd_out_no_number(width: int) -> None:
    dump = load("double_allocation")
    assert dump.requests is not None
    rids = tuple(f"chatcmpl-{i}" + "0123456789abcdef" * 4 for i in range(len(dump.requests.rids)))
    text = text_of(replace(dump, requests=replace(dump.requests, rids=rids)), width)
    assert max(map(len, text.splitlines())) <= width
    section = text.split("Violations (")[1].split("Live ring")[0]
    assert "HEAD_K_FULL" in section or width == 40
    assert {"138", "165"} <= set(section.split())
    assert "chatcmpl-1" in section


@pytest.mark.parametrize(("limit", "shown"), [(1, 1), (5, 5), (0, 12), (50, 12)])
def test_the_text_says_how_many_violations_it_leaves_out(limit: int, shown: int) -> None:
    text = text_of(load("double_allocation"), 120, max_violations=limit)
    assert f"Violations ({shown} of 12)" in text
    assert ("--max-violations 0 lists every violation" in text) == (shown < 12)


def test_what_was_not_checked_is_told_with_its_reason() -> None:
    for name in ("clean", "double_allocation"):
        text = " ".join(text_of(replace(load(name), radix=None), 80).split())
        assert "not checked: SWEEP_K_FULL, SWEEP_V_FULL: the dump has no prefix cache (radix)" in text


def test_a_clean_dump_of_a_process_that_reported_violations_says_so() -> None:
    log = LiveLog(ring=torch.ones((4, 8), dtype=torch.int64), write_index=6)
    text = text_of(replace(load("clean"), violation_log=log), 120)
    assert "CLEAN" in text
    assert "The live process reported 6 violations and kept 4; 0 of those fail here as well." in text


def test_names_cannot_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump = torch.load(CORRUPT, weights_only=True)
    dump["requests"]["rids"] = [f"\x1b[2J{name}" for name in dump["requests"]["rids"]]
    dump["context"]["model"] = "\x1b]0;title\x07"
    path = tmp_path / "du\x1b[2Jmp.pt"
    torch.save(dump, path)
    for arguments in ([], ["-q"], ["--format", "json"]):
        main.run([str(path), *arguments])
        out = capsys.readouterr().out
        assert "\x1b" not in out
        assert "du\\x1b[2Jmp.pt" in out or "du\\u001b[2Jmp.pt" in out
    main.run([str(path)])
    assert "\\x1b[2Jdoc-1" in capsys.readouterr().out


def test_no_colour_in_a_pipe() -> None:
    done = process(CORRUPT, FORCE_COLOR="1", TERM="xterm-256color")
    assert done.returncode == exit_codes.CORRUPT
    assert b"\x1b" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "environment", "ansi", "colour"),
    [
        ([], {}, True, True),
        (["--no-color"], {}, False, False),
        ([], {"NO_COLOR": "1"}, True, False),
    ],
)
def test_colour_on_a_terminal(
    arguments: list[str],
    environment: Mapping[str, str],
    ansi: bool,
    colour: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    main.run([CORRUPT, *arguments])
    out = capsys.readouterr().out
    assert (ANSI in out) == ansi
    assert bool(re.search(r"\x1b\[[0-9;]*3[0-9]m", out)) == colour


@pytest.mark.parametrize("form", ["table", "json"])
def test_an_ascii_stdout_loses_no_report(form: str, tmp_path: Path) -> None:
    dump = torch.load(CORRUPT, weights_only=True)
    names = [f"\u8bf7\u6c42 {i} \U0001f600 \xe9" for i in range(len(dump["requests"]["rids"]))]
    dump["requests"]["rids"] = names
    torch.save(dump, tmp_path / "dump.pt")
    done = process(str(tmp_path / "dump.pt"), "--format", form, PYTHONIOENCODING="ascii")
    assert done.returncode == exit_codes.CORRUPT
    text = done.stdout.decode("ascii")
    if form == "json":
        assert {v["request"] for v in json.loads(text)["dumps"][0]["violations"]} <= set(names)
    else:
        assert text.startswith("x CORRUPT ")
        assert "------" in text


@pytest.mark.parametrize(("path", "code"), [(CLEAN, exit_codes.CLEAN), (CORRUPT, exit_codes.CORRUPT)])
def test_a_reader_that_goes_away_does_not_change_the_verdict(path: str, code: int) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    program = "from canary_cli.main import main; main()"
    with os.fdopen(writer, "wb") as stdout:
        done = subprocess.run([sys.executable, "-c", program, path], stdout=stdout, stderr=subprocess.PIPE, text=True)
    assert done.returncode == code
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("canary-check: 1 dump checked")
