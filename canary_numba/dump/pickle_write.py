"""Nested dict -> pickle of a ``.pt`` file, as ``torch.save`` would make it; the bytes of tensors are left to others."""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch._utils

from canary_numba.dump.dtypes import STORAGE_CLASS_OF_DTYPE

PROTOCOL: Final[int] = 2


@dataclass(frozen=True, slots=True)
class _Stored:
    """Stands in the pickle for a storage: member ``data/<key>``, seen as ``count`` elements of its class."""

    kind: type
    key: str
    count: int


def pickle_dump(mapping: Mapping[str, Any]) -> tuple[bytes, list[torch.UntypedStorage]]:
    """Pickle the nested dict of a dump.

    Returns
    -------
    tuple
        The pickle, and the storages it refers to: number i belongs into member ``data/i`` of the archive. Tensors that
        lie in one storage share it there as well.
    """
    out = io.BytesIO()
    pickler = _Pickler(out, protocol=PROTOCOL)
    pickler.dump(mapping)
    return out.getvalue(), [storage for _, storage in pickler.storages.values()]


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, *, protocol: int) -> None:
        super().__init__(file, protocol=protocol)
        # By address: views of one mapped file come as storage objects of their own. And by dtype: a storage is of one
        # class in a pickle, and all empty ones have the same address.
        self.storages: dict[tuple[int, int, str | None], tuple[str, torch.UntypedStorage]] = {}

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return NotImplemented
        storage = value.untyped_storage()
        name = STORAGE_CLASS_OF_DTYPE.get(value.dtype)
        place = (storage.data_ptr(), storage.nbytes(), name)
        key, _ = self.storages.setdefault(place, (str(len(self.storages)), storage))
        kind = torch.UntypedStorage if name is None else getattr(torch, name)
        count = storage.nbytes() if name is None else storage.nbytes() // value.element_size()
        hooks: OrderedDict[str, Any] = OrderedDict()
        view = (value.storage_offset(), tuple(value.shape), value.stride(), False, hooks)
        if name is None:
            return torch._utils._rebuild_tensor_v3, (_Stored(kind, key, count), *view, value.dtype)
        return torch._utils._rebuild_tensor_v2, (_Stored(kind, key, count), *view)

    def persistent_id(self, value: Any) -> Any:
        return ("storage", value.kind, value.key, "cpu", value.count) if isinstance(value, _Stored) else None
