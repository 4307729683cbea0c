"""The examples run, find what they plant, and are listed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from canary_cli import exit_codes, main

EXAMPLES = Path(__file__).parents[2] / "examples"

LIVE_POOL = """\
as written: 0 of 11 records violated
one bit of K flipped: 1 of 11 records violated
  slot 6 (request a position 2): verify_real_kv_hash
one slot given to both requests: 3 of 11 records violated
  slot 6 (request a position 2): verify_real_kv_hash
  slot 8 (request a position 4, request b position 1): verify_chain_hash, verify_position
  slot 14 (request b position 2): verify_chain_hash
"""


def test_live_pool_prints_what_it_planted() -> None:
    script = str(EXAMPLES / "live_pool.py")
    done = subprocess.run([sys.executable, "-W", "error", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, LIVE_POOL, "")


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("clean", exit_codes.CLEAN),
        ("kv_bit_flip", exit_codes.CORRUPT),
        ("double_allocation", exit_codes.CORRUPT),
    ],
)
def test_each_dump_ends_as_the_list_says(name: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["-q", str(EXAMPLES / "dumps" / f"{name}.pt")]) == code
    (line,) = [line for line in (EXAMPLES / "README.md").read_text().splitlines() if f"`dumps/{name}.pt`" in line]
    assert line.endswith(f"| {code} |")


def test_every_example_is_listed() -> None:
    listed = (EXAMPLES / "README.md").read_text()
    names = [path.relative_to(EXAMPLES).as_posix() for path in EXAMPLES.rglob("*.p[ty]")]
    assert len(names) >= 4
    assert [name for name in names if f"`{name}`" not in listed] == []
