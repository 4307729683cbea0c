"""Progress on stderr while K/V bytes stream through; nothing where stderr is no terminal."""

from __future__ import annotations

import sys
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)


class HashingProgress:
    """A bar for each half that is hashed: bytes, rate and time left. Used as a context manager."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            # Not console.is_terminal, which FORCE_COLOR makes true of a pipe.
            disable=not sys.stderr.isatty(),
        )
        self._task: TaskID | None = None

    def __enter__(self) -> HashingProgress:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def stage(self, name: str, total_bytes: int) -> None:
        """Begin a bar."""
        self._task = self._progress.add_task(f"K/V bytes of {name}", total=total_bytes)

    def advance(self, done_bytes: int) -> None:
        """Move the bar."""
        if self._task is not None:
            self._progress.advance(self._task, done_bytes)
