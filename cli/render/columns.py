"""Tables that fit: a column is dropped whole before a number is cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich import box
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text


def printable(text: str) -> str:
    """Show control characters as escapes: names come from the dump, and must not steer the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column: ``keep`` ranks it, the lowest is dropped first; ``wrap`` lets its cells break instead.

    ``fold``: cells wider than this may break anywhere; for names, which a dump makes as long as it likes.
    """

    header: str
    cells: Sequence[str]
    keep: int
    right: bool = False
    wrap: bool = False
    fold: int | None = None
    style: str = ""

    @property
    def width(self) -> int:
        """Cells it needs to stand uncut; a wrapping one needs its longest word."""
        texts = [self.header, *(printable(cell) for cell in self.cells)]
        if self.wrap:
            texts = [word for text in texts for word in text.split(" ")]
        widest = max(cell_len(text) for text in texts)
        return widest if self.fold is None else min(widest, self.fold)


def fitting_table(columns: Sequence[Column], width: int) -> Table:
    """Lay out as many columns as fit ``width`` cells, in the order given."""
    kept = list(columns)
    while len(kept) > 1 and sum(column.width + 3 for column in kept) > width:
        kept.remove(min(kept, key=lambda column: column.keep))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), show_edge=False)
    for column in kept:
        justify: Literal["left", "right"] = "right" if column.right else "left"
        table.add_column(
            column.header,
            justify=justify,
            no_wrap=not column.wrap and column.fold is None,
            overflow="ellipsis" if column.fold is None else "fold",
            style=column.style,
        )
    for cells in zip(*(column.cells for column in kept), strict=True):
        table.add_row(*(Text(printable(cell)) for cell in cells))
    return table
