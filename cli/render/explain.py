"""The catalog of faults as text: one fault in full, or all in a line each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from canary_cli.render.columns import Column, fitting_table
from canary_cli.render.console import SEVERITY_STYLES, TextConsole
from rich.text import Text

if TYPE_CHECKING:
    from canary_numba.diagnosis.catalog import Fault


def render_list(faults: Sequence[Fault], *, color: bool | None, width: int | None = None) -> str:
    """All faults, with severity and summary."""
    console = TextConsole(color=color, width=width)
    console.print(
        fitting_table(
            [
                Column(header="fault", cells=[fault.name for fault in faults], keep=9),
                Column(header="severity", cells=[fault.severity for fault in faults], keep=8),
                Column(header="what it is", cells=[fault.summary for fault in faults], keep=7, wrap=True),
            ],
            console.width,
        )
    )
    console.print()
    console.print(Text("canary-check explain FAULT tells how a dump shows it and what to do."))
    return console.text()


def render_fault(fault: Fault, *, color: bool | None, width: int | None = None) -> str:
    """One fault in full."""
    console = TextConsole(color=color, width=width)
    console.print(Text.assemble((fault.name, "bold"), "  ", (fault.severity, SEVERITY_STYLES[fault.severity])))
    console.print(Text(fault.summary))
    console.section("How a dump shows it", Text(fault.signature))
    if fault.mistaken_for:
        console.section("What else it could be", Text("\n".join(fault.mistaken_for)))
    console.section("What to do", Text("\n".join(fault.next_steps)))
    console.section("What a dump needs for it", Text("\n".join(fault.keys)))
    return console.text()
