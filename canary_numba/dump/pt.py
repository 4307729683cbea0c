"""Reads and writes ``.pt`` dumps: what ``torch.save`` writes, read memory-mapped and without running its pickle.

Writing streams, where ``torch.save`` maps a whole storage at a time and makes another error of an interruption.
"""

from __future__ import annotations

import os
import struct
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, BinaryIO, Final

import torch

from canary_numba.dump.archive import Member, read_members
from canary_numba.dump.files import Counted
from canary_numba.dump.pages import forget
from canary_numba.dump.pickle_values import PickleError
from canary_numba.dump.pickle_write import pickle_dump
from canary_numba.dump.unpickle import unpickle
from canary_numba.errors import DumpReadError

MAX_PICKLE_BYTES: Final[int] = 1 << 24
"""Tensors are not in the pickle: 16 MiB is a dump of some twenty thousand events."""

CHUNK_BYTES: Final[int] = 1 << 26

_FOLDER: Final = "archive"
_ALIGNMENT: Final = 64
_LOCAL_HEADER_BYTES: Final = 30
_ZIP64_FIELD_BYTES: Final = 20
_EXTRA_HEADER: Final = struct.Struct("<2H")
_PADDING_FIELD: Final = int.from_bytes(b"FB", "little")


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


def write(mapping: Mapping[str, Any], file: BinaryIO, progress: Callable[[int, int], None]) -> None:
    """Write the nested dict of a dump (as :func:`~canary_numba.dump.encode` makes it) to an open file.

    ``torch.load`` reads it. No more than one chunk of a storage is in memory at a time. ``progress`` is told the bytes
    written and all there are to write.
    """
    pickle, storages = pickle_dump(mapping)
    written = Counted(sum(storage.nbytes() for storage in storages), progress)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        _add(archive, "data.pkl", len(pickle), [pickle])
        _add(archive, "byteorder", 6, [b"little"])
        for number, storage in enumerate(storages):
            _add(archive, f"data/{number}", storage.nbytes(), written(_chunks(storage)))
        _add(archive, "version", 2, [b"3\n"])


def _add(archive: zipfile.ZipFile, name: str, size: int, chunks: Iterable[bytes | memoryview]) -> None:
    # The data of a member start at a multiple of 64, as in torch's files; a field that readers skip fills the gap.
    info = zipfile.ZipInfo(f"{_FOLDER}/{name}")
    assert archive.fp is not None
    wide = size >= zipfile.ZIP64_LIMIT
    before = archive.fp.tell() + _LOCAL_HEADER_BYTES + len(info.filename) + (_ZIP64_FIELD_BYTES if wide else 0)
    padding = -(before + _EXTRA_HEADER.size) % _ALIGNMENT
    info.extra = _EXTRA_HEADER.pack(_PADDING_FIELD, padding) + bytes(padding)
    with archive.open(info, "w", force_zip64=wide) as member:
        for chunk in chunks:
            member.write(chunk)


def _chunks(storage: torch.UntypedStorage) -> Iterator[memoryview]:
    whole = torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),))  # type: ignore[call-overload]
    for chunk in torch.split(whole, CHUNK_BYTES):
        yield chunk.numpy().data
        forget(chunk.data_ptr(), chunk.shape[0])


def _content(file: BinaryIO, members: Mapping[str, Member], name: str, *, most: int) -> bytes:
    member = members.get(name)
    if member is None:
        raise PickleError(f"a zip archive, but not one that torch.save wrote: it has no {name}")
    if member.size > most:
        raise PickleError(f"its zip member {name!r} has {member.size} bytes, more than the {most} that any dump needs")
    return os.pread(file.fileno(), member.size, member.start)
