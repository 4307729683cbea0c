"""The findings of one dump: what is broken, how sure that is, why, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from canary_cli.render.columns import printable
from canary_cli.render.console import SEVERITY_STYLES, TextConsole
from canary_cli.render.pictures import pool_map, slots_table, strip_legend, strips_table
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from canary_numba.findings import Finding, Pictures
    from canary_numba.report import DumpReport


def print_findings(console: TextConsole, dump: DumpReport) -> None:
    """Print each finding: what, where, the slots involved, why, what to do; then maps of the pools."""
    if not dump.findings:
        return
    console.print()
    console.print(Text("Findings" if len(dump.findings) > 1 else "Finding", style="bold"))
    drawn: set[tuple[str, str]] = set()
    for i, (finding, lines) in enumerate(dump.tables):
        if i:
            console.print()
        title = Text.assemble(
            (finding.severity.upper(), SEVERITY_STYLES[finding.severity]),
            ("  " + finding.fault, "bold"),
            f"  {finding.confidence}",
        )
        console.print(Padding(title, (0, 0, 0, 2), expand=False))
        console.print(_paragraph(finding.summary, 4))
        _print_strips(console, finding, dump.pictures, drawn)
        if lines:
            console.print(
                Padding(slots_table(lines, len(finding.slots), console.width - 4), (1, 0, 1, 4), expand=False)
            )
        for text in finding.evidence:
            console.print(_item("-", text))
        for text in finding.next_steps:
            console.print(_item(">", text))
    for picture in dump.pictures.pool_maps:
        heading = f"{picture.pool} pool by slot number"
        console.section(heading, pool_map(picture, ascii_only=console.ascii_only))


def _print_strips(console: TextConsole, finding: Finding, pictures: Pictures, drawn: set[tuple[str, str]]) -> None:
    """Strips of the finding's requests that no earlier finding has shown, or counted among those not drawn."""
    wanted = [strip for strip in pictures.strips_of(finding) if (strip.request, strip.pool) not in drawn]
    left_out = [one for one in pictures.left_out_of(finding) if one not in drawn]
    if not wanted and not left_out:
        return
    drawn.update([*((strip.request, strip.pool) for strip in wanted), *left_out])
    if wanted:
        table = strips_table(wanted, console.width - 4, ascii_only=console.ascii_only)
        console.print(Padding(table, (1, 0, 0, 4), expand=False))
    legend = strip_legend(wanted, left_out=len(left_out), ascii_only=console.ascii_only)
    console.print(Padding(legend, (0 if wanted else 1, 0, 0, 4), expand=False))


def _paragraph(text: str, indent: int) -> Padding:
    return Padding(Text(printable(text), overflow="fold"), (0, 0, 0, indent), expand=False)


def _item(mark: str, text: str) -> Padding:
    grid = Table.grid(padding=(0, 1))
    grid.add_row(Text(mark, style="dim"), Text(printable(text), overflow="fold"))
    return Padding(grid, (0, 0, 0, 4), expand=False)
