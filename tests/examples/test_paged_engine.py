"""The paged engine ends clean without a bug; each bug ends in a dump whose diagnosis names it."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from canary_numba.check import check_dump
from canary_numba.diagnosis import diagnose
from canary_numba.dump import load_dump
from canary_numba.findings import CORRUPT, LATENT, Finding

EXAMPLES = Path(__file__).parents[2] / "examples"

FAULTS = {
    "double-free": (CORRUPT, "slot_owned_twice"),
    "freed-in-use": (LATENT, "live_slot_on_free_list"),
    "use-after-free": (CORRUPT, "slot_owned_twice"),
    "table-overwrite": (CORRUPT, "table_points_elsewhere"),
    "late-write": (CORRUPT, "kv_bytes_changed"),
    "lost-page": (CORRUPT, "slots_never_written"),
    "stale-row": (CORRUPT, "stale_table_row"),
    "wrong-prefix": (CORRUPT, "wrong_prefix_hit"),
}


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module("paged_engine")


def run(example: Any, bug: str, tmp_path: Path) -> tuple[str, list[Finding], int]:
    path = tmp_path / "dump.pt"
    done = CliRunner().invoke(example.main, ["--bug", bug, "--output", str(path)], catch_exceptions=False)
    assert done.exit_code == 0
    dump = load_dump(path)
    result = check_dump(dump, engine="cpu")
    return done.output, list(diagnose(dump, result).findings), result.num_violations


def test_without_a_bug_it_ends_clean(example: Any, tmp_path: Path) -> None:
    output, findings, violations = run(example, "none", tmp_path)
    assert (findings, violations) == ([], 0)
    assert "14 passes" in output
    assert " 0 violations, the canary ran in each" in output


def test_every_bug_is_tested(example: Any) -> None:
    assert set(importlib.import_module("paged.bugs").BUGS) == {"none", *FAULTS}


@pytest.mark.parametrize(("bug", "severity", "fault"), [(bug, *named) for bug, named in FAULTS.items()])
def test_each_bug_is_named(bug: str, severity: str, fault: str, example: Any, tmp_path: Path) -> None:
    output, findings, violations = run(example, bug, tmp_path)
    assert (severity, fault) == (findings[0].severity, findings[0].fault)
    assert (violations > 0) == (severity == CORRUPT)
    live = re.search(r"(\d+) violations, the canary ran in each", output)
    assert live is not None
    # Wrong tokens chain soundly: they are seen because the engine tells the canary what each request said.
    assert (int(live.group(1)) > 0) == (severity == CORRUPT)


def test_the_changed_layer_is_named(example: Any, tmp_path: Path) -> None:
    _, findings, _ = run(example, "late-write", tmp_path)
    assert any("layer1.k" in line for line in findings[0].evidence)


def test_attention_does_not_depend_on_where_pages_lie(example: Any) -> None:
    model = importlib.import_module("paged.model").PagedModel(num_pages=8, page_size=4)
    ids = torch.tensor([3, 1, 4, 1, 5, 9])
    low, high = torch.arange(4, 10), torch.tensor([30, 9, 21, 16, 5, 13])
    whole = model.forward(ids, torch.arange(6), low, [low])
    model.forward(ids[:4], torch.arange(4), high[:4], [high[:4]])
    pieces = model.forward(ids[4:], torch.arange(4, 6), high[4:], [high])
    assert whole.tolist() == pieces.tolist()
