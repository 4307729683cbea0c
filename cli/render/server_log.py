"""The violations of a server's log as text: counts by buffer, the slots hit most, the violations themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from canary_cli.render.columns import Column, fitting_table, printable
from canary_cli.render.console import TextConsole
from canary_cli.render.parts import SHORT_REASONS
from rich.text import Text

if TYPE_CHECKING:
    from canary_numba.log_lines import LogLine, LogSummary

MAX_SLOTS = 10


def render(summary: LogSummary, name: str, *, color: bool | None, width: int | None = None) -> str:
    """Render the summary of the log ``name``."""
    console = TextConsole(color=color, width=width)
    clean = not summary.violations and not summary.unreadable_total
    mark = ("OK", "VIOLATIONS") if console.ascii_only else ("✓ OK", "✗ VIOLATIONS")
    console.print(Text.assemble((mark[not clean], "bold green" if clean else "bold red"), "  ", printable(name)))
    console.print(
        Text(f"{summary.violations:,} violations of {len(summary.slots):,} slots in {summary.lines:,} log lines")
    )
    if summary.unreadable_total:
        numbers = ", ".join(map(str, summary.unreadable))
        more = "" if summary.unreadable_total == len(summary.unreadable) else ", ..."
        console.print(Text(f"{summary.unreadable_total:,} violation lines are cut or garbled: line {numbers}{more}"))
    if summary.first is not None and summary.last is not None:
        console.section("By buffer", fitting_table(_tag_columns(summary), console.width - 2))
        title = "Slots" if len(summary.slots) <= MAX_SLOTS else f"Slots ({MAX_SLOTS} of {len(summary.slots):,})"
        console.section(title, fitting_table(_slot_columns(summary), console.width - 2))
        console.section("When", Text("\n".join(_when(summary.first, summary.last))))
        title = "Violations"
        if len(summary.shown) < summary.violations:
            title += f" ({len(summary.shown):,} of {summary.violations:,})"
        console.section(title, fitting_table(_line_columns(summary.shown), console.width - 2))
    return console.text()


def _differs(reasons: Sequence[str]) -> str:
    return ", ".join(SHORT_REASONS.get(name, name) for name in reasons) or "-"


def _when(first: LogLine, last: LogLine) -> list[str]:
    return [
        f"{word} line {found.line:,}{': ' if found.prefix else ''}{printable(found.prefix)}"
        for word, found in (("first", first), ("last ", last))
    ]


def _tag_columns(summary: LogSummary) -> list[Column]:
    tags = sorted(summary.by_tag)
    reasons = [
        ", ".join(f"{SHORT_REASONS.get(name, name)} {count:,}" for name, count in summary.by_reason[tag].items())
        for tag in tags
    ]
    return [
        Column(header="buffer", cells=tags, keep=9, fold=24),
        Column(header="violations", cells=[f"{summary.by_tag[tag]:,}" for tag in tags], keep=9, right=True),
        Column(header="what differs", cells=reasons, keep=7, wrap=True),
    ]


def _slot_columns(summary: LogSummary) -> list[Column]:
    ordered = sorted(summary.slots.items(), key=lambda item: (-item[1], item[0]))[:MAX_SLOTS]
    return [
        Column(header="pool", cells=[pool for (pool, _), _ in ordered], keep=8),
        Column(header="slot", cells=[str(slot) for (_, slot), _ in ordered], keep=9, right=True),
        Column(header="violations", cells=[f"{count:,}" for _, count in ordered], keep=9, right=True),
    ]


def _line_columns(lines: Sequence[LogLine]) -> list[Column]:
    return [
        Column(header="line", cells=[str(found.line) for found in lines], keep=7, right=True),
        Column(header="buffer", cells=[found.tag for found in lines], keep=9, fold=24),
        Column(header="slot", cells=[str(found.slot) for found in lines], keep=9, right=True),
        Column(header="differs", cells=[_differs(found.reasons) for found in lines], keep=8, wrap=True, style="red"),
        Column(header="has pos", cells=[str(found.position) for found in lines], keep=6, right=True),
        Column(header="has token", cells=[str(found.stored_token) for found in lines], keep=5, right=True),
        Column(header="wants", cells=[str(found.expected_token) for found in lines], keep=4, right=True),
        Column(header="has chain hash", cells=[f"0x{found.stored_chain_hash:016x}" for found in lines], keep=3),
    ]
