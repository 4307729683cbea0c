"""Reads and writes ``.pt`` dumps: what ``torch.save`` writes, read memory-mapped and without running its pickle."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, BinaryIO, Final

import torch

from canary_numba.dump.archive import Member, read_members
from canary_numba.dump.pickle_values import PickleError
from canary_numba.dump.unpickle import unpickle
from canary_numba.errors import DumpReadError

MAX_PICKLE_BYTES: Final[int] = 1 << 24
"""Tensors are not in the pickle: 16 MiB is a dump of some twenty thousand events."""


def read(path: str) -> Any:
    """Read the nested dict of a ``.pt`` dump; its tensors stay on disk until they are looked at.

    The result is that of ``torch.load(path, mmap=True, weights_only=True)``, for dumps. torch's reader is not used:
    it chooses another one by the ending of the name, and it trusts the sizes that a file claims.

    Raises
    ------
    DumpReadError
        The file is truncated, damaged, or holds something a dump never needs.
    """
    try:
        with open(path, "rb") as file:
            members = read_members(file.fileno(), path)
            pickle = _content(file, members, "data.pkl", most=MAX_PICKLE_BYTES)
            order = _content(file, members, "byteorder", most=len("little")) if "byteorder" in members else b"little"
            size = os.fstat(file.fileno()).st_size
        if order != b"little":
            raise PickleError("its numbers are not little-endian, as records are by definition")
        mapped = torch.from_file(path, shared=False, size=size, dtype=torch.uint8)
        return unpickle(pickle, members, mapped.untyped_storage())
    except PickleError as error:
        raise DumpReadError(str(error), path=path) from None
    except (OSError, RuntimeError) as error:
        # torch maps the file, and says so in a RuntimeError when the system refuses.
        raise DumpReadError(f"cannot be mapped into memory: {str(error).partition(chr(10))[0]}", path=path) from error


def write(mapping: Mapping[str, Any], file: BinaryIO) -> None:
    """Write the nested dict of a dump (as :func:`~canary_numba.dump.encode` makes it) to an open file."""
    torch.save(mapping, file)


def _content(file: BinaryIO, members: Mapping[str, Member], name: str, *, most: int) -> bytes:
    member = members.get(name)
    if member is None:
        raise PickleError(f"a zip archive, but not one that torch.save wrote: it has no {name}")
    if member.size > most:
        raise PickleError(f"its zip member {name!r} has {member.size} bytes, more than the {most} that any dump needs")
    return os.pread(file.fileno(), member.size, member.start)
