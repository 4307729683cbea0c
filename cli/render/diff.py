"""What changed between two dumps, as text: unexplained changes first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from canary_cli.render.columns import Column, fitting_table, printable
from canary_cli.render.console import TextConsole
from canary_cli.render.show import in_order
from rich.text import Text

if TYPE_CHECKING:
    from canary_numba.diff import Change, DumpDiff


def render(diff: DumpDiff, before: str, after: str, *, color: bool | None, width: int | None = None) -> str:
    """Render the differences of two files."""
    console = TextConsole(color=color, width=width)
    mark = ("EXPLAINED", "UNEXPLAINED") if console.ascii_only else ("✓ EXPLAINED", "✗ UNEXPLAINED")
    style = "bold green" if diff.explained else "bold red"
    console.print(Text.assemble((mark[not diff.explained], style), f"  {printable(before)} to {printable(after)}"))
    if not diff.changes:
        console.print(Text("nothing changed"))
    for title, explained in (("Not what a step does", False), ("What a step does", True)):
        chosen = [change for change in diff.changes if change.explained == explained]
        if chosen:
            console.section(title, fitting_table(_columns(chosen), console.width - 2))
    if diff.not_compared:
        console.section("Not compared: missing in one, or without hashes", Text(", ".join(diff.not_compared)))
    return console.text()


def _columns(changes: list[Change]) -> list[Column]:
    whats = [f"{one.request}: {one.what}" if one.request else one.what for one in changes]
    return [
        Column(header="part", cells=[one.part for one in changes], keep=9, wrap=True),
        Column(header="what", cells=whats, keep=9, wrap=True, fold=34),
        Column(header="count", cells=[f"{len(one.numbers):,}" if one.numbers else "-" for one in changes], keep=8),
        Column(header="slots or positions", cells=[in_order(one.numbers) for one in changes], keep=7, wrap=True),
    ]
