"""A console that writes into a string: colours as stdout can take them, none in a pipe, no trailing blanks.

With ``color`` True it also records what is printed, for pictures of a report.
"""

from __future__ import annotations

import io
import shutil
import sys

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.text import Text

SEVERITY_STYLES = {"corrupt": "bold red", "latent": "bold yellow", "note": "bold cyan"}


class TextConsole(Console):
    """Collects what is printed; ``color`` None means: as stdout can, and as NO_COLOR says."""

    def __init__(self, *, color: bool | None, width: int | None = None, ascii_only: bool | None = None) -> None:
        terminal = color is True or (sys.stdout.isatty() and color is not False)
        super().__init__(
            file=io.StringIO(),
            width=width or shutil.get_terminal_size((80, 24)).columns,
            force_terminal=terminal,
            no_color=None if color is None else not color,
            color_system="truecolor" if color is True else "auto",
            record=color is True,
            highlight=False,
        )
        if ascii_only is None:
            ascii_only = not (sys.stdout.encoding or "ascii").lower().startswith("utf")
        self.ascii_only = ascii_only

    def section(self, title: str, body: RenderableType) -> None:
        """Print an indented part under its title."""
        self.print()
        self.print(Text(title, style="bold"))
        self.print(Padding(body, (0, 0, 0, 2), expand=False))

    def text(self) -> str:
        """Return everything printed so far."""
        assert isinstance(self.file, io.StringIO)
        text = "".join(line.rstrip() + "\n" for line in self.file.getvalue().splitlines())
        return text.replace("─", "-") if self.ascii_only else text
