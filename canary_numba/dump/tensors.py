"""What makes a tensor fit for a dump, whoever wrote it; and how a value is described in a refusal."""

from __future__ import annotations

from typing import Any, Final

import torch

from canary_numba.dump.dtypes import DTYPE_OF_NAME, dtype_name

MAX_EXPANDED_BYTES: Final[int] = 1 << 16
"""A tensor whose elements overlap (stride 0) claims more bytes than it has: up to this size it is simply unrolled."""

_DTYPES: Final[frozenset[torch.dtype]] = frozenset(DTYPE_OF_NAME.values())


def describe(value: Any) -> str:
    """Say what a value is, in a few words: ``int64 [4, 2]``, ``int 7``, ``a list of 3``. Never raises, never long."""
    if type(value) is torch.Tensor and not value.is_nested:
        return f"{dtype_name(value.dtype)} {list(value.shape)}"
    if isinstance(value, str):
        return repr(value) if len(value) <= 60 else f"{value[:60]!r}... ({len(value)} characters)"
    if isinstance(value, int) and value.bit_length() > 64:
        return f"int of {value.bit_length()} bits"
    if isinstance(value, (int, float)):
        return f"{type(value).__name__} {value}"
    if isinstance(value, (list, tuple, dict, set)):
        return f"a {type(value).__name__} of {len(value)}"
    return "None" if value is None else f"a {type(value).__name__}"


def printable(name: str) -> str:
    """Return a name that a file chose, fit for a message: short, and without control characters."""
    return name if len(name) <= 60 and name.isprintable() else describe(name)


def nbytes(tensor: torch.Tensor) -> int:
    """Return the bytes of all elements, as if they lay packed."""
    return tensor.numel() * tensor.element_size()


def extent_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes from the first element of a tensor to its last, gaps included."""
    if tensor.numel() == 0:
        return 0
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return (sum((size - 1) * stride for size, stride in steps) + 1) * tensor.element_size()


def flaw(tensor: torch.Tensor) -> str | None:
    """Say why a dump cannot hold ``tensor``, or None when it can.

    A dump's tensors are plain: class ``torch.Tensor`` itself, dense, on the CPU, without autograd, of a dtype that can
    be seen as bytes, within their storage, and not larger than it.
    """
    if type(tensor) is not torch.Tensor:
        return f"a {type(tensor).__name__}"
    if tensor.is_nested or tensor.layout is not torch.strided:
        return f"a tensor of layout {'nested' if tensor.is_nested else str(tensor.layout).removeprefix('torch.')}"
    if tensor.device.type != "cpu":
        return f"a tensor on {tensor.device}"
    if tensor.dtype not in _DTYPES:
        return f"a tensor of dtype {dtype_name(tensor.dtype)}"
    if tensor.requires_grad:
        return "a tensor that requires grad"
    if tensor.is_conj() or tensor.is_neg():
        return "a tensor with a pending conjugation or negation"
    return extent_flaw(
        shape=tuple(tensor.shape),
        strides=tensor.stride(),
        offset=int(tensor.storage_offset()),
        item=tensor.element_size(),
        storage_bytes=tensor.untyped_storage().nbytes(),
    )


def extent_flaw(
    *, shape: tuple[int, ...], strides: tuple[int, ...], offset: int, item: int, storage_bytes: int
) -> str | None:
    """Say why a view of a storage is unsound, or None: it must stay inside, and not claim more bytes than there are.

    ``offset`` and ``strides`` count elements of ``item`` bytes.
    """
    count = 1
    for size in shape:
        count *= size
    if count == 0:
        return None
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    end = (last + 1) * item
    if end > storage_bytes:
        return f"shape {list(shape)}, which reaches to byte {end} of a storage of {storage_bytes} bytes"
    if count * item > max(storage_bytes, MAX_EXPANDED_BYTES):
        return f"shape {list(shape)}, which is {count * item} bytes, in a storage of {storage_bytes} bytes"
    return None


def rows_are_separate(tensor: torch.Tensor) -> bool:
    """Tell whether each row of a 2-D tensor is contiguous and no two rows overlap; there may be gaps between them."""
    rows, width = tensor.shape
    if width > 1 and tensor.stride(1) != 1:
        return False
    return rows <= 1 or tensor.stride(0) >= width
