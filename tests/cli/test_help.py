"""Help and version: every command and option explained, at once."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest
from canary_cli import exit_codes, main

import canary_numba

ENTRY_POINT = "import sys; from canary_cli.main import main; main()"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main.run(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--version") == (0, f"canary-check, version {canary_numba.__version__}\n", "")


@pytest.mark.parametrize("arguments", [["-h"], ["--help"], *([name, "-h"] for name in main.cli.commands)])
def test_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, err) == (exit_codes.CLEAN, "")
    assert out.startswith("Usage: canary-check")
    assert "Exit code: 0" in out


def test_every_command_and_option_has_help() -> None:
    for name, command in main.cli.commands.items():
        assert command.help, name
        assert command.get_short_help_str(60).rstrip(".")
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, f"{name} {parameter.name}"


def test_every_exit_code_is_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    out = " ".join(run(capsys, "--help")[1].split())
    codes = [value for name, value in vars(exit_codes).items() if name.isupper()]
    assert sorted(codes) == [0, 1, 2, 3, 130]
    assert all(f"{code} " in out.split("Exit code:")[1] for code in codes)


def test_no_arguments_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys)
    assert (code, out) == (exit_codes.USAGE, "")
    assert err.startswith("Usage: canary-check")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["check"], "Missing argument 'DUMP...'"),
        (["x.pt", "--engine", "tpu"], "'tpu' is not one of"),
        (["x.pt", "--max-violations", "-1"], "-1 is not in the range"),
        (["x.pt", "--max-violations", "many"], "'many' is not a valid integer"),
        (["x.pt", "--format", "yaml"], "'yaml' is not one of"),
        (["x.pt", "--frobnicate"], "No such option"),
    ],
)
def test_wrong_usage(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (exit_codes.USAGE, "")
    assert said in err


@pytest.mark.parametrize("arguments", [["--help"], ["check", "--help"], ["--version"], ["check"]])
def test_help_loads_neither_torch_nor_numba(arguments: list[str]) -> None:
    program = (
        f"import sys; from canary_cli.main import run; run({arguments!r});"
        "print([m for m in ('torch', 'numba', 'numpy', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n")


def test_the_process_ends_with_the_exit_code() -> None:
    command = [sys.executable, "-c", ENTRY_POINT]
    assert subprocess.run([*command, "--version"], capture_output=True).returncode == exit_codes.CLEAN
    assert subprocess.run([*command, "check"], capture_output=True).returncode == exit_codes.USAGE
