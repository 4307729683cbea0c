"""A report as Markdown, for issues and chats: the same parts in the same order as on the terminal."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from canary_cli.render.columns import Column, printable
from canary_cli.render.console import TextConsole
from canary_cli.render.parts import (
    check_columns,
    facts_of,
    live_line,
    not_checked,
    slot_columns,
    violation_columns,
    what_was_checked,
)
from canary_cli.render.pictures import pool_map, strip_legend, strips_table

if TYPE_CHECKING:
    from canary_numba.findings import Finding, SlotLine
    from canary_numba.report import DumpReport, Report

_WIDTH = 96


def render(report: Report, max_violations: int) -> str:
    """Render every dump of the report, then what spans several."""
    blocks: list[str] = []
    for dump in report.dumps:
        blocks += _dump(report, dump, max_violations)
    if report.findings:
        blocks.append("# Across dumps")
        for finding in report.findings:
            blocks += [*_head(finding), *_tail(finding)]
    return "\n\n".join(blocks) + "\n"


def escape(text: str) -> str:
    """Text that Markdown shows as it is: names come from the dump."""
    return re.sub(r"([\\`*_\[\]<>#|~&])", r"\\\1", printable(text))


def _table(columns: Sequence[Column]) -> str:
    rows = [[column.header for column in columns], ["---:" if column.right else "---" for column in columns]]
    rows += [[escape(cell) for cell in row] for row in zip(*(column.cells for column in columns), strict=True)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _list(texts: Sequence[str]) -> str:
    return "\n".join(f"- {escape(text)}" for text in texts)


def _code(console: TextConsole) -> str:
    # No name may end the block early.
    return "```\n" + console.text().replace("```", "` ` `").rstrip("\n") + "\n```"


def _dump(report: Report, dump: DumpReport, limit: int) -> Iterator[str]:
    yield f"# {dump.verdict.upper()} {escape(dump.path)}"
    yield what_was_checked(dump)
    for finding, slots in dump.tables:
        yield from _finding(finding, dump, slots)
    for picture in dump.pictures.pool_maps:
        console = TextConsole(color=False, width=_WIDTH, ascii_only=False)
        console.print(pool_map(picture, ascii_only=False))
        yield f"## {picture.pool} pool by slot number"
        yield _code(console)
    yield "## Checks"
    yield _table(check_columns(dump))
    yield "## Facts"
    facts = facts_of(report, dump)
    yield _table([Column(header="fact", cells=[*facts], keep=1), Column(header="", cells=[*facts.values()], keep=1)])
    shown = dump.first_violations(limit)
    if shown:
        yield f"## Violations ({len(shown):,} of {len(dump.violations):,})"
        yield _table(violation_columns(shown))
    if dump.live.total:
        yield "## Live ring"
        yield live_line(dump)
    if lines := not_checked(dump):
        yield "## Not checked"
        yield _list(lines)


def _finding(finding: Finding, dump: DumpReport, slots: Sequence[SlotLine]) -> Iterator[str]:
    yield from _head(finding)
    strips, left_out = dump.pictures.strips_of(finding), len(dump.pictures.left_out_of(finding))
    if strips or left_out:
        console = TextConsole(color=False, width=_WIDTH, ascii_only=False)
        console.print(strips_table(strips, _WIDTH, ascii_only=False))
        console.print(strip_legend(strips, left_out=left_out, ascii_only=False))
        yield _code(console)
    if slots:
        yield _table(slot_columns(slots))
        if len(finding.slots) > len(slots):
            yield f"and {len(finding.slots) - len(slots):,} more slots"
    yield from _tail(finding)


def _head(finding: Finding) -> Iterator[str]:
    yield f"## {escape(finding.fault)} ({finding.severity}, {finding.confidence})"
    yield escape(finding.summary)


def _tail(finding: Finding) -> Iterator[str]:
    for title, texts in (("Evidence", finding.evidence), ("Next", finding.next_steps)):
        if texts:
            yield f"{title}:"
            yield _list(texts)
