"""Copies for a dump: device tensors to the host, with their layout, and tables cut to the rows in use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from canary_numba.dump.model import Source
from canary_numba.dump.tensors import extent_bytes, nbytes
from canary_numba.layout import REQ_POOL_IDX_PADDING

SHOWN_OFFSETS = 4
"""Storage offsets that a line about memory lists."""


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Copy a tensor to the host, packed; the copy shares nothing with it, even where it is on the host already."""
    return tensor.detach().to(device="cpu", copy=True).contiguous()


class SourceCopier:
    """Copies K/V sources to the host; sources that interleave in one storage do so in the copy as well."""

    def __init__(self, sources: Iterable[Source]) -> None:
        self._wanted: dict[int, int] = {}
        for source in sources:
            key = source.tensor.untyped_storage().data_ptr()
            self._wanted[key] = self._wanted.get(key, 0) + nbytes(source.tensor)
        self._copied: dict[int, torch.Tensor] = {}

    def __call__(self, source: Source) -> Source:
        """Copy one of the sources."""
        tensor = source.tensor
        storage = tensor.untyped_storage()
        gaps = nbytes(tensor) < extent_bytes(tensor)
        # A storage of which little is wanted is not worth copying whole, only to keep strides.
        if not gaps or 2 * self._wanted.get(storage.data_ptr(), 0) < storage.nbytes():
            return _with_tensor(source, to_host(tensor))
        whole = self._copied.get(storage.data_ptr())
        if whole is None:
            view = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage, 0, (storage.nbytes(),), (1,))
            whole = self._copied[storage.data_ptr()] = to_host(view)
        again = torch.empty(0, dtype=tensor.dtype)
        again.set_(whole.untyped_storage(), int(tensor.storage_offset()), tensor.shape, tensor.stride())
        return _with_tensor(source, again)


def _with_tensor(source: Source, tensor: torch.Tensor) -> Source:
    return Source(
        name=source.name,
        tensor=tensor,
        page_size=source.page_size,
        num_bytes_per_token=source.num_bytes_per_token,
        read_bytes=source.read_bytes,
    )


def describe_memory(sources: Sequence[Source]) -> list[str]:
    """Say how sources lie in memory where a packed copy no longer shows it: gaps between rows, pieces of a storage.

    Sources of one form share a line; nothing is said of those that are packed and have a storage of their own.
    """
    forms: dict[str, list[Source]] = {}
    for source in sources:
        tensor = source.tensor
        if not tensor.is_contiguous() or nbytes(tensor) != tensor.untyped_storage().nbytes():
            dtype = str(tensor.dtype).removeprefix("torch.")
            forms.setdefault(f"{dtype} {list(tensor.shape)} strides {list(tensor.stride())}", []).append(source)
    lines = []
    for form, alike in forms.items():
        names = alike[0].name if len(alike) == 1 else f"{alike[0].name} to {alike[-1].name}"
        offsets = sorted({int(source.tensor.storage_offset()) for source in alike})
        shown = ", ".join(map(str, offsets[:SHOWN_OFFSETS])) + (", ..." if len(offsets) > SHOWN_OFFSETS else "")
        lines.append(f"{names}: {form}, storage offset {shown}")
    return lines


@dataclass(frozen=True, kw_only=True)
class UsedRows:
    """A table cut to the padding row and the rows of live requests.

    ``table``: int32 ``[rows, width]`` on the host; ``req_pool_indices``: int64 ``[bs]``, rows of it; ``row_ids``: int64
    ``[rows]``, their numbers in the whole table.
    """

    table: torch.Tensor
    req_pool_indices: torch.Tensor
    row_ids: torch.Tensor


def used_rows(table: torch.Tensor, req_pool_indices: torch.Tensor) -> UsedRows:
    """Copy the rows in use; a row number outside the table stays outside.

    Parameters
    ----------
    table
        int32 ``[rows, width]`` on any device.
    req_pool_indices
        int64 ``[bs]`` on the host.
    """
    inside = (req_pool_indices >= 0) & (req_pool_indices < table.shape[0])
    padding = torch.tensor([REQ_POOL_IDX_PADDING])
    row_ids = torch.unique(torch.cat([padding, req_pool_indices[inside]]))
    compact = torch.searchsorted(row_ids, req_pool_indices)
    return UsedRows(
        table=to_host(table[row_ids.to(table.device)]),
        req_pool_indices=torch.where(inside, compact, -1),
        row_ids=row_ids,
    )
