"""Canary dumps: one rank's KV-cache bookkeeping at one moment, read, validated and written.

Where to look:

==========================  ============================================================================================
``model``                   the dump in memory: frozen dataclasses
``validate``                nested dict -> Dump (``decode``): which keys there are, and what each must be
``groups``, ``requests``    the same for record buffers and K/V sources, and for tables and lengths
``section``, ``tensors``    the checks they are made of, and how a refusal is worded
``encode``                  Dump -> nested dict
``pt``                      ``.pt`` files
``archive``                 where the members of their zip archive lie
``unpickle``                what their pickle holds; by ``pickle_machine`` and ``pickle_values``
``pickle_write``            their pickle, made
``safetensors``             safetensors files
``dtypes``                  the dtypes a tensor may have, by their names in torch, in pickles and in safetensors
``files``                   which kind of file a path names; atomic writing
``pages``                   lets go of the pages of a mapped file, so that memory stays bounded
``info``                    what is inside a dump, in numbers
==========================  ============================================================================================

Reading runs no code from a file, keeps K/V bytes on disk, and ends in a :class:`~canary_numba.errors.DumpError` for
everything that is not a sound dump. docs/dump-format.md describes the format.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO, Final

from canary_numba.dump import pt, safetensors
from canary_numba.dump.encode import encode
from canary_numba.dump.files import file_kind, replacing
from canary_numba.dump.model import (
    Allocator,
    Counters,
    Dump,
    Event,
    Finished,
    Group,
    Half,
    KvIndices,
    LiveLog,
    Radix,
    Requests,
    Source,
)
from canary_numba.dump.validate import decode
from canary_numba.errors import ArgumentError, DumpError, DumpFormatError

__all__ = [
    "Allocator",
    "Counters",
    "Dump",
    "Event",
    "Finished",
    "Group",
    "Half",
    "KvIndices",
    "LiveLog",
    "Radix",
    "Requests",
    "Source",
    "decode",
    "encode",
    "load_dump",
    "save_dump",
]

Progress = Callable[[int, int], None]
"""Told the bytes written so far, and all there are to write."""

_READERS: Final[dict[str, Callable[[str], Any]]] = {"pt": pt.read, "safetensors": safetensors.read}
_WRITERS: Final[dict[str, Callable[[Mapping[str, Any], BinaryIO, Progress], None]]] = {
    ".pt": pt.write,
    ".safetensors": safetensors.write,
}


def load_dump(path: str | os.PathLike[str]) -> Dump:
    """Read a dump; what kind of file it is shows in its content, not in its name.

    Parameters
    ----------
    path
        A ``.pt`` or safetensors file. It must not be changed in place while the dump is in use: K/V bytes are read from
        it when they are needed. (Replacing it, as :func:`save_dump` does, is fine.)

    Returns
    -------
    Dump
        Its tensors are on the CPU and memory-mapped.

    Raises
    ------
    DumpReadError
        The file is missing, truncated, damaged, not a dump, or hostile. Nothing in it was executed.
    DumpVersionError
        It was written in a format version this reader does not know.
    DumpFormatError
        A key is missing or has a wrong type, dtype, shape or length; names the key.
    """
    name = os.fspath(path)
    return decode(_READERS[file_kind(name)](name), name)


def save_dump(
    dump: Dump, path: str | os.PathLike[str], *, force: bool = False, progress: Progress | None = None
) -> None:
    """Write a dump, whole or not at all; what was written has been read back once.

    Parameters
    ----------
    dump
        The dump. Its tensors are on the CPU.
    path
        Where to; ends in ``.pt`` or ``.safetensors``.
    force
        Replace a file of that name.
    progress
        Called with the bytes written so far and all there are to write, after each chunk.

    Raises
    ------
    ArgumentError
        ``path`` has another ending.
    DumpFormatError
        The dump is not one that :func:`load_dump` would take.
    DumpError
        The file exists and ``force`` is not set, or it cannot be written.
    """
    name = os.fspath(path)
    write = _WRITERS.get(os.path.splitext(name)[1])
    if write is None:
        raise ArgumentError(f"path: expected a name that ends in {' or '.join(_WRITERS)}, got {name!r}")
    mapping = encode(dump)
    decode(mapping)
    with replacing(name, force=force) as file:
        try:
            write(mapping, file, progress or _ignore)
            file.flush()
            load_dump(file.name)
        except DumpFormatError:
            raise
        except (RuntimeError, DumpError) as error:
            reason = str(error).removeprefix(f"{file.name}: ")
            raise DumpError(f"cannot be written: {reason}", path=name) from error


def _ignore(done: int, total: int) -> None:
    """Take no notice."""
