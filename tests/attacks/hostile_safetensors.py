"""safetensors files that would harm a careless reader."""

from __future__ import annotations

import json
import os
from pathlib import Path

from pieces import GIB, Attacks, dump_header, header, u8


def header_claims_exabytes(path: Path) -> None:
    header(path, dump_header({}), claim=1 << 62)


def header_of_100_mib(path: Path) -> None:
    header(path, dump_header({}) + " " * (100 << 20))


def header_of_brackets(path: Path) -> None:
    header(path, b'{"a":' + b"[" * (8 << 20))


def header_deep(path: Path) -> None:
    header(path, b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}")


def metadata_deep(path: Path) -> None:
    header(path, dump_header({}, "[" * 100_000 + "]" * 100_000))


def header_no_json(path: Path) -> None:
    header(path, '{"a": }')


def header_key_twice(path: Path) -> None:
    header(path, '{"__metadata__":{"canary_dump":"{}"},"a":%s,"a":%s}' % ((json.dumps(u8(0, 4)),) * 2), body=bytes(4))


def metadata_key_twice(path: Path) -> None:
    header(path, dump_header({}, '{"version": 1, "version": 2}'))


def header_nan(path: Path) -> None:
    header(path, dump_header({}, '{"version": NaN}'))


def header_huge_int(path: Path) -> None:
    header(path, dump_header({}, '{"version": ' + "9" * 1_000_000 + "}"))


def offsets_overlap(path: Path) -> None:
    header(path, dump_header({"a": u8(0, 8), "b": u8(4, 12)}), body=bytes(12))


def offsets_past_end(path: Path) -> None:
    header(path, dump_header({"a": u8(0, GIB)}), body=bytes(8))


def offsets_backwards(path: Path) -> None:
    header(path, dump_header({"a": {"dtype": "U8", "shape": [8], "data_offsets": [8, 0]}}), body=bytes(8))


def shape_overflows(path: Path) -> None:
    shape = [1 << 33, 1 << 33]
    header(path, dump_header({"a": {"dtype": "U8", "shape": shape, "data_offsets": [0, 4]}}), body=bytes(4))


def far_list_item(path: Path) -> None:
    header(path, dump_header({"events/999999/slots": u8(0, 4)}, '{"events": []}'), body=bytes(4))


def sparse_requests(path: Path) -> None:
    """A gibibyte of zeros that takes no room on the disk: more requests than any rank has."""
    rest = {
        "format": "canary-dump",
        "version": 1,
        "hash_mode": "none",
        "groups": [{"kind": "FULL", "halves": {"K": {}}}],
    }
    count = GIB // 8
    tensors = {
        "requests/req_pool_indices": {"dtype": "I64", "shape": [count], "data_offsets": [0, GIB]},
        "groups/0/halves/K/tail": {"dtype": "U8", "shape": [0, 32], "data_offsets": [GIB, GIB]},
    }
    header(path, dump_header(tensors, json.dumps(rest)))
    os.truncate(path, path.stat().st_size + GIB)


def tensor_over_scalar(path: Path) -> None:
    header(path, dump_header({"version": u8(0, 4)}, '{"version": 1}'), body=bytes(4))


def deep_tensor_name(path: Path) -> None:
    header(path, dump_header({"/".join("a" * 100_000): u8(0, 4)}), body=bytes(4))


def no_dump(path: Path) -> None:
    header(path, json.dumps({"weight": u8(0, 4)}), body=bytes(4))


def truncated_body(path: Path) -> None:
    header(path, dump_header({"a": u8(0, 64)}), body=bytes(32))


ATTACKS: Attacks = {
    header_claims_exabytes: "truncated: its header claims 4611686018427387904 bytes",
    header_of_100_mib: "its header has 1048",
    header_of_brackets: "more than 2000000 values",
    header_deep: "nested too deep",
    metadata_deep: "nested too deep",
    header_no_json: "its header is no JSON",
    header_key_twice: "the key a twice",
    metadata_key_twice: "the key version twice",
    header_nan: "the number NaN",
    header_huge_int: "an integer of 1000000 digits",
    offsets_overlap: "safetensors cannot read it",
    offsets_past_end: "safetensors cannot read it",
    offsets_backwards: "safetensors cannot read it",
    shape_overflows: "safetensors cannot read it",
    far_list_item: "does not fit the rest of the dump",
    sparse_requests: "requests.req_pool_indices: expected at most 1048576 requests",
    tensor_over_scalar: "stands where the dump has something else",
    deep_tensor_name: "nested more than 16 levels deep",
    no_dump: "its metadata lacks the key canary_dump",
    truncated_body: "safetensors cannot read it",
}
