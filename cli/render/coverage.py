"""The coverage table of ``canary-check selftest``, for a terminal and as markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from canary_cli.render.columns import Column, fitting_table
from canary_cli.render.console import TextConsole
from rich.text import Text

if TYPE_CHECKING:
    from canary_numba.faults.coverage import Cell, Coverage

_LEGEND = (
    "named    the fault, its requests, and its positions or slots",
    "seen     violations or findings, but not that name in that place",
    "MISS     nothing was found, though such a dump can show the fault",
    "blind    nothing was found in some, since such a dump cannot show it",
    "2/3      named in two of three injections, seen or missed in the others",
    "-        such a dump has no place for the fault",
)
_SHORT = {"none": "none", "partial": "part", "all": "all"}


def table(coverage: Coverage, *, color: bool | None, width: int | None = None) -> str:
    """As a table of at most 80 columns, with its legend."""
    console = TextConsole(color=color, width=width)
    columns = [Column(header="fault", cells=list(coverage.cells), keep=100)]
    for rank, (mode, tokens) in enumerate(_columns(coverage)):
        cells = [_text(row[mode, tokens]) for row in coverage.cells.values()]
        columns.append(Column(header=_SHORT[mode] + ("+" if tokens else ""), cells=cells, keep=50 - rank))
    console.print(fitting_table(columns, console.width))
    console.print()
    console.print(Text("Columns: hash mode, + where the requests' tokens are known."))
    for line in _LEGEND:
        console.print(Text(line))
    return console.text()


def markdown(coverage: Coverage) -> str:
    """As a page of documentation."""
    columns = _columns(coverage)
    heads = [f"{mode}, {'tokens' if tokens else 'no tokens'}" for mode, tokens in columns]
    lines = [
        "# What the diagnosis names",
        "",
        f"Made by `canary-check selftest --seeds {coverage.seeds} --format markdown`: every fault, injected into dumps",
        "of simulated servers, by the dump's hash mode and by whether it says which tokens the requests have.",
        "",
        "| fault | " + " | ".join(heads) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    lines += [
        f"| `{fault}` | " + " | ".join(_text(row[column]) for column in columns) + " |"
        for fault, row in coverage.cells.items()
    ]
    lines += ["", *(f"- `{name}`: {meaning}" for name, _, meaning in (line.partition("  ") for line in _LEGEND))]
    return "\n".join(" ".join(line.split()) if line.startswith("- ") else line for line in lines) + "\n"


def _columns(coverage: Coverage) -> list[tuple[str, bool]]:
    return list(next(iter(coverage.cells.values())))


def _text(cell: Cell) -> str:
    if not cell.tried:
        return "-"
    if cell.named == cell.tried:
        return "named"
    if cell.named:
        return f"{cell.named}/{cell.tried}"
    if cell.missed and not cell.signature:
        return "blind"
    return "MISS" if cell.missed else "seen"
