"""Whatever is done to a dump, a reader answers with a Dump or a DumpError, and with nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
import torch
from dump_samples import SLOTS, same, sample

from canary_numba.dump import Dump, decode, encode, load_dump, save_dump
from canary_numba.errors import DumpError, DumpFormatError, DumpVersionError

JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([1 << 31, 1 << 63, 10**400, math.nan, math.inf, -0.0]),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["\ud800", "FULL", "SWA", "all", "alloc"]),
    st.binary(max_size=3),
    st.builds(list),
    st.builds(dict),
    st.just((1, 2)),
    st.just({1}),
    st.builds(object),
    st.sampled_from([{"K": {}}, [None], [[]], {1: 2}, [1, 2]]),
)
DTYPES = [torch.uint8, torch.int32, torch.int64, torch.float32, torch.bfloat16, torch.bool]
TENSORS = st.builds(
    lambda dtype, shape, fill: torch.full(shape, fill, dtype=torch.int64).to(dtype),
    st.sampled_from(DTYPES),
    st.lists(st.sampled_from([0, 1, 2, 3, 8, SLOTS, 12, 32]), max_size=3),
    st.sampled_from([-(1 << 63), -1, 0, 1, 7, (1 << 31) - 1, 1 << 31, (1 << 63) - 1]),
)
Change = Callable[[torch.Tensor], torch.Tensor]
CHANGES: dict[str, Change] = {
    "empty": lambda tensor: tensor[:0],
    "shorter": lambda tensor: tensor[1:],
    "every other": lambda tensor: tensor[::2],
    "transposed": lambda tensor: tensor.t() if tensor.ndim == 2 else tensor.reshape(-1, 1),
    "deeper": lambda tensor: tensor.unsqueeze(0),
    "expanded": lambda tensor: tensor[:1].expand(tensor.shape),
    "as doubles": lambda tensor: tensor.to(torch.float64),
    "negative": lambda tensor: -tensor.to(torch.int64),
    "meta": lambda tensor: tensor.to("meta"),
    "sparse": lambda tensor: tensor.to(torch.float32).to_sparse(),
    "grad": lambda tensor: tensor.to(torch.float32).requires_grad_(),
}


def places(node: Any) -> list[tuple[Any, Any]]:
    """Every container of a nested dict with each key or index in it."""
    if isinstance(node, dict):
        return [(node, key) for key in node] + [place for child in node.values() for place in places(child)]
    if isinstance(node, list):
        return [(node, i) for i in range(len(node))] + [place for child in node for place in places(child)]
    return []


def mutate(mapping: dict[str, Any], data: st.DataObject) -> None:
    spots = places(mapping)
    container, key = spots[data.draw(st.integers(0, len(spots) - 1))]
    value = container[key]
    action = data.draw(st.sampled_from(["drop", "junk", "tensor", "double", "change"]))
    if action == "drop":
        del container[key]
    elif action == "junk":
        container[key] = data.draw(JUNK)
    elif action == "tensor":
        container[key] = data.draw(TENSORS)
    elif action == "double" and isinstance(container, list):
        container.append(value)
    elif type(value) is torch.Tensor and value.numel() and value.ndim and value.device.type == "cpu":
        change = CHANGES[data.draw(st.sampled_from(sorted(CHANGES)))]
        container[key] = change(value.detach().to_dense())


def answer(read: Callable[[], Dump]) -> Dump | DumpError:
    try:
        return read()
    except DumpError as error:
        return error


@hypothesis.settings(max_examples=400)
@hypothesis.given(data=st.data())
def test_a_mutated_dict_is_decoded_or_refused_by_key(data: st.DataObject) -> None:
    mapping = sample()
    for _ in range(data.draw(st.integers(1, 3))):
        mutate(mapping, data)
    outcome = answer(lambda: decode(mapping))
    if isinstance(outcome, Dump):
        assert same(decode(encode(outcome)), outcome)
    else:
        assert isinstance(outcome, DumpVersionError) or (isinstance(outcome, DumpFormatError) and outcome.key)
        assert len(str(outcome).encode()) < 600


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
@hypothesis.settings(max_examples=200, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
@hypothesis.given(data=st.data())
def test_a_damaged_file_is_read_or_refused(suffix: str, data: st.DataObject, tmp_path: Path) -> None:
    intact = tmp_path / f"intact{suffix}"
    if not intact.exists():
        save_dump(decode(sample()), intact)
    content = bytearray(intact.read_bytes())
    # Half the hits go to where the structure is: the first and last few kilobytes.
    edge = min(3000, len(content))
    spots = st.one_of(
        st.integers(0, edge - 1), st.integers(len(content) - edge, len(content) - 1), st.integers(0, len(content) - 1)
    )
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(spots)] = data.draw(st.integers(0, 255))
    damaged = tmp_path / f"damaged{suffix}"
    damaged.write_bytes(content)
    outcome = answer(lambda: load_dump(damaged))
    if isinstance(outcome, DumpError):
        assert str(outcome).startswith(f"{damaged}: ")
        assert "\n" not in str(outcome)
