"""What the paths on a command line stand for: files, folders of dumps, and patterns that no shell has expanded."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable
from typing import Final

DUMP_ENDINGS: Final = (".pt", ".safetensors")


def find_dumps(paths: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the dumps that ``paths`` stand for, in order, and a complaint about each path that stands for none.

    A folder stands for the ``.pt`` and ``.safetensors`` files in it, by name, folders in it left out. A pattern
    (``*``, ``?``, ``[]``) stands for everything that fits it, unless there is a file of just that name. Whether a file
    that was named is a dump, or there at all, is for its reader to say.
    """
    found: list[str] = []
    complaints: list[str] = []
    for path in paths:
        matches = [path]
        if glob.has_magic(path) and not os.path.lexists(path):
            matches = sorted(glob.glob(path))
            if not matches:
                complaints.append(f"{path}: nothing fits this pattern")
        for match in matches:
            if not os.path.isdir(match):
                found.append(match)
                continue
            inside = _dumps_in(match)
            if isinstance(inside, str):
                complaints.append(f"{match}: {inside}")
            else:
                found += inside
    return found, complaints


def _dumps_in(folder: str) -> list[str] | str:
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(DUMP_ENDINGS))
    except OSError as error:
        return f"this directory cannot be read: {error.strerror}"
    inside = [os.path.join(folder, name) for name in names]
    inside = [path for path in inside if not os.path.isdir(path)]
    return inside or f"a directory without dumps ({', '.join(f'*{ending}' for ending in DUMP_ENDINGS)})"
