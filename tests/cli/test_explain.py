"""``canary-check explain``, and findings in what ``check`` prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from canary_cli import exit_codes, main

from canary_numba.diagnosis.catalog import FAULTS

DUMPS = Path(__file__).parents[2] / "examples" / "dumps"


def test_all_faults_are_listed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main.run(["explain"]) == exit_codes.CLEAN
    text = capsys.readouterr().out
    assert set(FAULTS) <= set(text.split())
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("name", sorted(FAULTS))
def test_each_fault_is_explained(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main.run(["explain", name.replace("_", "-")]) == exit_codes.CLEAN
    words = " ".join(capsys.readouterr().out.split())
    assert FAULTS[name].summary in words
    assert FAULTS[name].signature in words
    assert all(step in words for step in FAULTS[name].next_steps)


def test_a_name_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["explain", "slot_owned_twise"]) == exit_codes.USAGE
    assert "did you mean slot_owned_twice" in capsys.readouterr().err


def test_json_has_findings_and_what_was_not_tested(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([str(DUMPS / "double_allocation.pt"), "--format", "json", "--engine", "cpu"]) == exit_codes.CORRUPT
    (dump,) = json.loads(capsys.readouterr().out)["dumps"]
    assert [finding["fault"] for finding in dump["findings"]] == ["slot_owned_twice"]
    not_tested = {one["fault"]: one["key"] for one in dump["not_tested"]}
    assert not_tested["index_copy_stale"] == "requests.kv_indices"
    assert set(dump["tested"]) | set(not_tested) == set(FAULTS)
    assert not set(dump["tested"]) & set(not_tested)


def test_the_finding_stands_right_after_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    main.run([str(DUMPS / "double_allocation.pt"), "--engine", "cpu"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[1] == "CORRUPT"
    assert lines[3] == "Finding"
    assert lines[4].split() == ["CORRUPT", "slot_owned_twice", "likely"]
