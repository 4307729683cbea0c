"""What a dump must be: each refusal by its key, and what looks wrong but is a finding, not a refusal."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from dump_samples import ROWS, SLOTS, int64, mutated, put, records, refused, same, sample

from canary_numba.dump import decode, encode
from canary_numba.errors import DumpFormatError, DumpVersionError
from canary_numba.layout import RealKvHashMode


def test_the_sample_is_valid_and_encode_is_the_inverse() -> None:
    dump = decode(sample(), "a.pt")
    assert same(encode(dump), sample())
    assert dump.path == "a.pt"
    assert dump.hash_mode is RealKvHashMode.ALL
    assert dump.groups[0].halves["K"].num_slots == SLOTS


REQUIRED = [
    "format",
    "version",
    "hash_mode",
    "groups",
    "groups.0.kind",
    "groups.0.halves",
    "groups.0.halves.K",
    "groups.1.full_to_swa_index_mapping",
    "groups.1.swa_window_size",
    *(f"groups.0.halves.K.sources.0.{name}" for name in ("name", "tensor", "page_size", "num_bytes_per_token")),
    "groups.0.halves.K.sources.0.read_bytes",
    *(f"requests.{name}" for name in ("req_pool_indices", "prefix_lens", "req_to_token")),
    *(f"requests.{name}" for name in ("expected_tokens", "expected_tokens_valid_lens")),
    *(f"requests.kv_indices.{name}" for name in ("indptr", "indices")),
    *(f"radix.{name}" for name in ("slot_indices", "positions", "prev_slot_indices")),
    *(f"allocator.{name}" for name in ("page_size", "size", "free_slots")),
    *(f"violation_log.{name}" for name in ("ring", "write_index")),
    *(f"finished.{name}" for name in ("rids", "indptr", "tokens")),
    *(f"events.0.{name}" for name in ("kind", "slots", "step")),
    *(f"counters.{name}" for name in ("kernel_run", "slot_run")),
]


def bracketed(dotted: str) -> str:
    return "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in dotted.split("."))[1:]


@pytest.mark.parametrize("dotted", REQUIRED)
def test_a_missing_required_key_is_refused(dotted: str) -> None:
    refused(put(dotted, ...), bracketed(dotted), "got nothing: the key is missing")


OPTIONAL = [
    *("producer", "context", "requests", "radix", "allocator", "violation_log", "finished", "events", "counters"),
    *("groups.0.swa_window_size", "groups.0.full_to_swa_index_mapping", "groups.0.kv_token_id_vs_position_offset"),
    *(f"groups.0.halves.{name}" for name in ("V", "K.head", "K.tail", "K.sources", "K.source_hashes")),
    *(f"requests.{name}" for name in ("rids", "extend_seq_lens", "row_ids", "committed_lens", "allocated_lens")),
    *(f"requests.{name}" for name in ("extra_keys", "kv_indices")),
    *(f"allocator.{name}" for name in ("swa_size", "swa_free_slots")),
    *(f"events.0.{name}" for name in ("request", "source")),
]


@pytest.mark.parametrize("dotted", OPTIONAL)
@pytest.mark.parametrize("value", [..., None], ids=["absent", "None"])
def test_an_optional_key_may_be_absent_or_none(dotted: str, value: Any) -> None:
    dump = decode(mutated(put(dotted, value)))
    assert same(decode(encode(dump)), dump)


def test_what_absent_keys_stand_for() -> None:
    def strip(mapping: dict[str, Any]) -> None:
        requests = mapping["requests"]
        kept = ("req_pool_indices", "prefix_lens", "req_to_token")
        mapping["requests"] = {name: requests[name] for name in kept}
        mapping["groups"][0].pop("kv_token_id_vs_position_offset")

    dump = decode(mutated(strip))
    assert dump.requests is not None
    assert dump.requests.rids == ("row 1", "row 3")
    assert dump.requests.extend_seq_lens.tolist() == [0, 0]
    assert dump.requests.extra_keys is None
    assert dump.groups[0].kv_token_id_vs_position_offset == 0


@pytest.mark.parametrize("value", ["sglang-dump", 1, None, ["canary-dump"]])
def test_another_format_is_refused(value: Any) -> None:
    refused(put("format", value), "format", "expected 'canary-dump'")


@pytest.mark.parametrize("value", [2, 0, -1, 1 << 40])
def test_another_version_is_refused_naming_both(value: int) -> None:
    with pytest.raises(DumpVersionError, match=rf"format version {value}, this reader knows version 1") as caught:
        decode(mutated(put("version", value)), "a.pt")
    assert caught.value.path == "a.pt"


@pytest.mark.parametrize("value", [True, "1", 1.0, 1 << 70])
def test_a_version_that_is_no_int_is_refused(value: Any) -> None:
    refused(put("version", value), "version")


@pytest.mark.parametrize("value", [None, [], 7, torch.zeros(1)])
def test_a_dump_that_is_no_dict_is_refused(value: Any) -> None:
    with pytest.raises(DumpFormatError, match="the dump: expected a dict, got"):
        decode(value)


@pytest.mark.parametrize("value", ["ALL", "some", 2, None])
def test_unknown_hash_modes_are_refused(value: Any) -> None:
    refused(put("hash_mode", value), "hash_mode", "expected 'none' or 'partial' or 'all'")


def test_radix_arrays_have_one_length() -> None:
    refused(put("radix.positions", int64(0)), "radix.positions", "expected int64 [n=3], got int64 [1]")
    refused(put("radix.prev_slot_indices", int64(0)), "radix.prev_slot_indices", "expected int64 [n=3]")


@pytest.mark.parametrize(("name", "value"), [("page_size", 0), ("size", -1), ("swa_size", 1 << 31), ("size", False)])
def test_allocator_sizes_are_counts(name: str, value: Any) -> None:
    refused(put(f"allocator.{name}", value), f"allocator.{name}", "expected int from")


def test_the_log_and_counters_have_their_form() -> None:
    ring = torch.zeros((2, 7), dtype=torch.int64)
    refused(put("violation_log.ring", ring), "violation_log.ring", "int64 [capacity, 8], got int64 [2, 7]")
    refused(put("violation_log.write_index", int64(1)), "violation_log.write_index", "int32 [1], got int64 [1]")
    refused(put("counters.slot_run", int64(1)), "counters.slot_run", "int64 [12], got int64 [1]")


def test_events_have_their_form() -> None:
    refused(put("events.1.kind", "lost"), "events[1].kind", "'alloc' or 'free' or 'evict'")
    refused(put("events.1.step", 1.5), "events[1].step", "got float 1.5")
    refused(put("events.1.request", 7), "events[1].request", "expected str")
    refused(put("events", [sample()["events"][0]] * 100_001), "events", "list of at most 100000")


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, 1 << 65, {"a": 1}, (1, 2), torch.zeros(1), b"bytes", "\ud800", "x" * 4097]
)
def test_context_holds_plain_facts(value: Any) -> None:
    refused(put("context.step", value), "context.step")
    refused(put("context.step", [1, value]), "context.step[1]")


def test_context_is_bounded_and_named_by_text() -> None:
    refused(put("context.step", [[1]]), "context.step[0]", "a list of 1")
    refused(put("context.step", [1] * 1025), "context.step", "list of at most 1024")
    refused(put("context", {str(i): i for i in range(1025)}), "context", "at most 1024 entries")
    refused(put("context", {7: 1}), "context.int 7", "str")
    refused(put("producer", {"engine": 7}), "producer.engine", "str")
    refused(put("context", {"\x1b[31m": math.nan}), "context.'\\x1b[31m'")


def test_small_tensors_with_gaps_are_packed() -> None:
    mapping = sample()
    wide = torch.zeros((SLOTS, 64), dtype=torch.uint8)
    wide[:, :32] = records(SLOTS)
    mapping["groups"][0]["halves"]["K"]["head"] = wide[:, :32]
    mapping["requests"]["prefix_lens"] = int64(3).expand(2)
    mapping["radix"]["positions"] = torch.arange(6)[::2]
    dump = decode(mapping)
    head = dump.groups[0].halves["K"].head
    assert head is not None
    assert head.is_contiguous()
    assert head.equal(records(SLOTS))
    assert dump.requests is not None
    assert dump.requests.prefix_lens.stride() == (1,)
    assert dump.requests.prefix_lens.tolist() == [3, 3]
    assert dump.radix is not None
    assert dump.radix.positions.is_contiguous()


FINDINGS = {
    "a prefix longer than the table is wide": put("requests.prefix_lens", int64(2, 1000)),
    "rows outside the table": put("requests.req_pool_indices", int64(-1, 99)),
    "padding rows": put("requests.req_pool_indices", int64(0, 0)),
    "slots outside the buffer": put("requests.req_to_token", torch.full((ROWS, 6), -7, dtype=torch.int32)),
    "mapping outside the window pool": put("groups.1.full_to_swa_index_mapping", int64(0, 1 << 62, -5)),
    "cached slots outside the pool": put("radix.slot_indices", int64(-(1 << 63), (1 << 63) - 1, 0)),
    "free slots twice": put("allocator.free_slots", int64(3, 3, -1)),
    "a copied table that points anywhere": put("requests.kv_indices.indices", int64(*range(-3, 3))),
    "an allocator larger than its pool": put("allocator.size", 4000),
    "valid lengths past the pool": put("requests.expected_tokens_valid_lens", int64(99, 0)),
    "a ring of garbage": put("violation_log.ring", torch.full((1, 8), -1)),
    "a write index past the ring": put("violation_log.write_index", torch.tensor([-5], dtype=torch.int32)),
    "no requests": put("requests.rids", ["", ""]),
    "unknown keys": put("from_the_future", object()),
    "events that moved nothing": put("events.0.slots", int64()),
}


@pytest.mark.parametrize("name", FINDINGS)
def test_what_is_wrong_in_the_cache_is_not_refused(name: str) -> None:
    decode(mutated(FINDINGS[name]))
