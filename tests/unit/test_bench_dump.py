"""The script that measures the check of a large dump: its dump is sound, and what it reports is what was read."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
import torch

from canary_numba.check import check_dump
from canary_numba.dump import load_dump

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench_dump.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_dump", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_the_dump_is_clean_and_all_of_it_is_read(
    suffix: str, script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"large{suffix}"
    script.make_dump(path, 0.005, 3)
    assert list(tmp_path.iterdir()) == [path]
    dump = load_dump(path)
    assert [len(half.sources) for half in dump.groups[0].halves.values()] == [3, 3]
    slots = dump.groups[0].halves["K"].num_slots
    owned = (slots - 1) // 64 * 64
    script.check_here(path, "cpu")
    found = json.loads(capsys.readouterr().out)
    assert found["violations"] == 0
    assert found["gigabytes"] == 2 * owned * (3 * 1024 + 64) / 1e9
    assert found["peak_mb"] >= found["before_mb"] > 0
    assert script.read_through(path) > 0


def test_a_damaged_one_is_noticed(script: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "large.pt"
    script.make_dump(path, 0.002, 1)
    dump = load_dump(path)
    assert dump.requests is not None
    slot = int(dump.requests.req_to_token[5, 7])
    dump.groups[0].halves["V"].sources[0].tensor[slot, 1023] ^= 1
    result = check_dump(dump, engine="cpu")
    assert [check.rows[:, 1].tolist() for check in result.checks] == [[], [slot]]
    assert torch.equal(result.checks[1].rows[:, 7], torch.tensor([4]))
