"""A folder that takes a few dumps and no more."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable

from canary_numba.dump import save_dump
from canary_numba.dump.model import Dump
from canary_numba.errors import ArgumentError

logger = logging.getLogger("canary_numba.capture")

PREFIX = "canary-"
SUFFIX = ".pt"


class DumpFolder:
    """Where a guard puts its dumps: the first ``keep`` stay, later ones are not written.

    The first dump after a fault is the nearest to its cause, so it is never displaced; moving files away makes room.
    Files of earlier processes count, so that a server that restarts again and again fills no disk.

    Parameters
    ----------
    directory
        Made if it is not there.
    keep
        Dumps it may hold.

    Raises
    ------
    ArgumentError
        ``keep`` is less than 1, or the folder cannot be made.
    """

    def __init__(self, directory: str | os.PathLike[str], *, keep: int = 3) -> None:
        if keep < 1:
            raise ArgumentError(f"keep: expected >= 1, got {keep}")
        self.directory, self.keep = os.fspath(directory), keep
        try:
            os.makedirs(self.directory, exist_ok=True)
        except OSError as error:
            raise ArgumentError(f"directory: {self.directory!r} cannot be made: {error.strerror}") from error

    def is_full(self) -> bool:
        """Tell whether it holds as many dumps as it may."""
        names = os.listdir(self.directory)
        return sum(name.startswith(PREFIX) and name.endswith(SUFFIX) for name in names) >= self.keep

    def next_path(self) -> str:
        """Return a name that no dump has yet: time, process, and a number."""
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        number = 0
        while True:
            path = os.path.join(self.directory, f"{PREFIX}{stamp}-{os.getpid()}-{number}{SUFFIX}")
            if not os.path.lexists(path):
                return path
            number += 1

    def save(self, take: Callable[[], Dump]) -> str | None:
        """Take a dump and write it, whole or not at all; None, with a line in the log, when the folder is full.

        Raises
        ------
        DumpError
            It cannot be written.
        """
        if self.is_full():
            logger.warning("no canary dump: %s holds %d already", self.directory, self.keep)
            return None
        path = self.next_path()
        save_dump(take(), path)
        logger.warning("canary dump: %s", path)
        return path
