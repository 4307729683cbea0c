"""Streams a mapped file through bounded memory: fetches pages ahead, and hands back those that were read.

Pages of a mapped file count as this process's memory until the system wants them back, so reading a 100 GB dump would
look like 100 GB of use. They stay in the page cache; only this process lets go of them.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
from collections.abc import Callable
from typing import BinaryIO, Final

import numpy as np

MIN_BYTES: Final[int] = 1 << 20
"""Smaller pieces are not worth the system calls."""

# Documentation/admin-guide/mm/pagemap.rst of Linux: a word a page.
_PRESENT: Final = np.uint64(1 << 63)
_SWAPPED: Final = np.uint64(1 << 62)
_FILE_OR_SHARED: Final = np.uint64(1 << 61)
_WORD_BYTES: Final = 8


def forget(address: int, nbytes: int) -> None:
    """Hand back the pages of ``nbytes`` bytes from ``address`` on, if nothing but a file's content is in them.

    They are read from the file again when they are touched. Memory that is not a mapped file, and pages of one that
    were written to, stay as they are: the system is asked first what they are. Does nothing where it cannot be asked.
    """
    start = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    length = (address + nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - start
    if length < MIN_BYTES:
        return
    advise = _madvise()
    if advise is not None and _all_clean(start, length):
        advise(start, length, mmap.MADV_DONTNEED)


def fetch(address: int, nbytes: int) -> None:
    """Have the system read ``nbytes`` bytes of a mapped file from ``address`` on, without waiting for them."""
    start = address // mmap.PAGESIZE * mmap.PAGESIZE
    advise = _madvise()
    if advise is not None and nbytes >= MIN_BYTES:
        advise(start, address + nbytes - start, mmap.MADV_WILLNEED)


def _all_clean(start: int, length: int) -> bool:
    pages = length // mmap.PAGESIZE
    with contextlib.suppress(OSError), _pagemap() as file:
        file.seek(start // mmap.PAGESIZE * _WORD_BYTES)
        words = np.frombuffer(file.read(pages * _WORD_BYTES), dtype=np.uint64)
        own = ((words & _SWAPPED) != 0) | (((words & _PRESENT) != 0) & ((words & _FILE_OR_SHARED) == 0))
        return words.shape[0] == pages and not own.any()
    return False


def _pagemap() -> BinaryIO:
    return open("/proc/self/pagemap", "rb", buffering=0)


@functools.cache
def _madvise() -> Callable[[int, int, int], int] | None:
    if not hasattr(mmap, "MADV_DONTNEED"):
        return None
    try:
        function = ctypes.CDLL(None, use_errno=True).madvise
    except (OSError, AttributeError):
        return None
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    function.restype = ctypes.c_int
    return function
