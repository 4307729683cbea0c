""":class:`~canary_numba.dump.model.Dump` -> nested dict, the inverse of :func:`canary_numba.dump.decode`."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch

from canary_numba.dump.model import FORMAT_NAME, FORMAT_VERSION, Dump, Group, Half, LiveLog, Requests
from canary_numba.dump.tensors import flaw, nbytes
from canary_numba.errors import DumpFormatError

_INT32_MAX = (1 << 31) - 1


def encode(dump: Dump) -> dict[str, Any]:
    """Return the nested dict that the format describes.

    Keys whose value is None are left out. Tensors are shared, not copied; one that is a piece of a larger storage comes
    out with a storage of its own bytes alone, so that a file holds no more than the dump shows. Row-strided sources
    keep their storage: K and V of several layers often interleave in one, which a ``.pt`` file then holds once.

    Raises
    ------
    DumpFormatError
        The write index of the violation log is no int32.
    """
    return {
        "format": FORMAT_NAME,
        "version": FORMAT_VERSION,
        "producer": dict(dump.producer),
        "context": dict(dump.context),
        "hash_mode": dump.hash_mode.name.lower(),
        "groups": [_group(group) for group in dump.groups],
        **_present(
            requests=None if dump.requests is None else _requests(dump.requests),
            radix=None if dump.radix is None else _fields(dump.radix),
            allocator=None if dump.allocator is None else _fields(dump.allocator),
            violation_log=None if dump.violation_log is None else _violation_log(dump.violation_log, dump.path),
            finished=None if dump.finished is None else _fields(dump.finished),
            events=[_fields(event) for event in dump.events] or None,
            counters=None if dump.counters is None else _fields(dump.counters),
        ),
    }


def _present(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _fields(part: Any) -> dict[str, Any]:
    return _present(**{field.name: _value(getattr(part, field.name)) for field in fields(part)})


def _value(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return _own_storage(value)
    return list(value) if isinstance(value, tuple) else value


def _group(group: Group) -> dict[str, Any]:
    mapping = group.full_to_swa_index_mapping
    return {
        "kind": group.kind,
        "halves": {name: _half(half) for name, half in group.halves.items()},
        "swa_window_size": group.swa_window_size,
        "full_to_swa_index_mapping": None if mapping is None else _own_storage(mapping),
        "kv_token_id_vs_position_offset": group.kv_token_id_vs_position_offset,
    }


def _half(half: Half) -> dict[str, Any]:
    return {**_fields(half), "sources": [_fields(source) for source in half.sources]}


def _requests(requests: Requests) -> dict[str, Any]:
    encoded = _fields(requests)
    if requests.kv_indices is not None:
        encoded["kv_indices"] = _fields(requests.kv_indices)
    return encoded


def _violation_log(log: LiveLog, path: str | None) -> dict[str, Any]:
    if not -_INT32_MAX - 1 <= log.write_index <= _INT32_MAX:
        raise DumpFormatError("violation_log.write_index", "an int32", f"int {log.write_index}", path=path)
    return {
        "ring": _own_storage(log.ring),
        "write_index": torch.tensor([log.write_index], dtype=torch.int32),
    }


def _own_storage(tensor: torch.Tensor) -> torch.Tensor:
    # A tensor that no dump can hold is left for decode to refuse, by its key.
    if flaw(tensor) is not None or not tensor.is_contiguous():
        return tensor
    storage = tensor.untyped_storage()
    if storage.nbytes() == nbytes(tensor):
        return tensor
    start = tensor.storage_offset() * tensor.element_size()
    piece = storage[start : start + nbytes(tensor)]
    return torch.empty(0, dtype=tensor.dtype).set_(piece, 0, tensor.shape, tensor.stride())
