"""Loads the files named on the command line, one after the other, and prints what became of each as JSON lines.

Runs as a process of its own: a reader that crashes or exhausts memory must not take the tests along.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from canary_numba.dump import load_dump
from canary_numba.errors import DumpError


def resident_kib(field: str) -> int:
    """``VmRSS``: memory in use now. ``VmHWM``: its peak since the last reset."""
    found = re.search(rf"{field}:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1])


def main(paths: list[str]) -> None:
    for path in paths:
        # Importing torch alone peaks far above what it keeps, so the peak is reset before each file.
        Path("/proc/self/clear_refs").write_text("5")
        before = resident_kib("VmRSS")
        try:
            load_dump(path)
        except DumpError as error:
            outcome = {"error": type(error).__name__, "message": str(error)}
        else:
            outcome = {"error": None, "message": ""}
        print(json.dumps({**outcome, "grown_kib": resident_kib("VmHWM") - before}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
