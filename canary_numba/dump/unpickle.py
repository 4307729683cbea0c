"""Pickle of a ``.pt`` file -> nested dict: only what a dump may hold, no deeper and no larger than it may be.

The pickle machine has turned the bytes into plain values and descriptions of tensors. Here each description is checked
against the archive and replaced by a tensor, whose bytes stay in the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

from canary_numba.dump.archive import Member
from canary_numba.dump.pickle_machine import run_pickle
from canary_numba.dump.pickle_values import Foreign, Known, PickleError, StorageRef, TensorRef
from canary_numba.dump.tensors import extent_flaw, printable

MAX_DEPTH: Final[int] = 32

_SCALARS: Final = (str, int, float, bool, type(None))


def unpickle(data: bytes, members: Mapping[str, Member], file: torch.UntypedStorage) -> Any:
    """Return what the pickle ``data`` holds.

    Parameters
    ----------
    data
        The pickle.
    members
        The members of its archive.
    file
        The whole archive, memory-mapped: tensors are views of it.

    Raises
    ------
    PickleError
        It holds something that a dump does not; the message names the key.
    """
    root, foreign = run_pickle(data)
    top = [root]
    todo: list[tuple[str, Any, int]] = [("", top, 0)]
    # A pickle can refer to one value from many places, and to a list from itself: each is looked at once.
    seen: set[int] = set()
    tensors: dict[int, torch.Tensor] = {}
    while todo:
        key, container, depth = todo.pop()
        if id(container) in seen:
            continue
        seen.add(id(container))
        if depth > MAX_DEPTH:
            raise PickleError(f"it is nested more than {MAX_DEPTH} levels deep, at {key[:60]}...")
        for index, value in _items(container):
            if type(value) in _SCALARS:
                continue
            name = _name(key, container, index) if depth else ""
            if isinstance(value, (dict, list)):
                todo.append((name, value, depth + 1))
            elif isinstance(value, TensorRef):
                if id(value) not in tensors:
                    tensors[id(value)] = _tensor(name or "the dump", value, members, file)
                container[index] = tensors[id(value)]
            elif isinstance(value, Foreign):
                raise PickleError(_asks(f"{name or 'the dump'}:", value))
            else:
                raise PickleError(f"{name or 'the dump'}: {_kind(value)}, which no dump holds")
    if foreign is not None:
        raise PickleError(_asks("its pickle", foreign))
    return top[0]


def _items(container: dict[Any, Any] | list[Any]) -> list[tuple[Any, Any]]:
    return list(container.items() if isinstance(container, dict) else enumerate(container))


def _name(key: str, container: dict[Any, Any] | list[Any], index: Any) -> str:
    if isinstance(container, list):
        return f"{key}[{index}]"
    shown = printable(str(index))
    return f"{key}.{shown}" if key else shown


def _kind(value: Any) -> str:
    if isinstance(value, StorageRef):
        return "a bare storage"
    return "a name of torch" if isinstance(value, Known) else f"a {type(value).__name__}"


def _asks(who: str, foreign: Foreign) -> str:
    return f"{who} asks for {printable(foreign.name)}, which no dump holds; nothing of it was run"


def _tensor(key: str, tensor: TensorRef, members: Mapping[str, Member], file: torch.UntypedStorage) -> torch.Tensor:
    storage = tensor.storage
    member = members.get(f"data/{storage.key}")
    if member is None:
        raise PickleError(f"{key}: its bytes, member data/{storage.key}, are missing from the file")
    if storage.nbytes > member.size:
        held = f"{member.size} of its {storage.nbytes} bytes"
        raise PickleError(f"{key}: the file holds only {held} (member data/{storage.key})")
    unsound = extent_flaw(
        shape=tensor.shape,
        strides=tensor.strides,
        offset=tensor.offset,
        item=tensor.dtype.itemsize,
        storage_bytes=storage.nbytes,
    )
    if unsound is not None:
        raise PickleError(f"{key}: a tensor of {unsound}")
    piece = file[member.start : member.start + storage.nbytes]
    return torch.empty(0, dtype=tensor.dtype).set_(piece, tensor.offset, tensor.shape, tensor.strides)
