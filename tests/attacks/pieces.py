"""Pieces of hostile files: pickles by instruction, zips and safetensors headers around any content."""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

Attacks = dict[Callable[[Path], None], str]
"""Functions that write one file each, and a piece of the refusal that the reader owes for it."""

PROTOCOL = b"\x80\x02"
GIB = 1 << 30


def text(value: str) -> bytes:
    raw = value.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<L", len(raw)) + raw


def number(value: int) -> bytes:
    raw = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes((len(raw),)) + raw


def numbers(values: tuple[int, ...]) -> bytes:
    return b"(" + b"".join(map(number, values)) + b"t"


def glob(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def call(module: str, name: str, *arguments: bytes) -> bytes:
    return glob(module, name) + b"(" + b"".join(arguments) + b"tR"


def storage(count: int, *, cls: str = "LongStorage", key: str = "0") -> bytes:
    return b"(" + text("storage") + glob("torch", cls) + text(key) + text("cpu") + number(count) + b"tQ"


def tensor(shape: tuple[int, ...], strides: tuple[int, ...], *, count: int = 4, offset: int = 0) -> bytes:
    """An int64 tensor over storage 0, which the archive holds with 32 bytes."""
    hooks = glob("collections", "OrderedDict") + b")R"
    arguments = (storage(count), number(offset), numbers(shape), numbers(strides), b"\x89", hooks)
    return call("torch._utils", "_rebuild_tensor_v2", *arguments)


def entry(value: bytes) -> bytes:
    """The pickle of ``{"format": "canary-dump", "x": value}``."""
    return PROTOCOL + b"}(" + text("format") + text("canary-dump") + text("x") + value + b"u."


def archive(
    path: Path, pickle: bytes, *, members: dict[str, bytes] | None = None, compression: int = zipfile.ZIP_STORED
) -> None:
    """A zip as torch.save lays it out, around any pickle."""
    with zipfile.ZipFile(path, "w", compression) as file:
        contents = {"data.pkl": pickle, "byteorder": b"little", "data/0": bytes(32), "version": b"3\n"}
        for name, content in {**contents, **(members or {})}.items():
            file.writestr(f"archive/{name}", content)


def header(path: Path, text: str | bytes, *, body: bytes = b"", claim: int | None = None) -> None:
    """A safetensors file with any header."""
    raw = text.encode() if isinstance(text, str) else text
    path.write_bytes(struct.pack("<Q", len(raw) if claim is None else claim) + raw + body)


def dump_header(tensors: dict[str, object], rest: str = "{}") -> str:
    return json.dumps({"__metadata__": {"canary_dump": rest}, **tensors})


def u8(start: int, end: int) -> dict[str, object]:
    return {"dtype": "U8", "shape": [end - start], "data_offsets": [start, end]}


def patch(path: Path, old: bytes, new: bytes) -> None:
    data = path.read_bytes()
    assert len(old) == len(new)
    assert old in data
    path.write_bytes(data.replace(old, new))
