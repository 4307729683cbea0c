"""Where a report goes: stdout, or a file that appears whole or not at all."""

from __future__ import annotations

import os
import sys

from canary_numba.errors import DumpError


def refuse_existing(path: str | None, *, force: bool) -> None:
    """Say that the output file exists before the work is done, not after it.

    Raises
    ------
    DumpError
        The file exists and ``force`` is not set.
    """
    if path is not None and not force and os.path.lexists(path):
        raise DumpError("exists already; --force replaces it", path=path)


def deliver(text: str, path: str | None, *, force: bool) -> None:
    """Print ``text``, or write it to ``path``.

    Raises
    ------
    DumpError
        The file exists and ``force`` is not set, or it cannot be written.
    """
    if path is None:
        _print(text)
        return
    from canary_numba.dump.files import replacing

    with replacing(path, force=force) as file:
        file.write(text.encode())


def _print(text: str) -> None:
    # Names come from the dump: one that the terminal's encoding lacks must not lose the report.
    encoding = sys.stdout.encoding or "utf-8"
    try:
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read the output has seen enough; Python would complain once more when it closes stdout. Caught here,
        # since click ends with 1 on it, which would call a clean dump corrupt.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
