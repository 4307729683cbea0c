"""Findings that no single dump shows, such as ranks that disagree; printed after the dumps they span."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from canary_cli.render.columns import printable
from canary_cli.render.console import SEVERITY_STYLES, TextConsole
from rich.text import Text

if TYPE_CHECKING:
    from canary_numba.findings import Finding

_MAX_RUNS = 8


def print_spanning(console: TextConsole, findings: Sequence[Finding]) -> None:
    """Print each finding: what, who, how sure; the summary; where; why; what to do."""
    for finding in findings:
        console.print()
        mark = ("x " if console.ascii_only else "✗ ") if finding.severity == "corrupt" else ""
        who = ", ".join(finding.requests)
        title = Text.assemble(
            (f"{mark}{finding.severity.upper()}", SEVERITY_STYLES[finding.severity]),
            f"  across dumps: {finding.fault}{f' ({printable(who)})' if who else ''}, {finding.confidence}",
        )
        title.overflow = "fold"
        console.print(title)
        console.print(Text(printable(finding.summary), overflow="fold"))
        if finding.positions:
            lines = [f"{printable(name)}: {_ranges(places)}" for name, places in finding.positions.items()]
            console.section("Positions", Text("\n".join(lines), overflow="fold"))
        for name, texts in (("Evidence", finding.evidence), ("Next", finding.next_steps)):
            if texts:
                console.section(name, Text("\n".join(printable(text) for text in texts), overflow="fold"))


def verdict_lines(findings: Sequence[Finding]) -> str:
    """One line a finding, for who wants nothing else."""
    return "".join(
        f"{finding.severity.upper()} across dumps: {finding.fault} {printable(', '.join(finding.requests))}".rstrip()
        + "\n"
        for finding in findings
    )


def _ranges(places: Sequence[int]) -> str:
    """Positions as ranges: 50-74, 90."""
    runs: list[list[int]] = []
    for place in sorted(places):
        if runs and place == runs[-1][1] + 1:
            runs[-1][1] = place
        else:
            runs.append([place, place])
    shown = [str(first) if first == last else f"{first}-{last}" for first, last in runs[:_MAX_RUNS]]
    return ", ".join(shown) + (f" and {len(runs) - _MAX_RUNS:,} more runs" if len(runs) > _MAX_RUNS else "")
