"""The dtypes a dump's tensors may have, by each of their names: torch's, its storage classes', safetensors'.

Quantised, sub-byte and half-precision complex dtypes are left out: torch cannot view them as bytes, or warns when it
makes one.
"""

from __future__ import annotations

from typing import Final

import torch

_NAMES: Final[tuple[tuple[str, str | None, str | None], ...]] = (
    ("bool", "BoolStorage", "BOOL"),
    ("uint8", "ByteStorage", "U8"),
    ("int8", "CharStorage", "I8"),
    ("int16", "ShortStorage", "I16"),
    ("int32", "IntStorage", "I32"),
    ("int64", "LongStorage", "I64"),
    ("float16", "HalfStorage", "F16"),
    ("bfloat16", "BFloat16Storage", "BF16"),
    ("float32", "FloatStorage", "F32"),
    ("float64", "DoubleStorage", "F64"),
    ("complex64", "ComplexFloatStorage", None),
    ("complex128", "ComplexDoubleStorage", None),
    ("uint16", None, "U16"),
    ("uint32", None, "U32"),
    ("uint64", None, "U64"),
    ("float8_e4m3fn", None, "F8_E4M3"),
    ("float8_e5m2", None, "F8_E5M2"),
    ("float8_e4m3fnuz", None, None),
    ("float8_e5m2fnuz", None, None),
    ("float8_e8m0fnu", None, None),
    ("float4_e2m1fn_x2", None, None),
)
"""Name in torch, the storage class a pickle names for it, its code in a safetensors header (those that 0.4.3 reads)."""


def _dtype(name: str) -> torch.dtype | None:
    return getattr(torch, name, None)


DTYPE_OF_NAME: Final[dict[str, torch.dtype]] = {
    name: dtype for name, _, _ in _NAMES if (dtype := _dtype(name)) is not None
}
"""Every dtype a dump may hold; the newest ones only where this torch has them."""

DTYPE_OF_STORAGE_CLASS: Final[dict[str, torch.dtype]] = {
    storage: DTYPE_OF_NAME[name] for name, storage, _ in _NAMES if storage is not None
}

STORAGE_CLASS_OF_DTYPE: Final[dict[torch.dtype, str]] = {
    DTYPE_OF_NAME[name]: storage for name, storage, _ in _NAMES if storage is not None
}

SAFETENSORS_CODE: Final[dict[torch.dtype, str]] = {
    DTYPE_OF_NAME[name]: code for name, _, code in _NAMES if code is not None
}


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name without its ``torch.`` prefix, as the format document writes it."""
    return str(dtype).removeprefix("torch.")
