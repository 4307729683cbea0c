"""A report for people: verdict first, then the facts, what was checked, what is wrong, what was not looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING

from canary_cli.render.columns import fitting_table, printable
from canary_cli.render.console import TextConsole
from canary_cli.render.findings import print_findings
from canary_cli.render.parts import (
    check_columns,
    facts_of,
    live_line,
    not_checked,
    violation_columns,
    what_was_checked,
)
from canary_cli.render.spanning import print_spanning
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from canary_numba.report import DumpReport, Report


def render(report: Report, max_violations: int, *, color: bool | None, width: int | None = None) -> str:
    """Render every dump of the report as text; ``color`` None means: as stdout can, and as NO_COLOR says."""
    console = TextConsole(color=color, width=width)
    print_report(console, report, max_violations)
    return console.text()


def print_report(console: TextConsole, report: Report, max_violations: int) -> None:
    """Print every dump of the report, then what spans several."""
    for i, dump in enumerate(report.dumps):
        if i:
            console.print()
        _print_dump(console, report, dump, max_violations)
    print_spanning(console, report.findings)


def _print_dump(console: TextConsole, report: Report, dump: DumpReport, limit: int) -> None:
    corrupt = dump.verdict == "corrupt"
    mark = ("x" if corrupt else "ok") if console.ascii_only else ("✗" if corrupt else "✓")
    style = "bold red" if corrupt else "bold green"
    console.print(Text.assemble((f"{mark} {dump.verdict.upper()}", style), f"  {printable(dump.path)}"), soft_wrap=True)
    console.print(Text(what_was_checked(dump)))
    print_findings(console, dump)
    if not corrupt:
        if dump.live.total:
            console.print(Text(live_line(dump)))
        for skip in not_checked(dump, brief=True):
            console.print(Text(skip, style="dim"))
        return
    console.section("Facts", _facts(report, dump))
    console.section("Checks", fitting_table(check_columns(dump), console.width - 2))
    shown = dump.first_violations(limit)
    if shown:
        title = f"Violations ({len(shown):,} of {len(dump.violations):,})"
        console.section(title, fitting_table(violation_columns(shown), console.width - 2))
    if dump.live.total:
        console.section("Live ring", Text(live_line(dump)))
    skipped = not_checked(dump)
    if skipped:
        console.section("Not checked", Text("\n".join(skipped)))
    console.section("Next", Text("\n".join(_next_steps(dump, len(shown)))))


def _facts(report: Report, dump: DumpReport) -> Table:
    grid = Table.grid(padding=(0, 2))
    for name, value in facts_of(report, dump).items():
        grid.add_row(Text(printable(name), style="cyan"), Text(printable(value)))
    return grid


def _next_steps(dump: DumpReport, shown: int) -> list[str]:
    steps = []
    if shown < len(dump.violations):
        steps.append("--max-violations 0 lists every violation")
    steps.append("--format json gives hashes and all owners of each slot to a script")
    return steps
