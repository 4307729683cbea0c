"""What a tensor argument must be: checks of one tensor, with errors that name it."""

from __future__ import annotations

from typing import Any

import torch

from canary_numba.errors import ArgumentError, ArgumentTypeError


def _show(dims: tuple[int | None, ...]) -> str:
    return "[" + ", ".join("n" if dim is None else str(dim) for dim in dims) + "]"


def require_tensor(
    name: str,
    tensor: Any,
    *,
    dtype: torch.dtype | tuple[torch.dtype, ...],
    shape: tuple[int | None, ...],
    device: torch.device,
    contiguous: bool = True,
) -> None:
    """Check one tensor argument.

    Parameters
    ----------
    name
        What to call it in the error.
    tensor
        The argument.
    dtype
        The dtype, or the dtypes, it may have.
    shape
        Its shape; None stands for any length.
    device
        The device of the launch.
    contiguous
        Whether it must be C-contiguous.

    Raises
    ------
    ArgumentTypeError
        It is no tensor, or of another dtype.
    ArgumentError
        Its shape, device or layout is another.
    """
    dtypes = dtype if isinstance(dtype, tuple) else (dtype,)
    device_of(name, tensor)
    if tensor.dtype not in dtypes:
        raise ArgumentTypeError(f"{name}: expected {' or '.join(str(d) for d in dtypes)}, got {tensor.dtype}")
    same_rank = tensor.ndim == len(shape)
    if not same_rank or any(want is not None and want != got for want, got in zip(shape, tensor.shape, strict=True)):
        raise ArgumentError(f"{name}: expected shape {_show(shape)}, got {list(tensor.shape)}")
    if tensor.device != device:
        raise ArgumentError(f"{name}: expected a tensor on {device}, as the others are, got one on {tensor.device}")
    if contiguous and not tensor.is_contiguous():
        raise ArgumentError(f"{name}: expected a contiguous tensor, got strides {list(tensor.stride())}")


def device_of(name: str, tensor: Any) -> torch.device:
    """Return the device of what must be a tensor.

    Raises
    ------
    ArgumentTypeError
        It is something else.
    """
    if not isinstance(tensor, torch.Tensor):
        raise ArgumentTypeError(f"{name}: expected a torch.Tensor, got {type(tensor).__name__}")
    return tensor.device


def require_rows(name: str, table: Any, device: torch.device) -> None:
    """Check an int32 ``[rows, width]`` table: a row is contiguous, rows may be further apart than their width."""
    require_tensor(name, table, dtype=torch.int32, shape=(None, None), device=device, contiguous=False)
    if table.shape[1] > 1 and table.stride(1) != 1:
        raise ArgumentError(f"{name}: expected contiguous rows, got strides {list(table.stride())}")
