"""What the pickle machine makes instead of tensors, storages and foreign objects: descriptions of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch

from canary_numba.dump.dtypes import DTYPE_OF_NAME, DTYPE_OF_STORAGE_CLASS

MAX_DIMS: Final[int] = 8
MAX_KEY_CHARACTERS: Final[int] = 20
"""torch numbers its storages."""


class PickleError(Exception):
    """The pickle does what no dump needs, or is no pickle."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """Something a dump never holds: the class or function ``name``, or what it would have made."""

    name: str


@dataclass(frozen=True, slots=True)
class StorageRef:
    """A storage: member ``data/<key>`` of the archive, of which the pickle says that it has ``nbytes`` bytes."""

    key: str
    dtype: torch.dtype
    nbytes: int


@dataclass(frozen=True, slots=True)
class TensorRef:
    """A tensor: a view of a storage, counted in elements of ``dtype``."""

    storage: StorageRef
    dtype: torch.dtype
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Known:
    """A global that the machine understands: ``role`` says what for, ``dtype`` of which elements."""

    role: str
    dtype: torch.dtype | None = None


KNOWN: Final[dict[tuple[str, str], Known]] = {
    ("collections", "OrderedDict"): Known("dict"),
    ("torch._utils", "_rebuild_tensor_v2"): Known("tensor"),
    ("torch._utils", "_rebuild_tensor_v3"): Known("tensor of dtype"),
    ("torch.storage", "UntypedStorage"): Known("storage", torch.uint8),
    **{("torch", name): Known("storage", dtype) for name, dtype in DTYPE_OF_STORAGE_CLASS.items()},
    **{("torch", name): Known("dtype", dtype) for name, dtype in DTYPE_OF_NAME.items()},
}
"""Every global that a dump's pickle may name, by module and name."""


def storage_of(description: Any) -> StorageRef:
    """Read the tuple by which a pickle refers to a storage: ("storage", class, key, device, number of elements)."""
    kind, cls, key, device, count = _exactly(description, 5)
    dtype = _dtype(cls, "storage")
    if (
        kind != "storage"
        or dtype is None
        or type(key) is not str
        or len(key) > MAX_KEY_CHARACTERS
        or type(device) is not str
        or type(count) is not int
        or count < 0
    ):
        raise PickleError("its pickle describes a storage as torch.save does not")
    return StorageRef(key, dtype, count * dtype.itemsize)


def tensor_of(arguments: Any, *, typed: bool) -> TensorRef | None:
    """Read the arguments from which torch rebuilds a tensor; None if it would require grad.

    ``typed``: the dtype is the last of them, else it is the storage's.
    """
    storage, offset, shape, strides, requires_grad, hooks, *own = _exactly(arguments, 7 if typed else 6)
    if not isinstance(storage, StorageRef):
        raise PickleError("its pickle describes a tensor as torch.save does not")
    dtype = _dtype(own[0], "dtype") if typed else storage.dtype
    if dtype is None or not _counts(offset, shape, strides):
        raise PickleError("its pickle describes a tensor as torch.save does not")
    if requires_grad is not False or hooks != {}:
        return None
    return TensorRef(storage, dtype, offset, shape, strides)


def _exactly(value: Any, length: int) -> tuple[Any, ...]:
    if type(value) is not tuple or len(value) != length:
        raise PickleError("its pickle describes a tensor or storage as torch.save does not")
    return value


def _dtype(value: Any, role: str) -> torch.dtype | None:
    return value.dtype if isinstance(value, Known) and value.role == role else None


def _counts(offset: Any, shape: Any, strides: Any) -> bool:
    # Lengths first: one long tuple named by thousands of tensors must not be gone through for each.
    if type(shape) is not tuple or type(strides) is not tuple or not len(shape) == len(strides) <= MAX_DIMS:
        return False
    return all(type(number) is int and number >= 0 for number in (offset, *shape, *strides))
