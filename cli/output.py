"""Where a report goes: stdout, or a file that appears whole or not at all."""

from __future__ import annotations

import sys


def deliver(text: str, path: str | None, *, force: bool) -> None:
    """Print ``text``, or write it to ``path``.

    Raises
    ------
    DumpError
        The file exists and ``force`` is not set, or it cannot be written.
    """
    if path is None:
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    from canary_numba.dump.files import replacing

    with replacing(path, force=force) as file:
        file.write(text.encode())
