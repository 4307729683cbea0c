"""Every example dump of a real server: the diagnosis is the label, nothing less and nothing besides."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from golden import find_shared

from canary_numba.check import check_dump
from canary_numba.diagnosis import diagnose
from canary_numba.diagnosis.catalog import FAULTS
from canary_numba.dump import load_dump
from canary_numba.findings import CORRUPT, Finding

_SHARED = find_shared()
TRUTH: dict[str, Any] = json.loads((_SHARED / "dumps/truth.json").read_text()) if _SHARED else {}
ACROSS_DUMPS = {"ranks_disagree"}
FACTS = ("writer", "owner_position", "half", "field", "bit", "delta", "copied_from", "cached_only")


def _labels(truth: dict[str, Any]) -> list[dict[str, Any]]:
    if truth["fault"] in {"none", *ACROSS_DUMPS}:
        return []
    parts: list[dict[str, Any]] = truth.get("parts", [truth])
    return parts


def _matches(finding: Finding, label: dict[str, Any]) -> bool:
    """Fault, requests, and positions or slots; a label that lists neither asks for neither."""
    if finding.fault != label["fault"] or set(finding.requests) != set(label["requests"]):
        return False
    positions = {name: sorted(places) for name, places in finding.positions.items()}
    same_positions = positions == {name: sorted(places) for name, places in label["positions"].items()}
    unlisted = not label["positions"] and not label["slots"]
    return unlisted or same_positions or sorted(finding.slots) == sorted(label["slots"])


@pytest.mark.parametrize("name", sorted(TRUTH))
def test_the_diagnosis_is_the_label(name: str, engine: str, shared: Path) -> None:
    dump = load_dump(shared / "dumps" / name)
    findings = list(diagnose(dump, check_dump(dump, engine=engine)).findings)
    for label in _labels(TRUTH[name]):
        found = [finding for finding in findings if _matches(finding, label)]
        assert len(found) == 1, [(f.fault, f.requests, f.positions, f.slots) for f in findings]
        findings.remove(found[0])
        facts = {key: label[key] for key in FACTS if key in label}
        assert {key: found[0].details.get(key) for key in facts} == facts
        assert found[0].severity == FAULTS[label["fault"]].severity
    assert findings == []


@pytest.mark.parametrize("name", sorted(TRUTH))
def test_silent_faults_make_a_dump_corrupt_all_the_same(name: str, shared: Path) -> None:
    dump = load_dump(shared / "dumps" / name)
    result = check_dump(dump, engine="cpu")
    damaged = any(finding.severity == CORRUPT for finding in diagnose(dump, result).findings)
    labels = {label["fault"] for label in _labels(TRUTH[name])}
    assert damaged == any(FAULTS[fault].severity == CORRUPT for fault in labels)


def test_owners_are_named_where_the_dump_knows_them(shared: Path) -> None:
    named = 0
    for name, truth in TRUTH.items():
        dump = load_dump(shared / "dumps" / name)
        assert dump.requests is not None
        for label in _labels(truth):
            if label.get("owner") in dump.requests.rids:
                findings = diagnose(dump, check_dump(dump, engine="cpu")).findings
                assert label["owner"] in {finding.details.get("owner") for finding in findings}
                named += 1
    assert named >= 4
