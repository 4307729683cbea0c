"""K/V bytes by slot: where they lie in a source, and new ones that look like a model's."""

from __future__ import annotations

import numpy as np
import torch

from canary_numba.dump.model import Source

_FLOAT8 = tuple(dtype for name in ("float8_e4m3fn", "float8_e5m2") if (dtype := getattr(torch, name, None)) is not None)
_LARGEST_FLOAT8_CODE = 0x70
"""Below every code of a NaN or infinity, in both layouts."""


def slot_bytes(source: Source) -> torch.Tensor:
    """View a source's bytes as uint8 ``[rows, page_size, num_bytes_per_token]``; writes reach the source."""
    raw = source.tensor.view(torch.uint8)
    shape = (raw.shape[0], source.page_size, source.num_bytes_per_token)
    return raw.as_strided(shape, (raw.stride(0), source.num_bytes_per_token, 1))


def read_slots(source: Source, slots: torch.Tensor) -> torch.Tensor:
    """Copy the bytes of ``slots`` (int64 ``[n]``): uint8 ``[n, num_bytes_per_token]``."""
    return slot_bytes(source)[slots // source.page_size, slots % source.page_size]


def write_slots(source: Source, slots: torch.Tensor, content: torch.Tensor) -> None:
    """Write uint8 ``[n, num_bytes_per_token]`` into ``slots`` (int64 ``[n]``), in place."""
    slot_bytes(source)[slots // source.page_size, slots % source.page_size] = content


def random_content(rng: np.random.Generator, dtype: torch.dtype, count: int, nbytes: int) -> torch.Tensor:
    """Draw finite values of ``dtype`` for ``count`` slots: uint8 ``[count, nbytes]``."""
    width = -(-nbytes // dtype.itemsize)
    if dtype in _FLOAT8:
        codes = rng.integers(0, _LARGEST_FLOAT8_CODE, (count, width), dtype=np.uint8)
        signs = rng.integers(0, 2, (count, width), dtype=np.uint8) << 7
        raw = torch.from_numpy(codes | signs)
    elif dtype.is_floating_point:
        values = rng.standard_normal((count, width), dtype=np.float32)
        raw = torch.from_numpy(values).to(dtype).view(torch.uint8)
    else:
        raw = torch.from_numpy(rng.integers(0, 256, (count, width * dtype.itemsize), dtype=np.uint8))
    return raw[:, :nbytes]


def fill_slots(source: Source, slots: np.ndarray, value: int) -> None:
    """Set every byte of ``slots`` to ``value`` (0 to 255), in place."""
    wanted = torch.from_numpy(np.asarray(slots, dtype=np.int64))
    content = torch.full((wanted.shape[0], source.num_bytes_per_token), value, dtype=torch.uint8)
    write_slots(source, wanted, content)
