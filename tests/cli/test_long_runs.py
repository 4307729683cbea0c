"""What a check that takes long does: progress on a terminal, Ctrl-C, and memory that stays bounded."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from canary_cli import exit_codes

CLEAN = Path(__file__).parents[2] / "examples" / "dumps" / "clean.pt"
SLOWLY = (
    "import sys, time; from canary_numba import kv_hashes; from canary_cli.main import main\n"
    "def slow(*_): print('hashing', file=sys.stderr, flush=True); time.sleep(60)\n"
    "kv_hashes.forget = slow; main()"
)


@pytest.mark.parametrize("options", [[], ["--format", "json"], ["-o", "report.txt"]])
def test_control_c_ends_a_check_at_once(options: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-c", SLOWLY, str(CLEAN), "--engine", "cpu", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "hashing\n"
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == exit_codes.INTERRUPTED
    assert out == ""
    assert err.strip() == "canary-check: error: interrupted"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["check", str(CLEAN), "--engine", "cpu"], "K/V bytes of V FULL"), (["convert", str(CLEAN), "b.pt"], "writing")],
)
def test_a_bar_on_a_terminal(arguments: list[str], said: str, tmp_path: Path) -> None:
    master, slave = pty.openpty()
    program = "from canary_cli.main import main; main()"
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "100"}
    with subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdout=subprocess.DEVNULL,
        stderr=slave,
        cwd=tmp_path,
        env=environment,
    ) as process:
        os.close(slave)
        seen = b""
        try:
            while piece := os.read(master, 4096):
                seen += piece
        except OSError:
            # Linux reports the end of a terminal as an error.
            pass
    os.close(master)
    assert process.returncode == exit_codes.CLEAN
    assert said in seen.decode()
    assert b"100%" in seen or b"kB" in seen
