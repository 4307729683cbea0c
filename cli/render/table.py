"""A report for people: verdict first, then the facts, what was checked, what is wrong, what was not looked at."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from canary_cli.render.columns import Column, fitting_table, printable
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import RenderableType

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


def render(report: Report, max_violations: int, *, color: bool | None, width: int | None = None) -> str:
    """Render every dump of the report as text; ``color`` None means: as stdout can, and as NO_COLOR says."""
    terminal = sys.stdout.isatty() and color is not False
    console = Console(
        file=io.StringIO(),
        width=width or (shutil.get_terminal_size((80, 24)).columns),
        force_terminal=terminal,
        no_color=True if color is False else None,
        highlight=False,
    )
    ascii_only = not (sys.stdout.encoding or "ascii").lower().startswith("utf")
    for i, dump in enumerate(report.dumps):
        if i:
            console.print()
        _print_dump(console, report, dump, max_violations, ascii_only)
    assert isinstance(console.file, io.StringIO)
    text = "".join(line.rstrip() + "\n" for line in console.file.getvalue().splitlines())
    return text.replace("─", "-") if ascii_only else text


def _print_dump(console: Console, report: Report, dump: DumpReport, limit: int, ascii_only: bool) -> None:
    corrupt = dump.verdict == "corrupt"
    mark = ("x" if corrupt else "ok") if ascii_only else ("✗" if corrupt else "✓")
    style = "bold red" if corrupt else "bold green"
    console.print(Text.assemble((f"{mark} {dump.verdict.upper()}", style), f"  {printable(dump.path)}"), soft_wrap=True)
    console.print(Text(_what_was_checked(dump)))
    if not corrupt:
        if dump.live.total:
            console.print(Text(_live(dump)))
        for skip in _skipped_lines(dump):
            console.print(Text(skip, style="dim"))
        return
    _section(console, "Facts", _facts(report, dump))
    _section(console, "Checks", _checks(dump, console.width))
    shown = dump.violations[:limit] if limit else dump.violations
    if shown:
        title = f"Violations ({len(shown):,} of {len(dump.violations):,})"
        _section(console, title, _violations(shown, console.width - 2))
    if dump.live.total:
        _section(console, "Live ring", Text(_live(dump)))
    skipped = _skipped_lines(dump)
    if skipped:
        _section(console, "Not checked", Text("\n".join(skipped)))
    _section(console, "Next", Text("\n".join(_next_steps(dump, len(shown)))))


def _section(console: Console, title: str, body: RenderableType) -> None:
    console.print()
    console.print(Text(title, style="bold"))
    console.print(Padding(body, (0, 0, 0, 2), expand=False))


def _what_was_checked(dump: DumpReport) -> str:
    entries = sum(check.entries for check in dump.checks)
    megabytes = dump.bytes_checked / 1e6
    text = (
        f"{len(dump.violations):,} violations in {entries:,} records of {len(dump.checks)} buffers, {megabytes:,.1f} MB"
    )
    never = sum(check.never_written for check in dump.checks)
    return text + (f"; {never:,} records never written" if never else "")


def _facts(report: Report, dump: DumpReport) -> Table:
    facts = dict(dump.facts)
    engine = f"{report.tool['engine']} on {report.tool['device']}"
    note = report.tool.get("engine_note")
    facts["checked by"] = f"{engine} (no GPU: {note})" if note else engine
    grid = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        grid.add_row(Text(printable(name), style="cyan"), Text(printable(value)))
    return grid


def _checks(dump: DumpReport, width: int) -> Table:
    reasons = [
        ", ".join(f"{SHORT_REASONS[name]} {count:,}" for name, count in check.reasons.items()) for check in dump.checks
    ]
    return fitting_table(
        [
            Column(header="buffer", cells=[c.tag for c in dump.checks], keep=9),
            Column(header="records", cells=[f"{c.entries:,}" for c in dump.checks], keep=8, right=True),
            Column(
                header="violations", cells=[f"{c.violations:,}" for c in dump.checks], keep=9, right=True, style="red"
            ),
            Column(header="what differs", cells=reasons, keep=7, wrap=True),
        ],
        width - 2,
    )


def _place(violation: Violation) -> str:
    if violation.table_position is None:
        return "-"
    return str(violation.table_position)


def _violations(violations: Sequence[Violation], width: int) -> Table:
    def differs(v: Violation) -> str:
        return ", ".join(SHORT_REASONS[name] for name in v.reasons)

    def owner(v: Violation) -> str:
        others = len([name for name in v.requests if name != v.request])
        return (v.request or "prefix cache") + (f" +{others}" if others else "")

    def token(v: Violation) -> str:
        return "-" if v.expected_token == -1 else str(v.expected_token)

    return fitting_table(
        [
            Column(header="buffer", cells=[v.tag for v in violations], keep=9),
            Column(header="request", cells=[owner(v) for v in violations], keep=9, fold=20),
            Column(header="pos", cells=[_place(v) for v in violations], keep=9, right=True),
            Column(header="slot", cells=[str(v.slot) for v in violations], keep=9, right=True),
            Column(header="differs", cells=[differs(v) for v in violations], keep=8, wrap=True, style="red"),
            Column(header="has pos", cells=[str(v.position) for v in violations], keep=6, right=True),
            Column(header="has token", cells=[str(v.stored_token) for v in violations], keep=5, right=True),
            Column(header="wants", cells=[token(v) for v in violations], keep=4, right=True),
            Column(header="has chain hash", cells=[f"0x{v.stored_chain_hash:016x}" for v in violations], keep=3),
            Column(header="wants", cells=[f"0x{v.expected_aux:016x}" for v in violations], keep=2),
        ],
        width,
    )


def _live(dump: DumpReport) -> str:
    live = dump.live
    kept = len(live.rows)
    return (
        f"The live process reported {live.total:,} violations and kept {kept:,}; "
        f"{live.reproduced:,} of those fail here as well."
    )


def _skipped_lines(dump: DumpReport) -> list[str]:
    by_reason: dict[str, list[str]] = {}
    for skip in dump.skipped:
        by_reason.setdefault(skip.reason, []).append(skip.what)
    return [f"not checked: {', '.join(names)}: {reason}" for reason, names in by_reason.items()]


def _next_steps(dump: DumpReport, shown: int) -> list[str]:
    steps = []
    if shown < len(dump.violations):
        steps.append("--max-violations 0 lists every violation")
    steps.append("--format json gives hashes and all owners of each slot to a script")
    return steps
