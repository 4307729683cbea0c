"""What README and docs/commands.md show of the command line is what the command line prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from canary_cli import exit_codes, main

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")


def blocks() -> list[str]:
    return re.findall(r"^```\w*\n(.*?)^```$", README + COMMANDS, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture
def width_80(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(ROOT)


@pytest.mark.usefixtures("width_80")
@pytest.mark.parametrize("arguments", [["--help"], *([name, "--help"] for name in main.cli.commands)])
def test_readme_shows_the_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(arguments) == exit_codes.CLEAN
    assert capsys.readouterr().out in blocks()


def test_the_docs_name_every_command() -> None:
    prose = re.sub(r"^```.*?^```$", "", README + COMMANDS, flags=re.MULTILINE | re.DOTALL)
    assert [name for name in main.cli.commands if f"`canary-check {name}" not in prose] == []


def without_engine(report: str) -> str:
    # Engine and device are those of whoever ran it; a long reason goes on in indented lines.
    normalised, count = re.subn(r"^  checked by    .*\n(?: {16}.*\n)*", "  checked by\n", report, flags=re.MULTILINE)
    assert count == 1
    return normalised


@pytest.mark.usefixtures("width_80")
def test_readme_shows_a_real_report(capsys: pytest.CaptureFixture[str]) -> None:
    command = "canary-check examples/dumps/double_allocation.pt --max-violations 4"
    (shown,) = [block for block in blocks() if block.startswith(f"$ {command}\n")]
    assert main.run([*command.split()[1:], "--engine", "cpu"]) == exit_codes.CORRUPT
    assert without_engine(capsys.readouterr().out) == without_engine(shown.split("\n", 1)[1])
