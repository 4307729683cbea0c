"""Strips of positions, tables of slots and maps of pools, in characters that a pipe without colours shows as well."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from canary_cli.render.columns import fitting_table, printable
from canary_cli.render.parts import slot_columns
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from canary_numba.findings import PoolMap, SlotLine, Strip

# By state, mildest first: a mark, the same in ASCII, a style.
STRIP_MARKS = {
    "sound": ("─", "-", "green"),
    "unchecked": ("·", ".", "dim"),
    "latent": ("░", "l", "yellow"),
    "echo": ("▒", "e", "magenta"),
    "root": ("█", "#", "bold red"),
}
POOL_MARKS = {
    "nobody": (" ", " ", ""),
    "free": ("·", ".", "dim"),
    "cached": ("▁", "c", "cyan"),
    "owned": ("─", "-", "green"),
    "failing": ("▒", "e", "magenta"),
    "damaged": ("█", "#", "bold red"),
}
_NAME_WIDTH = 16
_MAP_WIDTH = 64


def strips_table(strips: Sequence[Strip], width: int, *, ascii_only: bool) -> Table:
    """One line a request: its name, a bar of its positions, its length."""
    grid = Table.grid(padding=(0, 2))
    for strip in strips:
        name = _short(strip.request) + (f" {strip.pool}" if strip.pool != "FULL" else "")
        cells = max(8, width - _NAME_WIDTH - 20)
        grid.add_row(Text(name, style="cyan"), _bar(strip, cells, ascii_only), Text(f"{strip.length:,}", style="dim"))
    return grid


def strip_legend(strips: Sequence[Strip], *, left_out: int, ascii_only: bool) -> Text:
    """How many requests of the finding have no strip here, and what the marks that occur mean."""
    text = Text()
    if left_out:
        noun = "request" if left_out == 1 else "requests"
        text.append(f"... and {left_out:,} more {noun}\n" if strips else f"{left_out:,} {noun}, not drawn", "dim")
    there = {state for strip in strips for state, _, _ in strip.runs}
    return text.append_text(_legend({state: mark for state, mark in STRIP_MARKS.items() if state in there}, ascii_only))


def _bar(strip: Strip, most: int, ascii_only: bool) -> Text:
    order = list(STRIP_MARKS)
    cells = min(most, strip.length)
    worst = [0] * cells
    covered = [False] * cells
    for state, first, last in strip.runs:
        rank = order.index(state)
        for cell in range(first * cells // strip.length, last * cells // strip.length + 1):
            worst[cell] = max(worst[cell], rank)
            covered[cell] = True
    text = Text()
    for cell, rank in enumerate(worst):
        mark, plain, style = STRIP_MARKS[order[rank]]
        text.append((plain if ascii_only else mark) if covered[cell] else " ", style)
    return text


def slots_table(lines: Sequence[SlotLine], total: int, width: int) -> Table:
    """What belongs into each slot of a finding and what stands there."""
    table = fitting_table(slot_columns(lines), width)
    if total > len(lines):
        table.caption = f"and {total - len(lines):,} more slots"
        table.caption_justify = "left"
    return table


def pool_map(picture: PoolMap, *, ascii_only: bool) -> Text:
    """The pool in rows of cells, each row under the number of its first slot."""
    marks = list(POOL_MARKS.values())
    text = Text()
    digits = len(f"{picture.num_slots:,}")
    for begin in range(0, len(picture.cells), _MAP_WIDTH):
        text.append(f"{begin * picture.slots_per_cell:>{digits},}  ", "dim")
        for state in picture.cells[begin : begin + _MAP_WIDTH]:
            mark, plain, style = marks[state]
            text.append(plain if ascii_only else mark, style)
        text.append("\n")
    there = {list(POOL_MARKS)[state] for state in picture.cells}
    text.append_text(_legend({state: mark for state, mark in POOL_MARKS.items() if state in there}, ascii_only))
    if picture.slots_per_cell > 1:
        text.append(f"; {picture.slots_per_cell:,} slots a mark, the worst of them shown", "dim")
    return text


def _legend(marks: dict[str, tuple[str, str, str]], ascii_only: bool) -> Text:
    text = Text()
    for i, (state, (mark, plain, style)) in enumerate((s, m) for s, m in marks.items() if m[0] != " "):
        if i:
            text.append("  ")
        text.append(plain if ascii_only else mark, style)
        text.append(f" {state}", "dim")
    return text


def _short(name: str) -> str:
    shown = printable(name)
    if cell_len(shown) <= _NAME_WIDTH:
        return shown
    return "".join(_until(shown, _NAME_WIDTH - 3)) + "..."


def _until(text: str, width: int) -> Iterator[str]:
    for character in text:
        width -= cell_len(character)
        if width < 0:
            return
        yield character
