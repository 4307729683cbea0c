"""What a report consists of, as columns and lines: every renderer takes it from here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from canary_cli.render.columns import Column

if TYPE_CHECKING:
    from canary_numba.findings import SlotLine
    from canary_numba.report import DumpReport, Report
    from canary_numba.violations import Violation

SHORT_REASONS = {
    "verify_chain_hash": "chain",
    "verify_position": "position",
    "verify_real_kv_hash": "K/V bytes",
    "write_token": "written token",
    "write_position": "written position",
    "verify_token": "token",
    "verify_slot_out_of_range": "bad slot",
    "verify_prev_slot_out_of_range": "bad previous slot",
}


def what_was_checked(dump: DumpReport) -> str:
    """Say in one line how much was checked and how much of it failed."""
    entries = sum(check.entries for check in dump.checks)
    if entries == 0:
        return "no record was checked"
    megabytes = dump.bytes_checked / 1e6
    text = (
        f"{len(dump.violations):,} violations in {entries:,} records of {len(dump.checks)} buffers, {megabytes:,.1f} MB"
    )
    never = sum(check.never_written for check in dump.checks)
    return text + (f"; {never:,} records never written" if never else "")


def facts_of(report: Report, dump: DumpReport) -> dict[str, str]:
    """Facts of the dump, and what checked it."""
    engine = f"{report.tool['engine']} on {report.tool['device']}"
    note = report.tool.get("engine_note")
    return dict(dump.facts) | {"checked by": f"{engine} (no GPU: {note})" if note else engine}


def check_columns(dump: DumpReport) -> list[Column]:
    """One row a verified buffer."""
    reasons = [
        ", ".join(f"{SHORT_REASONS[name]} {count:,}" for name, count in check.reasons.items()) for check in dump.checks
    ]
    return [
        Column(header="buffer", cells=[c.tag for c in dump.checks], keep=9),
        Column(header="records", cells=[f"{c.entries:,}" for c in dump.checks], keep=8, right=True),
        Column(header="violations", cells=[f"{c.violations:,}" for c in dump.checks], keep=9, right=True, style="red"),
        Column(header="what differs", cells=reasons, keep=7, wrap=True),
    ]


def _place(violation: Violation) -> str:
    if violation.table_position is None:
        return "-"
    return str(violation.table_position)


def violation_columns(violations: Sequence[Violation]) -> list[Column]:
    """One row a violation."""

    def differs(v: Violation) -> str:
        return ", ".join(SHORT_REASONS[name] for name in v.reasons)

    def owner(v: Violation) -> str:
        others = len([name for name in v.requests if name != v.request])
        return (v.request or "prefix cache") + (f" +{others}" if others else "")

    def token(v: Violation) -> str:
        return "-" if v.expected_token == -1 else str(v.expected_token)

    return [
        Column(header="buffer", cells=[v.tag for v in violations], keep=9),
        Column(header="request", cells=[owner(v) for v in violations], keep=9, fold=20),
        Column(header="pos", cells=[_place(v) for v in violations], keep=9, right=True),
        Column(header="slot", cells=[str(v.slot) for v in violations], keep=9, right=True),
        Column(header="differs", cells=[differs(v) for v in violations], keep=8, wrap=True, style="red"),
        *_sources(violations),
        Column(header="has pos", cells=[str(v.position) for v in violations], keep=6, right=True),
        Column(header="has token", cells=[str(v.stored_token) for v in violations], keep=5, right=True),
        Column(header="wants", cells=[token(v) for v in violations], keep=4, right=True),
        Column(header="has chain hash", cells=[f"0x{v.stored_chain_hash:016x}" for v in violations], keep=3),
        Column(header="wants", cells=[f"0x{v.expected_aux:016x}" for v in violations], keep=2),
    ]


def _sources(violations: Sequence[Violation]) -> list[Column]:
    """The column of changed K/V sources, where the dump tells any."""
    if all(violation.sources is None for violation in violations):
        return []

    def source(violation: Violation) -> str:
        if not violation.sources:
            return "-"
        return violation.sources[0] + (f" +{len(violation.sources) - 1}" if len(violation.sources) > 1 else "")

    return [Column(header="changed", cells=[source(v) for v in violations], keep=7, fold=16)]


def live_line(dump: DumpReport) -> str:
    """What the live process had reported, and how much of it is still so."""
    live = dump.live
    kept = len(live.rows)
    return (
        f"The live process reported {live.total:,} violations and kept {kept:,}; "
        f"{live.reproduced:,} of those fail here as well."
    )


def not_checked(dump: DumpReport, *, brief: bool = False) -> list[str]:
    """What could not be checked or looked for, and why; ``brief`` only counts the faults that were not looked for."""
    by_reason: dict[str, list[str]] = {}
    for skip in dump.skipped:
        by_reason.setdefault(skip.reason, []).append(skip.what)
    by_key: dict[str, list[str]] = {}
    for one in dump.not_tested:
        by_key.setdefault(one.key, []).append(one.fault)
    lines = [f"not checked: {', '.join(names)}: {reason}" for reason, names in by_reason.items()]
    if by_key:
        missing = "; ".join(f"{', '.join(names)} (needs {key})" for key, names in by_key.items())
        count = f"{len(dump.tested)} of {len(dump.tested) + len(dump.not_tested)} faults"
        rest = "; --format json says what the others need" if brief else f", not for {missing}"
        lines.append(f"looked for {count}{rest}")
    return lines


def slot_columns(lines: Sequence[SlotLine]) -> list[Column]:
    """One row a slot of a finding: what belongs there and what stands there."""
    return [
        Column(header="slot", cells=[str(line.slot) for line in lines], keep=9, right=True),
        Column(header="owner", cells=[_owners(line) for line in lines], keep=8, wrap=True, fold=24),
        Column(header="wants pos", cells=[_or_dash(line.expected_position) for line in lines], keep=5, right=True),
        Column(header="token", cells=[_token(line.expected_token) for line in lines], keep=4, right=True),
        Column(header="has pos", cells=[str(line.stored_position) for line in lines], keep=7, right=True),
        Column(header="token", cells=[str(line.stored_token) for line in lines], keep=6, right=True),
        Column(header="written for", cells=[_writer(line) for line in lines], keep=8, wrap=True, fold=24),
    ]


def _owners(line: SlotLine) -> str:
    names = [f"{name}:{position}" for name, position in line.owners]
    if not names:
        names = ["prefix cache" if line.cached else "free list" if line.free else "nobody"]
    return ", ".join(names)


def _writer(line: SlotLine) -> str:
    return "unknown" if line.writer is None else f"{line.writer}:{line.writer_position}"


def _token(token: int) -> str:
    return "-" if token < 0 else str(token)


def _or_dash(value: int | None) -> str:
    return "-" if value is None else str(value)
