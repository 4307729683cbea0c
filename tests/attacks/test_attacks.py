"""Every hostile file is refused in one line, without running anything of it and without filling memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import hostile_other
import hostile_pt
import hostile_safetensors
import pytest

ATTACKS = {**hostile_pt.ATTACKS, **hostile_safetensors.ATTACKS, **hostile_other.ATTACKS}
MEASURE = Path(__file__).with_name("measure.py")
MAX_GROWTH_KIB = 500 << 10


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    for build in ATTACKS:
        build(folder / build.__name__)
    return folder


@pytest.fixture(scope="module")
def outcomes(folder: Path) -> dict[str, dict[str, Any]]:
    """What a reader in a process of its own made of each file."""
    names = [build.__name__ for build in ATTACKS]
    command = [sys.executable, "-W", "error", str(MEASURE), *(str(folder / name) for name in names)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    return dict(zip(names, map(json.loads, run.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("name", [build.__name__ for build in ATTACKS])
def test_refused_in_one_line_within_bounded_memory(
    name: str, folder: Path, outcomes: dict[str, dict[str, Any]]
) -> None:
    outcome = outcomes[name]
    refusal = next(refusal for build, refusal in ATTACKS.items() if build.__name__ == name)
    assert outcome["error"] in ("DumpReadError", "DumpFormatError")
    assert outcome["message"].startswith(f"{folder / name}: ")
    assert refusal in outcome["message"]
    assert "\n" not in outcome["message"]
    assert len(outcome["message"]) < 600
    assert outcome["grown_kib"] < MAX_GROWTH_KIB


def test_nothing_was_executed(folder: Path, outcomes: dict[str, dict[str, Any]]) -> None:
    assert outcomes["executes"]["error"] == "DumpReadError"
    assert not (folder / "executed").exists()
