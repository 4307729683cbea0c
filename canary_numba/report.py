"""A report: plain frozen data, built from a dump and what its check found, rendered elsewhere.

``to_dict`` gives the machine-readable form, schema version 1. 64-bit hashes are strings there, since JSON numbers lose
bits past 2**53.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numba
import numpy as np
import torch

import canary_numba
from canary_numba.check import CheckResult, Skipped
from canary_numba.dump.model import Dump
from canary_numba.findings import CORRUPT, LATENT, Diagnosis, Finding, NotTested, Pictures, SlotLine
from canary_numba.layout import VIOLATION_FIELD_SLOT_IDX
from canary_numba.violation_list import ViolationList
from canary_numba.violations import Violation, decode_row, live_violations

SCHEMA_VERSION = 1
CLEAN = "clean"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckLine:
    """One verified buffer in numbers: entries, violation rows, entries never written, failing entries by reason."""

    tag: str
    entries: int
    violations: int
    never_written: int
    reasons: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveViolations:
    """The live ring: rows ever reported, rows kept, and how many of those fail in this check as well."""

    total: int
    rows: tuple[Violation, ...]
    reproduced: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpReport:
    """Everything found in one dump. ``violations`` are all of them; renderers show as many as they are asked to.

    ``tested``: faults that were looked for; ``not_tested``: those that the dump did not allow to be looked for.
    """

    path: str
    verdict: str
    producer: Mapping[str, Any]
    context: Mapping[str, Any]
    hash_mode: str
    facts: Mapping[str, str]
    seconds: float
    bytes_checked: int
    checks: tuple[CheckLine, ...]
    violations: Sequence[Violation]
    findings: tuple[Finding, ...]
    live: LiveViolations
    skipped: tuple[Skipped, ...]
    tested: tuple[str, ...] = ()
    not_tested: tuple[NotTested, ...] = ()
    pictures: Pictures = field(default_factory=Pictures)

    def first_violations(self, most: int) -> Sequence[Violation]:
        """At most ``most`` violations (0 = all)."""
        return self.violations[:most] if most else self.violations

    @property
    def tables(self) -> tuple[tuple[Finding, tuple[SlotLine, ...]], ...]:
        """Each finding with its table of slots, empty where nothing was drawn."""
        drawn = self.pictures.slot_lines or ((),) * len(self.findings)
        return tuple(zip(self.findings, drawn, strict=True))

    def to_dict(self, max_violations: int = 0) -> dict[str, Any]:
        """As JSON data with at most ``max_violations`` violations (0 = all)."""
        shown = self.first_violations(max_violations)
        live = self.live.rows[:max_violations] if max_violations else self.live.rows
        return {
            "path": self.path,
            "verdict": self.verdict,
            "context": dict(self.context),
            "hash_mode": self.hash_mode,
            "seconds": round(self.seconds, 6),
            "bytes_checked": self.bytes_checked,
            "checks": [
                {
                    "tag": check.tag,
                    "entries": check.entries,
                    "violations": check.violations,
                    "never_written": check.never_written,
                    "reasons": dict(check.reasons),
                }
                for check in self.checks
            ],
            "violations_total": len(self.violations),
            "violations_shown": len(shown),
            "violations": [violation_to_dict(violation) for violation in shown],
            "findings": [
                finding.to_dict() | {"slot_lines": [line.to_dict() for line in lines]} for finding, lines in self.tables
            ],
            "strips": [strip.to_dict() for strip in self.pictures.strips],
            "strips_left_out": len(self.pictures.strips_left_out),
            "pool_maps": [pool_map.to_dict() for pool_map in self.pictures.pool_maps],
            "live_violations": {
                "total": self.live.total,
                "reproduced": self.live.reproduced,
                "rows": [violation_to_dict(violation) for violation in live],
            },
            "skipped": [{"what": skip.what, "reason": skip.reason} for skip in self.skipped],
            "tested": list(self.tested),
            "not_tested": [{"fault": one.fault, "key": one.key} for one in self.not_tested],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The reports of all dumps of a run, and findings that span several; ``strict`` makes latent ones corrupt."""

    tool: Mapping[str, str]
    dumps: tuple[DumpReport, ...]
    findings: tuple[Finding, ...] = ()
    strict: bool = False

    @property
    def verdict(self) -> str:
        """``corrupt`` when any dump is, or a finding that spans dumps says so."""
        spanning = verdict_of((), self.findings, self.strict)
        return CORRUPT if CORRUPT in (spanning, *(dump.verdict for dump in self.dumps)) else CLEAN

    def to_dict(self, max_violations: int = 0) -> dict[str, Any]:
        """As JSON data, schema version 1."""
        return {
            "schema_version": SCHEMA_VERSION,
            "tool": dict(self.tool),
            "verdict": self.verdict,
            "dumps": [dump.to_dict(max_violations) for dump in self.dumps],
            "findings": [finding.to_dict() for finding in self.findings],
        }


def violation_to_dict(violation: Violation) -> dict[str, Any]:
    """As JSON data; ``sources`` only where it is known whose K/V bytes changed."""
    known = {} if violation.sources is None else {"sources": list(violation.sources)}
    return {
        "tag": violation.tag,
        "slot": violation.slot,
        "position": violation.position,
        "stored_token": violation.stored_token,
        "expected_token": violation.expected_token,
        "stored_chain_hash": hex64(violation.stored_chain_hash),
        "expected_aux": hex64(violation.expected_aux),
        "reasons": violation.reasons,
        "fail_reason_bits": violation.fail_reason_bits,
        "request": violation.request,
        "table_position": violation.table_position,
        "requests": list(violation.requests),
        **known,
    }


def hex64(value: int) -> str:
    """A 64-bit word in full: ``0x`` and 16 digits."""
    return f"0x{value:016x}"


def tool_of(result: CheckResult) -> dict[str, str]:
    """Who checked: versions, engine and device, and why not CUDA."""
    tool = {
        "canary_numba": canary_numba.__version__,
        "numba": numba.__version__,
        "torch": torch.__version__,
        "engine": result.engine.name,
        "device": result.engine.description,
    }
    if result.engine.note is not None:
        tool["engine_note"] = result.engine.note
    return tool


def verdict_of(violations: Sequence[Violation], findings: Sequence[Finding], strict: bool) -> str:
    """``corrupt`` with any violation or corrupt finding; with ``strict``, with a latent one, too."""
    damaging = (CORRUPT, LATENT) if strict else (CORRUPT,)
    damaged = any(finding.severity in damaging for finding in findings)
    return CORRUPT if violations or damaged else CLEAN


def _facts(dump: Dump) -> dict[str, str]:
    facts = {}
    if dump.producer:
        engine, version = dump.producer.get("engine", "unknown"), dump.producer.get("engine_version", "")
        facts["written by"] = f"{engine} {version}".strip()
    for key, value in dump.context.items():
        facts[key] = str(value)
    facts["hash mode"] = dump.hash_mode.name.lower()
    if dump.requests is not None:
        lengths = dump.requests.prefix_lens.clamp(min=0)
        facts["requests"] = f"{len(dump.requests.rids)} live, {int(lengths.sum()):,} cached tokens"
    if dump.radix is not None:
        facts["prefix cache"] = f"{dump.radix.slot_indices.shape[0]:,} tokens"
    for group in dump.groups:
        half = next(iter(group.halves.values()))
        window = f", window {group.swa_window_size:,}" if group.swa_window_size else ""
        facts[f"{group.kind} pool"] = f"{half.num_slots:,} slots, halves {' '.join(group.halves)}{window}"
    return facts


def _reproduced(live: Sequence[Violation], violations: ViolationList) -> int:
    """How many rows of the live ring fail in the check, too."""
    slots = np.array([violation.slot for violation in live], dtype=np.int64)
    rows = violations.rows[np.isin(violations.rows[:, VIOLATION_FIELD_SLOT_IDX], slots)]
    failing = {(v.tag, v.slot, v.position, v.fail_reason_bits) for v in map(decode_row, rows.tolist())}
    return sum((v.tag, v.slot, v.position, v.fail_reason_bits) in failing for v in live)


def build_dump_report(
    dump: Dump,
    result: CheckResult,
    diagnosis: Diagnosis | None = None,
    *,
    strict: bool = False,
) -> DumpReport:
    """Put together what was found in one dump; without a diagnosis, violations alone."""
    diagnosis = diagnosis or Diagnosis(findings=(), tested=(), not_tested=())
    violations = ViolationList(dump, result)
    total, live = live_violations(dump)
    reproduced = _reproduced(live, violations)
    return DumpReport(
        path=dump.path or "<memory>",
        verdict=verdict_of(violations, diagnosis.findings, strict),
        producer=dict(dump.producer),
        context=dict(dump.context),
        hash_mode=dump.hash_mode.name.lower(),
        facts=_facts(dump),
        seconds=result.seconds,
        bytes_checked=result.bytes_checked,
        checks=tuple(
            CheckLine(
                tag=check.tag.name,
                entries=check.num_entries,
                violations=check.rows.shape[0],
                never_written=check.never_written,
                reasons=check.reasons,
            )
            for check in result.checks
        ),
        violations=violations,
        findings=diagnosis.findings,
        live=LiveViolations(total=total, rows=live, reproduced=reproduced),
        skipped=result.skipped,
        tested=diagnosis.tested,
        not_tested=diagnosis.not_tested,
        pictures=diagnosis.pictures,
    )
