"""Every example dump: violation rows equal SGLang's own, row for row, and reports are the same on every engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from canary_cli.main import cli
from click.testing import CliRunner
from golden import find_shared

from canary_numba.check import check_dump
from canary_numba.dump import load_dump
from canary_numba.layout import FailReason

_SHARED = find_shared()
TRUTH: dict[str, Any] = json.loads((_SHARED / "dumps/truth.json").read_text()) if _SHARED else {}
OUT_OF_RANGE = FailReason.VERIFY_SLOT_OUT_OF_RANGE | FailReason.VERIFY_PREV_SLOT_OUT_OF_RANGE


@pytest.mark.parametrize("name", sorted(TRUTH))
def test_violations_equal_the_truth(name: str, engine: str, shared: Path) -> None:
    result = check_dump(load_dump(shared / "dumps" / name), engine=engine)
    found = {check.tag.name: sorted(check.rows.tolist()) for check in result.checks}
    expected = TRUTH[name]["violations"]
    if expected is None:
        bits = {row[7] for rows in found.values() for row in rows}
        assert bits
        assert all(value & OUT_OF_RANGE for value in bits)
        return
    assert {tag: rows for tag, rows in found.items() if rows} == {
        tag: sorted(rows) for tag, rows in expected.items() if rows
    }
    assert set(expected) <= set(found)


def _report(engine: str, shared: Path) -> dict[str, Any]:
    paths = [str(shared / "dumps" / name) for name in sorted(TRUTH)]
    outcome = CliRunner().invoke(
        cli, ["check", *paths, "--format", "json", "--max-violations", "0", "--engine", engine], standalone_mode=False
    )
    assert outcome.return_value == 1
    report: dict[str, Any] = json.loads(outcome.stdout)
    assert report.pop("tool")["engine"] == engine
    for dump in report["dumps"]:
        del dump["seconds"]
    return report


def test_the_report_does_not_depend_on_the_engine(engine: str, shared: Path) -> None:
    assert _report(engine, shared) == _report("reference", shared)


def test_requests_and_positions_of_a_slot_owned_twice(engine: str, shared: Path) -> None:
    report = _report(engine, shared)
    (dump,) = (d for d in report["dumps"] if d["path"].endswith("double_allocation.pt"))
    tail = [v for v in dump["violations"] if v["tag"] == "TAIL_K_FULL"]
    assert [(v["slot"], v["request"], v["table_position"], v["requests"]) for v in tail] == [
        (138, "doc-1", 10, ["doc-1"]),
        (165, "doc-1", 9, ["doc-1", "late-5"]),
    ]
    assert dump["live_violations"]["total"] == dump["live_violations"]["reproduced"] == 16
