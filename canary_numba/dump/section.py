"""One dict of a dump under inspection: takes keys out of it with the checks that the format names.

Every refusal is a :class:`~canary_numba.errors.DumpFormatError`: the dotted key, what was expected and what is there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch

from canary_numba.dump.dtypes import dtype_name
from canary_numba.dump.tensors import describe, flaw, nbytes, rows_are_separate
from canary_numba.errors import DumpFormatError

Dim = int | str | tuple[str, int]
"""A dimension a shape may have: exactly n, any length known by a name, or the length n known by a name."""

INT64_MAX: Final[int] = (1 << 63) - 1
MAX_LENGTH: Final[int] = (1 << 31) - 1
"""No token count, slot count or byte width of a slot is larger."""

MAX_TEXT: Final[int] = 4096
"""Characters of a name or a fact. A pickle can name one long string a million times; a report would repeat it."""

MAX_COPIED_BYTES: Final[int] = 1 << 28
"""Records and tables with gaps are copied into one piece, up to this size in all; beyond it a file must pack them."""

_REQUIRED: Final[Any] = object()


@dataclass(slots=True)
class Origin:
    """What all sections of one dump share: the file they come from (None = in memory), and what may still be copied."""

    path: str | None
    copy_budget: int = MAX_COPIED_BYTES


@dataclass(frozen=True, slots=True)
class Section:
    """A dict of the dump at dotted ``key`` ("" = the whole dump)."""

    mapping: dict[Any, Any]
    key: str
    origin: Origin

    @classmethod
    def of(cls, value: Any, key: str, origin: Origin) -> Section:
        """Open ``value`` as a dict.

        Raises
        ------
        DumpFormatError
            It is no dict.
        """
        if not isinstance(value, dict):
            raise DumpFormatError(key or "the dump", "a dict", describe(value), path=origin.path)
        return cls(value, key, origin)

    def at(self, name: str) -> str:
        """Return the dotted key of ``name`` in this dict."""
        return f"{self.key}.{name}" if self.key else name

    def error(self, name: str, expected: str, got: str) -> DumpFormatError:
        """Build the refusal of key ``name``."""
        return DumpFormatError(self.at(name), expected, got, path=self.origin.path)

    def has(self, name: str) -> bool:
        """Tell whether ``name`` is there and not None; for an optional key, None is as good as absent."""
        return self.mapping.get(name) is not None

    def _take(self, name: str, expected: str) -> Any:
        if name not in self.mapping:
            raise self.error(name, expected, "nothing: the key is missing")
        return self.mapping[name]

    def integer(self, name: str, *, least: int, most: int = MAX_LENGTH, default: int = _REQUIRED) -> int:
        """Take an int from ``least`` to ``most``; a bool is none."""
        if default is not _REQUIRED and not self.has(name):
            return default
        expected = f"int from {least} to {most}"
        value = self._take(name, expected)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self.error(name, expected, describe(value))
        return int(value)

    def text(self, name: str, *, default: str = _REQUIRED) -> str:
        """Take a str."""
        if default is not _REQUIRED and not self.has(name):
            return default
        value = self._take(name, "str")
        self.require_text(name, value)
        return str(value)

    def require_text(self, name: str, value: Any) -> None:
        """Check that ``value`` is a short str that can be printed: a lone surrogate would fail only there."""
        if type(value) is not str or len(value) > MAX_TEXT:
            raise self.error(name, f"str of at most {MAX_TEXT} characters", describe(value))
        try:
            value.encode()
        except UnicodeEncodeError:
            raise self.error(name, "str that UTF-8 can hold", describe(value)) from None

    def choice(self, name: str, options: Collection[str]) -> str:
        """Take one of ``options``."""
        expected = " or ".join(repr(option) for option in options)
        value = self._take(name, expected)
        if not isinstance(value, str) or value not in options:
            raise self.error(name, expected, describe(value))
        return value

    def items(
        self, name: str, *, count: int | None = None, most: int | None = None, default: bool = False
    ) -> list[Any]:
        """Take a list of ``count`` entries, or of at most ``most``; with ``default`` an absent one is empty."""
        if default and not self.has(name):
            return []
        expected = "list"
        if count is not None:
            expected = f"list of {count}"
        elif most is not None:
            expected = f"list of at most {most}"
        value = self._take(name, expected)
        if not isinstance(value, list):
            raise self.error(name, expected, describe(value))
        if (count is not None and len(value) != count) or (most is not None and len(value) > most):
            raise self.error(name, expected, describe(value))
        return value

    def texts(self, name: str, *, count: int | None = None) -> tuple[str, ...]:
        """Take a list of str."""
        values = self.items(name, count=count)
        for i, value in enumerate(values):
            self.require_text(f"{name}[{i}]", value)
        return tuple(values)

    def section(self, name: str) -> Section:
        """Open the dict under ``name``."""
        return Section.of(self._take(name, "a dict"), self.at(name), self.origin)

    def sections(self, name: str, *, most: int, default: bool = False) -> Iterator[Section]:
        """Open each dict of the list under ``name``."""
        for i, value in enumerate(self.items(name, most=most, default=default)):
            yield Section.of(value, self.at(f"{name}[{i}]"), self.origin)

    def tensor(self, name: str, dtype: torch.dtype | None, *dims: Dim, expected: str | None = None) -> torch.Tensor:
        """Take a plain tensor of ``dtype`` (None = any) and shape ``dims``, as it is stored."""
        wanted = expected or f"{'any dtype' if dtype is None else dtype_name(dtype)} [{', '.join(map(_show, dims))}]"
        value = self._take(name, wanted)
        if not isinstance(value, torch.Tensor):
            raise self.error(name, wanted, describe(value))
        unfit = flaw(value)
        if unfit is not None:
            raise self.error(name, wanted, unfit)
        lengths = [dim[1] if isinstance(dim, tuple) else dim for dim in dims]
        fits = value.ndim == len(lengths) and all(
            isinstance(want, str) or want == got for want, got in zip(lengths, value.shape, strict=True)
        )
        if not fits or (dtype is not None and value.dtype != dtype):
            raise self.error(name, wanted, describe(value))
        return value

    def packed(self, name: str, dtype: torch.dtype, *dims: Dim, expected: str | None = None) -> torch.Tensor:
        """Take a tensor in one piece; a small one with gaps is copied."""
        tensor = self.tensor(name, dtype, *dims, expected=expected)
        # Records are read as int64 words, whatever dtype they are stored under.
        return self._pack(name, tensor, alignment=8 if dtype == torch.uint8 else tensor.element_size())

    def rows(self, name: str, dtype: torch.dtype, *dims: Dim) -> torch.Tensor:
        """Take a 2-D table whose rows are contiguous; they may be further apart than they are wide."""
        tensor = self.tensor(name, dtype, *dims)
        if rows_are_separate(tensor) and tensor.data_ptr() % tensor.element_size() == 0:
            return tensor
        return self._pack(name, tensor, alignment=tensor.element_size())

    def _pack(self, name: str, tensor: torch.Tensor, *, alignment: int) -> torch.Tensor:
        if tensor.is_contiguous() and tensor.data_ptr() % alignment == 0:
            return tensor
        self.origin.copy_budget -= nbytes(tensor)
        if self.origin.copy_budget < 0:
            got = f"{describe(tensor)} with strides {list(tensor.stride())}, too large to copy"
            raise self.error(name, "a contiguous, aligned tensor", got)
        return tensor.clone(memory_format=torch.contiguous_format)

    def lengths(self, name: str, count: int) -> torch.Tensor:
        """Take int64 ``[bs]`` token counts: none negative, none beyond 2**31 - 1."""
        tensor = self.packed(name, torch.int64, ("bs", count))
        for wrong in (tensor < 0, tensor > MAX_LENGTH):
            if bool(wrong.any()):
                index = int(wrong.nonzero()[0])
                raise self.error(name, f"lengths from 0 to {MAX_LENGTH}", f"{int(tensor[index])} at index {index}")
        return tensor

    def indptr(self, name: str, *, count: int, total: int) -> torch.Tensor:
        """Take int64 ``[count + 1]`` range bounds into ``total`` entries: from 0 to ``total``, never decreasing."""
        tensor = self.packed(name, torch.int64, ("n+1", count + 1))
        expected = f"bounds from 0 to {total} that never decrease"
        outside = (tensor < 0) | (tensor > total)
        if bool(outside.any()):
            index = int(outside.nonzero()[0])
            raise self.error(name, expected, f"{int(tensor[index])} at index {index}")
        falls = tensor[1:] < tensor[:-1]
        if bool(falls.any()):
            index = int(falls.nonzero()[0])
            raise self.error(name, expected, f"{int(tensor[index])} before {int(tensor[index + 1])} at index {index}")
        return tensor


def _show(dim: Dim) -> str:
    return f"{dim[0]}={dim[1]}" if isinstance(dim, tuple) else str(dim)
