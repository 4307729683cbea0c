"""Progress on stderr while bytes stream through; nothing where stderr is no terminal."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

_B = TypeVar("_B", bound="_Bars")


class _Bars:
    """Bars of bytes, with rate and time left. Used as a context manager."""

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

    def __enter__(self: _B) -> _B:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()


class HashingProgress(_Bars):
    """A bar for each half that is hashed."""

    def stage(self, name: str, total_bytes: int) -> None:
        """Begin a bar."""
        self._task = self._progress.add_task(f"K/V bytes of {name}", total=total_bytes)

    def advance(self, done_bytes: int) -> None:
        """Move the bar."""
        if self._task is not None:
            self._progress.advance(self._task, done_bytes)


class WritingProgress(_Bars):
    """One bar for a file that is written; called with the bytes written so far, and all there are to write."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def __call__(self, done_bytes: int, total_bytes: int) -> None:
        """Move the bar."""
        if self._task is None:
            self._task = self._progress.add_task(self._name, total=total_bytes)
        self._progress.update(self._task, completed=done_bytes)


class CountingProgress:
    """One bar for work that comes in pieces; called with the pieces done, and all there are."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
            # Not console.is_terminal, which FORCE_COLOR makes true of a pipe.
            disable=not sys.stderr.isatty(),
        )
        self._task: TaskID | None = None

    def __enter__(self) -> CountingProgress:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def __call__(self, done: int, total: int) -> None:
        """Move the bar."""
        if self._task is None:
            self._task = self._progress.add_task(self._name, total=total)
        self._progress.update(self._task, completed=done)
