"""Reads and writes safetensors dumps: tensors under slash-joined keys, the rest as JSON in the file's metadata.

``groups/0/halves/K/tail`` names the tensor ``groups[0].halves.K.tail``; the metadata key ``canary_dump`` holds the
nested dict without its tensors.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO, Final, NoReturn

import torch
from safetensors import safe_open

from canary_numba.dump.dtypes import SAFETENSORS_CODE, dtype_name
from canary_numba.dump.files import Counted
from canary_numba.dump.pages import forget
from canary_numba.dump.tensors import extent_bytes, nbytes, printable
from canary_numba.errors import DumpFormatError, DumpReadError

METADATA_KEY: Final[str] = "canary_dump"
MAX_HEADER_BYTES: Final[int] = 1 << 24
MAX_HEADER_VALUES: Final[int] = 2_000_000
"""Commas and brackets in a header: each may cost an object of some hundred bytes when it is parsed."""
MAX_TENSORS: Final[int] = 1 << 16
MAX_DEPTH: Final[int] = 16
CHUNK_BYTES: Final[int] = 1 << 26

_ALIGNMENT: Final[int] = 64
_MAX_DIGITS: Final[int] = 20
_MAX_INDEX_DIGITS: Final[int] = 6


def read(path: str) -> Any:
    """Read the nested dict of a safetensors dump; its tensors stay on disk until they are looked at.

    Raises
    ------
    DumpReadError
        The header is damaged or hostile, or the file is not a dump.
    """
    try:
        header = _header(path)
        if len(header) > MAX_TENSORS:
            raise DumpReadError(f"it has {len(header)} tensors, more than any dump needs")
        root = _tree(header)
        with safe_open(path, framework="pt", device="cpu") as file:
            for name in sorted(file.keys(), key=_natural):
                _insert(root, name, file.get_tensor(name))
        return root
    except DumpReadError as error:
        raise DumpReadError(str(error), path=path) from None
    except RecursionError:
        raise DumpReadError("its header is nested too deep", path=path) from None
    except Exception as error:
        # safetensors raises its own errors, torch and the file system theirs.
        reason = str(error).strip().partition("\n")[0][:200] or type(error).__name__
        raise DumpReadError(f"safetensors cannot read it: {reason}", path=path) from error


def _header(path: str) -> dict[str, Any]:
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        held = os.fstat(file.fileno()).st_size - 8
        if length > held:
            raise DumpReadError(f"truncated: its header claims {length} bytes, the file holds {held} after that claim")
        if length > MAX_HEADER_BYTES:
            raise DumpReadError(f"its header has {length} bytes, more than any dump needs")
        return _parse(file.read(length), "its header")


def _tree(header: dict[str, Any]) -> dict[str, Any]:
    metadata = header.get("__metadata__")
    text = metadata.get(METADATA_KEY) if isinstance(metadata, dict) else None
    if not isinstance(text, str):
        raise DumpReadError(f"a safetensors file, but not a dump: its metadata lacks the key {METADATA_KEY}")
    return _parse(text.encode(errors="surrogatepass"), f"its metadata key {METADATA_KEY}")


def _parse(text: bytes, where: str) -> dict[str, Any]:
    if sum(text.count(mark) for mark in (b",", b"[", b"{")) > MAX_HEADER_VALUES:
        raise DumpReadError(f"{where} has more than {MAX_HEADER_VALUES} values, more than any dump needs")
    try:
        value = json.loads(
            text.decode("utf-8", "surrogatepass"),
            object_pairs_hook=_unique,
            parse_int=_bounded_int,
            parse_constant=_refuse_constant,
        )
    except ValueError as error:
        raise DumpReadError(f"{where} is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise DumpReadError(f"{where} is JSON, but no object")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in found if names.count(name) > 1)
        raise DumpReadError(f"its header has the key {printable(twice)} twice")
    return found


def _bounded_int(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise DumpReadError(f"its header has an integer of {len(digits)} digits")
    return int(digits)


def _refuse_constant(name: str) -> NoReturn:
    raise DumpReadError(f"its header has the number {name}, which is no JSON")


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """Sort key that puts list items in order: 9 before 10."""
    return [(_is_index(part), int(part) if _is_index(part) else 0, part) for part in name.split("/")]


def _is_index(part: str) -> bool:
    return part.isascii() and part.isdecimal() and len(part) <= _MAX_INDEX_DIGITS


def _insert(root: dict[str, Any], name: str, tensor: torch.Tensor) -> None:
    """Put a tensor where its slash-joined name says, making the dicts and lists on the way."""
    parts = name.split("/")
    if len(parts) > MAX_DEPTH:
        raise DumpReadError(f"its tensor name {printable(name)} is nested more than {MAX_DEPTH} levels deep")
    node: Any = root
    for part, following in zip(parts, [*parts[1:], None], strict=True):
        value: Any = tensor
        if following is not None:
            value = [] if _is_index(following) else {}
        if isinstance(node, list) and _is_index(part) and int(part) <= len(node):
            if int(part) == len(node):
                node.append(value)
            index: Any = int(part)
        elif isinstance(node, dict):
            node.setdefault(part, value)
            index = part
        else:
            raise DumpReadError(f"its tensor name {printable(name)} does not fit the rest of the dump")
        node = node[index]
    if node is not tensor:
        raise DumpReadError(f"its tensor {printable(name)} stands where the dump has something else")


def write(mapping: Mapping[str, Any], file: BinaryIO, progress: Callable[[int, int], None]) -> None:
    """Write the nested dict of a dump (as :func:`~canary_numba.dump.encode` makes it) to an open file.

    Streams: no more than one chunk of a tensor is copied at a time, where safetensors' own writer wants every tensor
    contiguous in memory. A row-strided source comes out without its gaps. ``progress`` is told the bytes written and
    all there are to write.

    Raises
    ------
    DumpFormatError
        A tensor has a dtype that safetensors lacks.
    """
    tensors: dict[str, torch.Tensor] = {}
    rest = _split(mapping, "", tensors)
    # Tensors stand without gaps; those whose length is a multiple of more come first, so each starts at an address
    # as round as its own length.
    names = sorted(tensors, key=lambda name: (-_roundness(nbytes(tensors[name])), name))
    header: dict[str, Any] = {"__metadata__": {METADATA_KEY: json.dumps(rest, ensure_ascii=False)}}
    end = 0
    for name in names:
        tensor = tensors[name]
        code = SAFETENSORS_CODE.get(tensor.dtype)
        if code is None:
            expected = "a dtype that safetensors has (a .pt file takes others)"
            raise DumpFormatError(_dotted(name), expected, dtype_name(tensor.dtype))
        start, end = end, end + nbytes(tensor)
        header[name] = {"dtype": code, "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, ensure_ascii=False).encode()
    text += b" " * (-(len(text) + 8) % _ALIGNMENT)
    file.write(len(text).to_bytes(8, "little"))
    file.write(text)
    written = Counted(end, progress)
    for name in names:
        for chunk in written(_chunks(tensors[name])):
            file.write(chunk)


def _split(value: Any, name: str, tensors: dict[str, torch.Tensor]) -> Any:
    """Move the tensors below ``value`` into ``tensors``; return the rest."""
    if isinstance(value, dict):
        pairs = {key: (f"{name}/{key}" if name else key, child) for key, child in value.items()}
        tensors.update({path: child for path, child in pairs.values() if isinstance(child, torch.Tensor)})
        return {
            key: _split(child, path, tensors)
            for key, (path, child) in pairs.items()
            if not isinstance(child, torch.Tensor)
        }
    if isinstance(value, list):
        return [_split(child, f"{name}/{i}", tensors) for i, child in enumerate(value)]
    return value


def _dotted(name: str) -> str:
    first, *others = name.split("/")
    return first + "".join(f"[{part}]" if _is_index(part) else f".{part}" for part in others)


def _roundness(length: int) -> int:
    """Return the largest power of two up to 64 that divides ``length``."""
    return min(length & -length, _ALIGNMENT) or _ALIGNMENT


def _chunks(tensor: torch.Tensor) -> Iterator[memoryview]:
    rows = tensor.shape[0]
    row_bytes = max(1, nbytes(tensor) // max(1, rows))
    step = max(1, CHUNK_BYTES // row_bytes)
    for start in range(0, rows, step):
        piece = tensor[start : start + step]
        yield piece.contiguous().view(torch.uint8).reshape(-1).numpy().data
        forget(piece.data_ptr(), extent_bytes(piece))
