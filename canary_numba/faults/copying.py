"""A dump of one's own, so that breaking it leaves the original whole."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import TypeVar

import torch

from canary_numba.dump.model import Dump, Source

_T = TypeVar("_T")


def copy_dump(dump: Dump) -> Dump:
    """Copy a dump and its tensors, but not K/V bytes: these may be mapped files, and few faults touch them."""
    return _copied(dump)


def _copied(value: _T) -> _T:
    found: object = value
    if isinstance(value, Source):
        return value
    if isinstance(value, torch.Tensor):
        found = value.clone(memory_format=torch.contiguous_format)
    elif is_dataclass(value) and not isinstance(value, type):
        found = replace(value, **{field.name: _copied(getattr(value, field.name)) for field in fields(value)})
    elif isinstance(value, tuple):
        found = tuple(_copied(item) for item in value)
    elif isinstance(value, dict):
        found = {key: _copied(item) for key, item in value.items()}
    return found  # type: ignore[return-value]
