"""The pickle of a .pt file: what torch.save writes is read as torch reads it, the rest is refused by its key."""

from __future__ import annotations

import collections
import io
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from dump_samples import mutated, same, sample

from canary_numba.dump import pt
from canary_numba.errors import DumpReadError


class Scaled(torch.Tensor):
    pass


class Request:
    def __init__(self) -> None:
        self.rid = "a"


@pytest.fixture(name="path")
def fixture_path(tmp_path: Path) -> Path:
    return tmp_path / "a.pt"


def read(path: Path) -> Any:
    return pt.read(str(path))


PLAIN = {
    "scalars": [None, True, False, 0, 255, 256, 65536, -1, 1 << 40, -(1 << 63), (1 << 64) - 1, 0.5, -0.0, "", "tä\n"],
    "nested": {"a": [{"b": []}, {}], "c": {"d": {"e": [[1], [2]]}}},
    "int keys": {1: "a", -7: "b"},
    "ordered": collections.OrderedDict(b=1, a=2),
    "many": list(range(3000)),
}


@pytest.mark.parametrize("name", PLAIN)
def test_plain_values_are_read_as_torch_reads_them(path: Path, name: str) -> None:
    torch.save({"x": PLAIN[name]}, path)
    assert read(path) == {"x": PLAIN[name]} == torch.load(path, weights_only=True)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6).reshape(2, 3),
        torch.arange(12, dtype=torch.int16)[2:8:2],
        torch.arange(12.0).reshape(3, 4).t(),
        torch.zeros((0, 32), dtype=torch.uint8),
        torch.tensor(7),
        torch.zeros(1).expand(5),
        torch.ones(3, dtype=torch.float8_e5m2),
        torch.ones(3, dtype=torch.uint64),
        torch.ones(9, dtype=torch.uint16)[1:],
        torch.ones(3, dtype=torch.complex128),
        torch.ones(3, dtype=torch.bool),
    ],
    ids=lambda tensor: f"{tensor.dtype} {list(tensor.shape)} {tensor.stride()}",
)
def test_tensors_are_read_as_torch_reads_them(path: Path, tensor: torch.Tensor) -> None:
    torch.save([tensor, tensor], path)
    first, second = read(path)
    assert first is second
    assert first.dtype == tensor.dtype
    assert first.shape == tensor.shape
    assert first.stride() == tensor.stride()
    assert first.storage_offset() == tensor.storage_offset()
    assert same(first, tensor)


def test_every_shared_dump_is_read_as_torch_reads_it(shared: Path) -> None:
    for path in sorted((shared / "dumps").glob("*.pt")):
        assert same(read(path), torch.load(path, mmap=True, weights_only=True))


def test_writing_to_a_loaded_tensor_leaves_the_file_alone(path: Path) -> None:
    torch.save({"x": torch.zeros(4)}, path)
    before = path.read_bytes()
    read(path)["x"].fill_(7)
    assert path.read_bytes() == before


FOREIGN: dict[str, tuple[Any, str]] = {
    "tuple": ((1, 2), "x: a tuple, which no dump holds"),
    "set": ({1}, "x: asks for __builtin__.set"),
    "bytes": (b"ab", "x: asks for _codecs.encode"),
    "complex": (1j, "x: asks for __builtin__.complex"),
    "size": (torch.Size([1]), "x: asks for torch.Size"),
    "dtype": (torch.float32, "x: a name of torch"),
    "storage": (torch.zeros(2).untyped_storage(), "x: a bare storage"),
    "device": (torch.device("cpu"), "x: asks for torch.device"),
    "large int": (1 << 80, "an int of 11 bytes"),
    "parameter": (torch.nn.Parameter(torch.zeros(2)), "x: asks for torch._utils._rebuild_parameter"),
    "subclass": (torch.zeros(2).as_subclass(Scaled), "x: asks for torch._tensor._rebuild_from_type_v2"),
    "sparse": (torch.eye(2).to_sparse(), "x: asks for torch._utils._rebuild_sparse_tensor"),
    "meta": (torch.zeros(2, device="meta"), "x: asks for torch._utils._rebuild_meta_tensor_no_storage"),
    "grad": (torch.zeros(2, requires_grad=True), "x: asks for a tensor that requires grad"),
    "conjugate": (torch.zeros(2, dtype=torch.complex64).conj(), "describes a tensor or storage as torch.save does not"),
    "object": (Request(), "x: asks for"),
    "class": (Request, "x: asks for"),
    "function": (print, "x: asks for"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_what_no_dump_holds_is_refused_by_its_key(path: Path, name: str) -> None:
    value, refusal = FOREIGN[name]
    torch.save({"x": value}, path)
    with pytest.raises(DumpReadError) as caught:
        read(path)
    assert refusal in str(caught.value)


def test_the_key_of_a_refusal_is_the_whole_way(path: Path) -> None:
    def poison(mapping: dict[str, Any]) -> None:
        mapping["groups"][1]["halves"]["K"]["sources"][0]["tensor"] = {1, 2}

    torch.save(mutated(poison), path)
    with pytest.raises(DumpReadError, match=r"groups\[1\]\.halves\.K\.sources\[0\]\.tensor: asks for"):
        read(path)


def test_torchs_old_format_is_refused_kindly(path: Path) -> None:
    from canary_numba.dump import load_dump

    torch.save(sample(), path, _use_new_zipfile_serialization=False)
    with pytest.raises(DumpReadError, match="a bare pickle"):
        load_dump(path)


def test_other_pickle_protocols_are_refused(path: Path) -> None:
    torch.save(sample(), path, pickle_protocol=4)
    with pytest.raises(DumpReadError, match="not of protocol 2"):
        read(path)


def test_a_pickle_cut_anywhere_is_refused(path: Path) -> None:
    torch.save({"format": "canary-dump", "x": [1, "a", torch.zeros(2)]}, path)
    with zipfile.ZipFile(path) as file:
        contents = {name.partition("/")[2]: file.read(name) for name in file.namelist()}
    pickle = contents.pop("data.pkl")
    for length in range(len(pickle)):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as file:
            for name, content in {"data.pkl": pickle[:length], **contents}.items():
                file.writestr(f"a/{name}", content)
        path.write_bytes(buffer.getvalue())
        with pytest.raises(DumpReadError):
            read(path)
