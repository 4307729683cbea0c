"""Runs the pickle of a ``.pt`` file without making anything but plain values: no import, no call, no tensor.

torch's own safe unpickler runs no foreign code, but it does allocate whatever a pickle asks for (``bytearray(2**40)``
is on its list), nests as deep as it is told, and takes its word for where a storage ends. This machine knows only the
instructions that ``torch.save`` uses for a dump, each of which costs a few bytes. Tensors and storages come out as
descriptions (:mod:`~canary_numba.dump.pickle_values`); anything else that the pickle would import comes out as a
``Foreign``, to be refused by the key it stands under.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from canary_numba.dump.pickle_values import KNOWN, Foreign, Known, PickleError, StorageRef, storage_of, tensor_of

MAX_INSTRUCTIONS: Final[int] = 1_000_000
"""Some 40 make a tensor, and a second is enough to run them all."""

_PROTOCOL: Final[int] = 2
_MAX_INT_BYTES: Final[int] = 9
"""A 64-bit unsigned integer with its sign byte."""


def run_pickle(data: bytes) -> tuple[Any, Foreign | None]:
    """Return what the pickle holds (dicts, lists, tuples, scalars, :class:`TensorRef`, :class:`Foreign`).

    Beside it comes the first Foreign it made, which need not be a part of what it holds.

    Raises
    ------
    PickleError
        An instruction is unknown, cut short or ill-used, or there are too many of them.
    """
    machine = _Machine(data)
    try:
        return machine.run(), machine.foreign
    except (IndexError, KeyError, struct.error, UnicodeDecodeError):
        raise PickleError(f"its pickle is damaged at byte {machine.at}") from None


class _Machine:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.storages: dict[str, StorageRef] = {}
        self.foreign: Foreign | None = None

    def run(self) -> Any:
        if self.data[:2] != bytes((0x80, _PROTOCOL)):
            raise PickleError(f"its pickle is not of protocol {_PROTOCOL}, the one that torch.save writes")
        self.at = 2
        handlers = _HANDLERS
        data = self.data
        for _ in range(MAX_INSTRUCTIONS):
            code = data[self.at]
            self.at += 1
            if code == _STOP:
                return self.stack.pop()
            handler = handlers[code]
            if handler is None:
                raise PickleError(f"its pickle uses instruction {bytes((code,))!r}, which no dump needs")
            handler(self)
        raise PickleError(f"its pickle has more than {MAX_INSTRUCTIONS} instructions, more than any dump needs")

    def unpack(self, layout: struct.Struct) -> Any:
        (value,) = layout.unpack_from(self.data, self.at)
        self.at += layout.size
        return value

    def piece(self, length: int) -> bytes:
        if length > len(self.data) - self.at:
            raise IndexError
        self.at += length
        return self.data[self.at - length : self.at]

    def line(self) -> str:
        end = self.data.find(b"\n", self.at, self.at + 256)
        if end < 0:
            raise IndexError
        text = self.data[self.at : end].decode()
        self.at = end + 1
        return text

    def pop_mark(self) -> list[Any]:
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def push_text(self) -> None:
        self.stack.append(self.piece(self.unpack(_UINT32)).decode())

    def push_long(self) -> None:
        length = self.unpack(_UINT8)
        if length > _MAX_INT_BYTES:
            raise PickleError(f"its pickle holds an int of {length} bytes, more than 64 bits")
        self.stack.append(int.from_bytes(self.piece(length), "little", signed=True))

    def push_global(self) -> None:
        module, name = self.line(), self.line()
        known = KNOWN.get((module, name))
        self.stack.append(known or self.refuse(f"{module}.{name}"))

    def refuse(self, name: str) -> Foreign:
        foreign = Foreign(name)
        self.foreign = self.foreign or foreign
        return foreign

    def push_storage(self) -> None:
        storage = storage_of(self.stack.pop())
        if self.storages.setdefault(storage.key, storage) != storage:
            raise PickleError(f"its pickle describes storage {storage.key!r} in two ways")
        self.stack.append(storage)

    def mark(self) -> None:
        self.marks.append(len(self.stack))

    def set_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not dict or len(items) % 2:
            raise PickleError("its pickle sets items of something else than a dict")
        for i in range(0, len(items), 2):
            # Hashing a tuple nested deep enough would overflow the stack of the process.
            if type(items[i]) not in (str, int):
                raise PickleError(f"its pickle has a dict key of type {type(items[i]).__name__}")
            target[items[i]] = items[i + 1]

    def set_item(self) -> None:
        value, name = self.stack.pop(), self.stack.pop()
        self.set_items([name, value])

    def extend(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not list:
            raise PickleError("its pickle appends to something else than a list")
        target.extend(items)

    def push_tuple(self, length: int) -> None:
        if length > len(self.stack):
            raise IndexError
        items = tuple(self.stack[len(self.stack) - length :])
        del self.stack[len(self.stack) - length :]
        self.stack.append(items)

    def reduce(self) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        if isinstance(function, Foreign):
            self.stack.append(function)
        elif isinstance(function, Known) and function.role == "dict" and arguments == ():
            self.stack.append({})
        elif isinstance(function, Known) and function.role.startswith("tensor"):
            tensor = tensor_of(arguments, typed=function.role == "tensor of dtype")
            self.stack.append(tensor or self.refuse("a tensor that requires grad"))
        else:
            raise PickleError("its pickle calls something as torch.save does not")

    def build(self) -> None:
        state_owner = self.stack[-2]
        if not isinstance(state_owner, Foreign):
            raise PickleError("its pickle sets attributes of a plain value")
        self.stack.pop()


_STOP: Final[int] = ord(".")
_UINT8 = struct.Struct("<B")
_UINT16 = struct.Struct("<H")
_UINT32 = struct.Struct("<L")
_INT32 = struct.Struct("<l")
_DOUBLE = struct.Struct(">d")

_Handler = Callable[[_Machine], object]
_BY_CODE: Final[dict[bytes, _Handler]] = {
    b"(": _Machine.mark,
    b")": lambda m: m.stack.append(()),
    b"}": lambda m: m.stack.append({}),
    b"]": lambda m: m.stack.append([]),
    b"N": lambda m: m.stack.append(None),
    b"\x88": lambda m: m.stack.append(True),
    b"\x89": lambda m: m.stack.append(False),
    b"K": lambda m: m.stack.append(m.unpack(_UINT8)),
    b"M": lambda m: m.stack.append(m.unpack(_UINT16)),
    b"J": lambda m: m.stack.append(m.unpack(_INT32)),
    b"G": lambda m: m.stack.append(m.unpack(_DOUBLE)),
    b"\x8a": _Machine.push_long,
    b"X": _Machine.push_text,
    b"c": _Machine.push_global,
    b"Q": _Machine.push_storage,
    b"q": lambda m: m.memo.__setitem__(m.unpack(_UINT8), m.stack[-1]),
    b"r": lambda m: m.memo.__setitem__(m.unpack(_UINT32), m.stack[-1]),
    b"h": lambda m: m.stack.append(m.memo[m.unpack(_UINT8)]),
    b"j": lambda m: m.stack.append(m.memo[m.unpack(_UINT32)]),
    b"s": _Machine.set_item,
    b"u": lambda m: m.set_items(m.pop_mark()),
    b"a": lambda m: m.extend([m.stack.pop()]),
    b"e": lambda m: m.extend(m.pop_mark()),
    b"t": lambda m: m.stack.append(tuple(m.pop_mark())),
    b"\x85": lambda m: m.push_tuple(1),
    b"\x86": lambda m: m.push_tuple(2),
    b"\x87": lambda m: m.push_tuple(3),
    b"R": _Machine.reduce,
    # A pickled object of a class: followed only far enough to name the class and the key it stands under.
    b"\x81": _Machine.reduce,
    b"b": _Machine.build,
}
_HANDLERS: Final[list[_Handler | None]] = [_BY_CODE.get(bytes((code,))) for code in range(256)]
