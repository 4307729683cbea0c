"""Finds the members of the zip archive that a ``.pt`` file is; takes only archives such as ``torch.save`` writes.

``torch.save`` stores every tensor as one uncompressed member, one after the other, so an honest file can never say that
it holds more than it is long. Everything else is refused here, having read only the directory at the file's end and the
header of each member: compressed members (a few kilobytes that unfold to gigabytes), members that overlap or reach past
the end, two of one name, a second directory that another zip reader would take instead.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from canary_numba.errors import DumpReadError

MAX_MEMBERS: Final[int] = 1 << 16
MAX_DIRECTORY_BYTES: Final[int] = 1 << 25

_END: Final = struct.Struct("<4s4H2LH")
_END64: Final = struct.Struct("<4sQ2H2L4Q")
_LOCATOR64: Final = struct.Struct("<4sLQL")
_ENTRY: Final = struct.Struct("<4s6H3L5H2L")
_LOCAL: Final = struct.Struct("<4s5H3L2H")
_UINT32_MAX: Final = (1 << 32) - 1
_ZIP64_EXTRA: Final = 1
_ENCRYPTED: Final = 1


@dataclass(frozen=True, slots=True)
class Member:
    """One file of the archive: ``size`` bytes from byte ``start`` of the archive on."""

    start: int
    size: int


def read_members(file: int, path: str) -> dict[str, Member]:
    """List the members of the open archive ``file`` (a descriptor), by their name without the leading folder.

    Raises
    ------
    DumpReadError
        The archive is truncated, or not built as ``torch.save`` builds one.
    """
    try:
        return _members(file, os.fstat(file).st_size)
    except struct.error:
        raise DumpReadError("damaged: its zip directory is cut short", path=path) from None
    except _Refused as refused:
        raise DumpReadError(str(refused), path=path) from None


class _Refused(Exception):
    pass


def _members(file: int, file_size: int) -> dict[str, Member]:
    start, size, count = _directory(file, file_size)
    if count > MAX_MEMBERS or size > MAX_DIRECTORY_BYTES:
        raise _Refused(f"its zip directory lists {count} members in {size} bytes, more than any dump needs")
    directory = os.pread(file, size, start)
    members: dict[str, Member] = {}
    folder: str | None = None
    end_of_previous = 0
    for name, offset, length in sorted(_entries(directory, count), key=lambda entry: entry[1]):
        member = _locate(file, name, offset, length)
        if offset < end_of_previous or member.start + length > start:
            raise _Refused(f"its zip member {name!r} overlaps another or reaches past the end")
        end_of_previous = member.start + length
        if folder is None:
            folder = name.partition("/")[0] + "/"
        # torch's reader looks members up regardless of case.
        short = name.removeprefix(folder)
        if not name.startswith(folder) or short.lower() in members:
            raise _Refused(f"its zip member {name!r} is a second of that name, or lies outside the folder {folder!r}")
        members[short.lower()] = member
    return members


def _directory(file: int, file_size: int) -> tuple[int, int, int]:
    """Return where the directory starts, its bytes, and its number of entries."""
    end_at = file_size - _END.size
    tail = os.pread(file, _END.size, end_at) if end_at >= 0 else b""
    if not tail.startswith(b"PK\5\6"):
        raise _Refused("truncated, or followed by other bytes: the zip directory is not at its end")
    _, disk, first_disk, count_here, count, size, start, comment = _END.unpack(tail)
    locator_at = end_at - _LOCATOR64.size
    locator = os.pread(file, _LOCATOR64.size, locator_at) if locator_at >= 0 else b""
    if locator.startswith(b"PK\6\7"):
        end_at = locator_at - _END64.size
        if _LOCATOR64.unpack(locator)[1:] != (0, end_at, 1):
            raise _Refused("damaged: its zip64 locator points elsewhere than to the record before it")
        record = _END64.unpack(os.pread(file, _END64.size, end_at))
        if record[0] != b"PK\6\6" or record[1] != _END64.size - 12:
            raise _Refused("damaged: its zip64 end record is not where it belongs")
        disk, first_disk, count_here, count, size, start = record[4:]
    if disk or first_disk or comment or count_here != count or start + size != end_at:
        raise _Refused("damaged: the end record of its zip archive contradicts the file's length")
    return start, size, count


def _entries(directory: bytes, count: int) -> Iterator[tuple[str, int, int]]:
    """Yield name, offset of the local header and size of each entry."""
    at = 0
    for _ in range(count):
        fields = _ENTRY.unpack_from(directory, at)
        flags, method, packed, size, name_bytes, extra_bytes, note_bytes = (fields[i] for i in (3, 4, 8, 9, 10, 11, 12))
        at += _ENTRY.size
        raw_name = directory[at : at + name_bytes]
        sizes = _wide(directory[at + name_bytes : at + name_bytes + extra_bytes], size, packed, fields[16])
        size, packed, offset = sizes
        at += name_bytes + extra_bytes + note_bytes
        name = raw_name.decode("utf-8", "replace")
        if fields[0] != b"PK\1\2" or at > len(directory):
            raise _Refused("damaged: its zip directory holds something else than entries")
        if flags & _ENCRYPTED or method or packed != size:
            raise _Refused(f"its zip member {name!r} is compressed or encrypted: torch.save writes neither")
        yield name, offset, size
    if at != len(directory):
        raise _Refused("damaged: its zip directory is longer than its entries")


def _wide(extra: bytes, *narrow: int) -> list[int]:
    """Replace the values that 32 bits cannot hold by those of the zip64 extra field."""
    wide: list[int] = []
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, at)
        if kind == _ZIP64_EXTRA:
            wide = [value for (value,) in struct.iter_unpack("<Q", extra[at + 4 : at + 4 + length // 8 * 8])]
            break
        at += 4 + length
    if sum(value == _UINT32_MAX for value in narrow) > len(wide):
        raise _Refused("damaged: a zip64 entry lacks its sizes")
    left = iter(wide)
    return [next(left) if value == _UINT32_MAX else value for value in narrow]


def _locate(file: int, name: str, offset: int, size: int) -> Member:
    # pread refuses offsets beyond a signed 64-bit integer with another exception.
    header = os.pread(file, _LOCAL.size + 512, offset) if offset <= 1 << 62 else b""
    fields = _LOCAL.unpack_from(header)
    name_bytes, extra_bytes = fields[9], fields[10]
    local_name = header[_LOCAL.size : _LOCAL.size + name_bytes].decode("utf-8", "replace")
    if fields[0] != b"PK\3\4" or fields[2] & _ENCRYPTED or fields[3] or local_name != name:
        raise _Refused(f"damaged: the header of its zip member {name!r} contradicts the directory")
    return Member(offset + _LOCAL.size + name_bytes + extra_bytes, size)
