"""A small dump that has every key of the format, ways to spoil it, and a comparison of dumps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from canary_numba.dump import Dump, decode, encode
from canary_numba.errors import DumpFormatError

SLOTS = 9
SWA_SLOTS = 5
BS = 2
ROWS = 4
WIDTH = 6

Mutation = Callable[[dict[str, Any]], None]


def int64(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


def records(slots: int, *, stride: int = 32) -> torch.Tensor:
    return (torch.arange(slots * stride) % 251).to(torch.uint8).reshape(slots, stride)


def source(slots: int, *, name: str = "layer0.k") -> dict[str, Any]:
    """Two slots a row, 12 bytes a slot, two spare elements at the end of a row."""
    rows = (slots + 1) // 2
    tensor = torch.arange(rows * 14, dtype=torch.int32).to(torch.bfloat16).reshape(rows, 14)
    return {"name": name, "tensor": tensor, "page_size": 2, "num_bytes_per_token": 12, "read_bytes": 10}


def half(slots: int) -> dict[str, Any]:
    return {
        "head": records(slots),
        "tail": records(slots, stride=40),
        "sources": [source(slots), source(slots, name="")],
        "source_hashes": torch.arange(slots * 2).reshape(slots, 2),
        "source_slots": torch.arange(slots),
    }


def sample() -> dict[str, Any]:
    """A valid nested dict with every documented key."""
    return {
        "format": "canary-dump",
        "version": 1,
        "producer": {"engine": "sglang", "engine_version": "0.5.23"},
        "context": {"model": "m", "step": 3, "lr": 0.5, "draft": False, "host": None, "ranks": [0, 1, "x", None]},
        "hash_mode": "all",
        "groups": [
            {
                "kind": "FULL",
                "halves": {"K": half(SLOTS), "V": half(SLOTS)},
                "swa_window_size": 0,
                "full_to_swa_index_mapping": None,
                "kv_token_id_vs_position_offset": 1,
            },
            {
                "kind": "SWA",
                "halves": {"K": half(SWA_SLOTS)},
                "swa_window_size": 3,
                "full_to_swa_index_mapping": torch.arange(SLOTS + 1) % SWA_SLOTS,
                "kv_token_id_vs_position_offset": 0,
            },
        ],
        "requests": {
            "req_pool_indices": int64(1, 3),
            "prefix_lens": int64(2, 4),
            "req_to_token": torch.arange(ROWS * WIDTH, dtype=torch.int32).reshape(ROWS, WIDTH),
            "rids": ["a", "b"],
            "extend_seq_lens": int64(1, 0),
            "expected_tokens": torch.arange(ROWS * 5, dtype=torch.int32).reshape(ROWS, 5),
            "expected_tokens_valid_lens": int64(3, 5),
            "row_ids": int64(0, 11, 12, 13),
            "committed_lens": int64(2, 4),
            "allocated_lens": int64(3, 4),
            "extra_keys": [None, "adapter-7"],
            "kv_indices": {"indptr": int64(0, 2, 6), "indices": int64(1, 2, 3, 4, 5, 6)},
        },
        "radix": {
            "slot_indices": int64(1, 2, 3),
            "positions": int64(0, 1, 2),
            "prev_slot_indices": int64(-1, 1, 2),
        },
        "allocator": {
            "page_size": 1,
            "size": 8,
            "free_slots": int64(7, 8),
            "swa_size": 4,
            "swa_free_slots": int64(4),
        },
        "violation_log": {
            "ring": torch.arange(16).reshape(2, 8),
            "write_index": torch.tensor([5], dtype=torch.int32),
        },
        "finished": {
            "rids": ["old", "older"],
            "indptr": int64(0, 2, 3),
            "tokens": torch.tensor([7, 8, 9], dtype=torch.int32),
        },
        "events": [
            {"kind": "alloc", "slots": int64(1, 2), "step": 2, "request": "a", "source": ""},
            {"kind": "restore", "slots": int64(), "step": 3, "request": "", "source": "host"},
        ],
        "counters": {"kernel_run": torch.arange(12), "slot_run": torch.arange(12) * 7},
    }


def mutated(mutation: Mutation) -> dict[str, Any]:
    """A sample after ``mutation`` had its way with it."""
    mapping = sample()
    mutation(mapping)
    return mapping


def put(dotted: str, value: Any) -> Mutation:
    """A mutation that sets (or with ``...`` deletes) the entry at ``dotted``, such as ``groups.0.halves.K.tail``."""
    *parents, last = dotted.split(".")

    def mutation(mapping: dict[str, Any]) -> None:
        node: Any = mapping
        for part in parents:
            node = node[int(part)] if isinstance(node, list) else node[part]
        if value is ...:
            del node[last]
        else:
            node[int(last) if isinstance(node, list) else last] = value

    return mutation


def refused(mutation: Mutation, key: str, *pieces: str) -> None:
    """Assert that a sample so spoilt is refused for ``key``, in a message with all ``pieces``."""
    with pytest.raises(DumpFormatError) as caught:
        decode(mutated(mutation), "some/dump.pt")
    assert caught.value.key == key
    assert caught.value.path == "some/dump.pt"
    message = str(caught.value)
    assert message == f"some/dump.pt: {key}: expected {caught.value.expected}, got {caught.value.got}"
    for piece in pieces:
        assert piece in message


def in_half(name: str, value: Any) -> Mutation:
    """A mutation of the K half of the first group."""
    return put(f"groups.0.halves.K.{name}", value)


def in_source(name: str, value: Any) -> Mutation:
    """A mutation of the first source of that half."""
    return put(f"groups.0.halves.K.sources.0.{name}", value)


def raw_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of all elements in order, so that NaN equals itself and every dtype can be compared."""
    return tensor.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)


def same(left: Any, right: Any) -> bool:
    """Tell whether two dumps, or nested dicts of dumps, hold the same: values, dtypes and shapes, not strides."""
    if isinstance(left, Dump):
        return isinstance(right, Dump) and same(encode(left), encode(right))
    if isinstance(left, torch.Tensor):
        same_form = isinstance(right, torch.Tensor) and left.dtype == right.dtype and left.shape == right.shape
        return same_form and raw_bytes(left).equal(raw_bytes(right))
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)
