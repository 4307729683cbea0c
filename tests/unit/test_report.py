"""The machine-readable report: its keys, its number forms, and when it says corrupt."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from canary_cli.render import json as json_renderer

from canary_numba.check import check_dump
from canary_numba.dump import Dump, load_dump
from canary_numba.findings import Diagnosis, Finding
from canary_numba.report import DumpReport, Report, build_dump_report, hex64, tool_of, verdict_of

DUMPS = Path(__file__).parents[2] / "examples" / "dumps"
TOOL = {"canary_numba", "numba", "torch", "engine", "device"}
DUMP = {
    "path",
    "verdict",
    "context",
    "hash_mode",
    "seconds",
    "bytes_checked",
    "checks",
    "violations_total",
    "violations_shown",
    "violations",
    "findings",
    "live_violations",
    "skipped",
    "tested",
    "not_tested",
    "strips",
    "strips_left_out",
    "pool_maps",
}
VIOLATION = {
    "tag",
    "slot",
    "position",
    "stored_token",
    "expected_token",
    "stored_chain_hash",
    "expected_aux",
    "reasons",
    "fail_reason_bits",
    "request",
    "table_position",
    "requests",
}
FINDING = {
    "fault",
    "severity",
    "confidence",
    "requests",
    "positions",
    "slots",
    "summary",
    "evidence",
    "next_steps",
    "details",
    "pool",
    "slot_lines",
}
LATENT = Finding(
    fault="live_slot_on_free_list",
    severity="latent",
    confidence="certain",
    summary="a slot in use is on the free list",
    requests=("code-4",),
    positions={"code-4": (30, 31)},
    slots=(122, 270),
    evidence=("both lists hold 122",),
    next_steps=("look for an early free",),
    details={"writer": None},
)
HARD = replace(LATENT, severity="corrupt")


def report_of(name: str, *findings: Finding, strict: bool = False, max_violations: int = 0) -> dict[str, Any]:
    report = Report(tool=_TOOL, dumps=(dump_report(load_dump(DUMPS / name), *findings, strict=strict),))
    data: dict[str, Any] = json.loads(json_renderer.render(report, max_violations))
    return data


def dump_report(dump: Dump, *findings: Finding, strict: bool = False) -> DumpReport:
    diagnosis = Diagnosis(findings=findings, tested=("double_free",), not_tested=())
    return build_dump_report(dump, check_dump(dump, engine="cpu"), diagnosis, strict=strict)


_TOOL = tool_of(check_dump(load_dump(DUMPS / "clean.pt"), engine="cpu"))


def test_keys() -> None:
    report = report_of("double_allocation.pt", HARD)
    assert set(report) == {"schema_version", "tool", "verdict", "dumps", "findings"}
    assert report["schema_version"] == 1
    assert set(report["tool"]) == TOOL
    (dump,) = report["dumps"]
    assert set(dump) == DUMP
    assert {frozenset(check) for check in dump["checks"]} == {
        frozenset({"tag", "entries", "violations", "never_written", "reasons"})
    }
    assert set(dump["live_violations"]) == {"total", "reproduced", "rows"}
    rows = dump["violations"] + dump["live_violations"]["rows"]
    assert {frozenset(row) for row in rows} == {frozenset(VIOLATION)}
    assert [set(finding) for finding in dump["findings"]] == [FINDING]


def test_values() -> None:
    (dump,) = report_of("double_allocation.pt", HARD)["dumps"]
    assert dump["path"] == str(DUMPS / "double_allocation.pt")
    assert dump["hash_mode"] == "all"
    assert dump["context"]["step"] == 19
    by_tag = {check["tag"]: check for check in dump["checks"]}
    assert by_tag["TAIL_K_FULL"] == {
        "tag": "TAIL_K_FULL",
        "entries": 309,
        "violations": 2,
        "never_written": 0,
        "reasons": {"verify_chain_hash": 2, "verify_position": 1, "verify_token": 1},
    }
    assert sum(check["violations"] for check in dump["checks"]) == dump["violations_total"] == 12
    assert dump["violations"][1] == {
        "tag": "HEAD_K_FULL",
        "slot": 165,
        "position": 0,
        "stored_token": 8984,
        "expected_token": 23186,
        "stored_chain_hash": "0xde7fae23a9a1b716",
        "expected_aux": hex64(1504554377396796913),
        "reasons": ["verify_chain_hash", "verify_position", "verify_token"],
        "fail_reason_bits": 35,
        "request": "doc-1",
        "table_position": 9,
        "requests": ["doc-1", "late-5"],
    }
    assert dump["findings"][0] == {
        "fault": "live_slot_on_free_list",
        "severity": "corrupt",
        "confidence": "certain",
        "requests": ["code-4"],
        "positions": {"code-4": [30, 31]},
        "slots": [122, 270],
        "summary": "a slot in use is on the free list",
        "evidence": ["both lists hold 122"],
        "next_steps": ["look for an early free"],
        "details": {"writer": None},
        "pool": "FULL",
        "slot_lines": [],
    }


def test_bytes_are_those_of_the_slots_hashed_and_of_the_records() -> None:
    dump = load_dump(DUMPS / "clean.pt")
    result = check_dump(dump, engine="cpu")
    hashed = 0
    for half in dump.groups[0].halves.values():
        plans = [c.plan for c in result.checks if c.tag.stage != "HEAD" and c.tag.half == "K"]
        slots = {slot for plan in plans for slot in plan.verify_slot_indices.tolist()}
        hashed += len(slots - {0}) * sum(source.read_bytes for source in half.sources)
    assert result.bytes_checked == hashed + 64 * sum(check.num_entries for check in result.checks)


@pytest.mark.parametrize("value", [0, 1, 2**63, 2**64 - 1])
def test_hashes_are_strings_of_16_digits(value: int) -> None:
    assert re.fullmatch("0x[0-9a-f]{16}", hex64(value))
    assert int(hex64(value), 16) == value


@pytest.mark.parametrize(("limit", "shown"), [(0, 12), (1, 1), (12, 12), (99, 12)])
def test_the_number_of_violations_shown(limit: int, shown: int) -> None:
    (dump,) = report_of("double_allocation.pt", max_violations=limit)["dumps"]
    assert (dump["violations_total"], dump["violations_shown"], len(dump["violations"])) == (12, shown, shown)
    assert dump["live_violations"]["total"] == dump["live_violations"]["reproduced"] == 16


@pytest.mark.parametrize(
    ("name", "findings", "strict", "verdict"),
    [
        ("clean.pt", (), False, "clean"),
        ("clean.pt", (), True, "clean"),
        ("clean.pt", (LATENT,), False, "clean"),
        ("clean.pt", (LATENT,), True, "corrupt"),
        ("clean.pt", (HARD,), False, "corrupt"),
        ("clean.pt", (LATENT, HARD), False, "corrupt"),
        ("double_allocation.pt", (), False, "corrupt"),
        ("double_allocation.pt", (LATENT,), False, "corrupt"),
    ],
)
def test_verdicts(name: str, findings: tuple[Finding, ...], strict: bool, verdict: str) -> None:
    report = report_of(name, *findings, strict=strict)
    assert report["verdict"] == report["dumps"][0]["verdict"] == verdict


def test_one_corrupt_dump_or_a_fault_across_dumps_makes_a_run_corrupt() -> None:
    good, bad = (dump_report(load_dump(DUMPS / name)) for name in ("clean.pt", "double_allocation.pt"))
    assert Report(tool=_TOOL, dumps=(good, good)).verdict == "clean"
    assert Report(tool=_TOOL, dumps=(good, bad, good)).verdict == "corrupt"
    assert Report(tool=_TOOL, dumps=(good, good), findings=(HARD,)).verdict == "corrupt"
    assert Report(tool=_TOOL, dumps=()).verdict == "clean"
    assert verdict_of((), (), strict=True) == "clean"


def test_a_dump_in_memory_has_a_stand_in_for_its_path() -> None:
    assert dump_report(replace(load_dump(DUMPS / "clean.pt"), path=None)).path == "<memory>"


def test_what_was_skipped_is_told() -> None:
    dump = replace(load_dump(DUMPS / "clean.pt"), radix=None)
    assert dump_report(dump).to_dict()["skipped"] == [
        {"what": f"SWEEP_{half}_FULL", "reason": "the dump has no prefix cache (radix)"} for half in "KV"
    ]


def test_json_is_ascii_whatever_the_names() -> None:
    dump = load_dump(DUMPS / "double_allocation.pt")
    assert dump.requests is not None
    names = tuple(f"\u8bf7\u6c42 \U0001f600 {i}" for i in range(len(dump.requests.rids)))
    named = replace(dump, requests=replace(dump.requests, rids=names))
    text = json_renderer.render(Report(tool=_TOOL, dumps=(dump_report(named),)), 0)
    assert text.isascii()
    assert json.loads(text)["dumps"][0]["violations"][0]["request"] in names
