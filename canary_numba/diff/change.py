"""One difference of two dumps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from canary_numba.diagnosis.chains import Int64s


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One kind of change.

    ``part``: what of the dump, such as ``TAIL_K_FULL`` or ``free list``. ``what``: what happened. ``explained``:
    whether a normal step does so. ``numbers``: slots, or positions where ``request`` is named; ``unit`` says which.
    """

    part: str
    what: str
    explained: bool
    request: str | None = None
    unit: str = "slot"
    numbers: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "part": self.part,
            "what": self.what,
            "explained": self.explained,
            "request": self.request,
            "unit": self.unit,
            "numbers": list(self.numbers),
        }


def numbers_of(numbers: Int64s | Sequence[int]) -> tuple[int, ...]:
    """Slots or positions as a :class:`Change` lists them."""
    return tuple(np.asarray(numbers, dtype=np.int64).tolist())
