"""Tells what kind of file a path names, and writes files so that they are there whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, Literal

from canary_numba.errors import DumpError, DumpReadError


def file_kind(path: str) -> Literal["pt", "safetensors"]:
    """Tell from its first bytes which kind of dump a file is; its name plays no part.

    Raises
    ------
    DumpReadError
        There is no such file, it cannot be read, or it is neither kind.
    """
    head, size = _head(path)
    if size == 0:
        raise DumpReadError("the file is empty", path=path)
    if head.startswith(b"PK\3\4"):
        return "pt"
    if head[8:9] == b"{":
        return "safetensors"
    if head.startswith(b"\x80"):
        message = (
            "a bare pickle (or torch's format from before version 1.6), which could run code: not opened. "
            "Write it with torch.save, whose files are zip archives"
        )
    else:
        message = f"neither a .pt file of torch.save nor a safetensors file: it starts with {head[:8]!r}"
    raise DumpReadError(message, path=path)


def _head(path: str) -> tuple[bytes, int]:
    """Return the first bytes of a regular file, and its size; opening a pipe would wait for its writer."""
    try:
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            raise DumpReadError("is a directory", path=path)
        if not stat.S_ISREG(status.st_mode):
            raise DumpReadError("is not a regular file", path=path)
        with open(path, "rb") as file:
            return file.read(16), status.st_size
    except OSError as error:
        raise DumpReadError(f"cannot be read: {error.strerror}", path=path) from error
    except ValueError as error:
        raise DumpReadError(f"cannot be read: {error}", path=path) from error


@dataclass(slots=True)
class Counted:
    """Counts the bytes that pass through, and tells ``progress`` how many of ``total`` that were so far."""

    total: int
    progress: Callable[[int, int], None]
    done: int = 0

    def __call__(self, chunks: Iterable[memoryview]) -> Iterator[memoryview]:
        """Yield the chunks; each counts once whoever takes them has come back for the next."""
        for chunk in chunks:
            yield chunk
            self.done += len(chunk)
            self.progress(self.done, self.total)


@contextlib.contextmanager
def replacing(path: str, *, force: bool) -> Iterator[BinaryIO]:
    """Open a new file in the folder of ``path`` for writing; on success it takes that name, on failure it is removed.

    Raises
    ------
    DumpError
        ``path`` exists and ``force`` is not set, or the file system refuses.
    """
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.{secrets.token_hex(4)}")
    try:
        _refuse_existing(path, force=force)
        with open(temporary, "xb") as file:
            try:
                yield file
                file.flush()
                os.fsync(file.fileno())
                _refuse_existing(path, force=force)
                os.replace(temporary, path)
            except BaseException:
                os.unlink(temporary)
                raise
        _sync_folder(folder or ".")
    except OSError as error:
        raise DumpError(f"cannot be written: {error.strerror}", path=path) from error


def _refuse_existing(path: str, *, force: bool) -> None:
    if not force and os.path.lexists(path):
        raise DumpError("exists already; it is replaced only with force=True", path=path)


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
