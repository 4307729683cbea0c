"""Injected faults: each fits some history, leaves the clean dump alone, and shows in the checks as its story says."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from canary_numba.check import CheckResult, check_dump
from canary_numba.diagnosis.catalog import FAULTS
from canary_numba.diagnosis.ranks import compare_ranks
from canary_numba.dump import Dump, decode, encode
from canary_numba.errors import ArgumentError, FaultNotApplicable
from canary_numba.faults import FAULT_NAMES, HistoryOptions, Label, inject, ranked, simulate
from canary_numba.faults.inject import INJECTORS
from canary_numba.faults.pool import Pool
from canary_numba.layout import FailReason, reason_names

SERVERS = (
    HistoryOptions(),
    HistoryOptions(page_size=4, window=24, paged_sources=True, dtype="float16", in_flight=True),
    HistoryOptions(page_size=16, halves="K", dtype="float8_e4m3fn"),
    HistoryOptions(prefix_cache=False, window=16, hash_mode="partial", tokens=False),
)
SEEDS = range(2)

SILENT = {
    "live_slot_on_free_list",
    "double_free",
    "unlawful_sharing",
    "stale_row_tail",
    "index_copy_stale",
    "unallocated_slot_in_prefix",
    "swa_slot_evicted_in_window",
    "nonfinite_kv",
    "ranks_disagree",
    "stale_violation_log",
}
"""No check of records or bytes fails."""
BYTES_ONLY = {"kv_bytes_changed", "restore_mismatch", "kv_bytes_copied", "padding_write"}
"""Nothing but the K/V hash fails, and in no slot but the label's."""
TOKENS_ONLY = {"tokens_differ_from_request", "wrong_prefix_hit", "row_recycled"}
"""Nothing but tokens differ: the chain is sound."""


WITHOUT_A_PLACE = {"live_slot_on_free_list", "double_free", "canary_stale", "padding_write"}
"""What needs a free list, or pages."""

Cases = dict[str, list[tuple[Dump, Dump, Label]]]


@pytest.fixture(scope="module")
def histories() -> list[Dump]:
    return [simulate(seed, options=options) for options in SERVERS for seed in SEEDS]


@pytest.fixture(scope="module")
def cases(histories: list[Dump]) -> Cases:
    """By fault: each history that has a place for it, what became of it, and the label."""
    found: Cases = {fault: [] for fault in FAULT_NAMES}
    for i, dump in enumerate(histories):
        for fault in FAULT_NAMES:
            with contextlib.suppress(FaultNotApplicable):
                found[fault].append((dump, *inject(dump, fault, i)))
    return found


def letters(result: CheckResult) -> int:
    bits = 0
    for check in result.checks:
        for row in check.rows[:, 7].tolist():
            bits |= row
    return bits


def flat(value: Any, key: str = "") -> dict[str, Any]:
    if isinstance(value, dict):
        return {name: leaf for k, v in value.items() for name, leaf in flat(v, f"{key}/{k}").items()}
    if isinstance(value, list):
        return {name: leaf for i, v in enumerate(value) for name, leaf in flat(v, f"{key}/{i}").items()}
    return {key: value}


def bytes_of(value: Any) -> Any:
    return value.contiguous().view(torch.uint8).numpy().tobytes() if isinstance(value, torch.Tensor) else value


def test_every_fault_of_the_catalog_can_be_injected() -> None:
    assert set(FAULT_NAMES) == set(FAULTS) - {"unexplained"}
    assert set(INJECTORS) == set(FAULT_NAMES)


@pytest.mark.parametrize("fault", FAULT_NAMES)
def test_it_fits_some_history_and_its_label_is_true_to_the_dump(cases: Cases, fault: str) -> None:
    assert len(cases[fault]) >= 2
    for _, dump, label in cases[fault]:
        assert label.fault == fault
        assert label.severity == FAULTS[fault].severity
        requests = dump.requests
        assert requests is not None
        assert set(label.positions) <= set(label.requests) <= set(requests.rids)
        for name, places in label.positions.items():
            index = requests.rids.index(name)
            assert list(places) == sorted(set(places))
            assert 0 <= places[0] <= places[-1] < requests.req_to_token.shape[1]
            if fault in FAULTS and FAULTS[fault].severity == "corrupt":
                assert places[-1] < int(requests.prefix_lens[index])
        assert json.loads(json.dumps(label.to_dict()))["fault"] == fault
        assert decode(encode(dump)).hash_mode == dump.hash_mode


@pytest.mark.parametrize("fault", FAULT_NAMES)
def test_the_clean_dump_stays_as_it_was(fault: str) -> None:
    options = HistoryOptions(page_size=4, window=24, interleaved=True, in_flight=True)
    dump = simulate(1, options=options)
    before = {key: bytes_of(value) for key, value in flat(encode(dump)).items()}
    for seed in range(4):
        try:
            inject(dump, fault, seed)
        except FaultNotApplicable:
            continue
    after = {key: bytes_of(value) for key, value in flat(encode(dump)).items()}
    assert before == after


@pytest.mark.parametrize("fault", FAULT_NAMES)
def test_something_changes(cases: Cases, fault: str) -> None:
    for dump, after, _ in cases[fault]:
        old = {key: bytes_of(value) for key, value in flat(encode(dump)).items()}
        new = {key: bytes_of(value) for key, value in flat(encode(after)).items()}
        assert old != new


@pytest.mark.parametrize("fault", sorted(SILENT))
def test_silent_faults_raise_no_violation(cases: Cases, fault: str) -> None:
    for _, dump, _ in cases[fault]:
        result = check_dump(dump, engine="cpu")
        # Slot 0 is skipped, but a token after an entry 0 still chains to what stood there: that check is skipped, too.
        assert result.num_violations == 0, reason_names(letters(result))


@pytest.mark.parametrize("fault", sorted(BYTES_ONLY))
def test_changed_bytes_fail_only_their_hash_and_only_at_their_slots(cases: Cases, fault: str) -> None:
    for _, dump, label in cases[fault]:
        result = check_dump(dump, engine="cpu")
        assert letters(result) == FailReason.VERIFY_REAL_KV_HASH_MISMATCH
        slots = {int(slot) for check in result.checks for slot in check.rows[:, 1]}
        assert slots <= set(label.slots)
        assert all(check.tag.stage != "HEAD" for check in result.checks if check.rows.shape[0])
        if fault != "padding_write":
            assert slots == set(label.slots)


@pytest.mark.parametrize("fault", sorted(TOKENS_ONLY))
def test_faults_that_the_chain_is_built_on_show_in_tokens_only(cases: Cases, fault: str) -> None:
    seen = 0
    for _, dump, _ in cases[fault]:
        result = check_dump(dump, engine="cpu")
        known = dump.requests is not None and dump.requests.expected_tokens is not None
        assert letters(result) == (FailReason.VERIFY_TOKEN_MISMATCH if known else 0)
        seen += known
    assert seen


def test_shifted_positions_fail_only_as_positions(cases: Cases) -> None:
    for _, dump, label in cases["positions_shifted"]:
        result = check_dump(dump, engine="cpu")
        assert letters(result) == FailReason.VERIFY_POSITION_MISMATCH
        (name,) = label.requests
        assert int(label.details["delta"])
        assert len(label.positions[name]) == len(label.slots)


def test_a_slot_owned_twice_leaves_no_copy_of_what_was_lost(cases: Cases) -> None:
    for dump, after, label in cases["slot_owned_twice"]:
        name, half = "K", dump.groups[0].halves["K"]
        lost = half.buffers["TAIL"].view(torch.int64)[list(label.slots), :3]
        left = after.groups[0].halves[name].buffers["TAIL"].view(torch.int64)[:, :3]
        assert dump.requests is not None
        assert dump.allocator is not None
        # A page that two requests computed at once may have left a copy on the free list: that one was there before.
        before = half.buffers["TAIL"].view(torch.int64)[:, :3]
        for record in lost:
            copies = (left == record).all(dim=1).sum()
            assert copies == (before == record).all(dim=1).sum() - 1


def test_a_table_entry_that_points_elsewhere_leaves_the_right_slot_as_it_was(cases: Cases) -> None:
    for dump, after, label in cases["table_points_elsewhere"]:
        slot = label.details["right_slot"]
        for half in ("K",):
            old, new = (d.groups[0].halves[half].buffers["TAIL"] for d in (dump, after))
            assert torch.equal(old[slot], new[slot])
        assert after.requests is not None
        (name,) = label.requests
        row = after.requests.req_pool_indices[after.requests.rids.index(name)]
        assert int(after.requests.req_to_token[row, label.positions[name][0]]) == label.slots[0]


def test_freed_slots_are_in_use_and_free(cases: Cases) -> None:
    for _, dump, label in cases["live_slot_on_free_list"]:
        assert dump.allocator is not None
        assert set(label.slots) <= set(dump.allocator.free_slots.tolist())


def test_ranks_are_sound_each_and_differ_together(cases: Cases) -> None:
    for dump, other, label in cases["ranks_disagree"]:
        assert check_dump(other, engine="cpu").num_violations == 0
        (finding,) = compare_ranks([ranked(dump), other])
        assert finding.requests == label.requests
        assert finding.positions == label.positions


def test_an_injection_is_repeatable(histories: list[Dump]) -> None:
    first, second = (inject(histories[0], "kv_bytes_changed", 3)[1] for _ in range(2))
    assert first == second
    others = {inject(histories[0], "kv_bytes_changed", seed)[1].slots for seed in range(6)}
    assert len(others) > 1


def test_an_unknown_fault_and_a_dump_without_a_place_for_it_are_refused(histories: list[Dump]) -> None:
    with pytest.raises(ArgumentError, match="slot_owned_twice"):
        inject(histories[0], "gremlins", 0)
    with pytest.raises(FaultNotApplicable, match="no sliding-window pool"):
        inject(histories[0], "swa_slot_evicted_in_window", 0)
    no_requests = decode({k: v for k, v in encode(histories[0]).items() if k != "requests"})
    with pytest.raises(FaultNotApplicable, match="no live requests"):
        inject(no_requests, "kv_bytes_changed", 0)


def test_bytes_that_a_fault_does_not_touch_are_shared_not_copied(histories: list[Dump]) -> None:
    sound = histories[0]
    for fault, copied in (("stale_row_tail", False), ("kv_bytes_changed", True)):
        dump, _ = inject(sound, fault, 1)
        pairs = zip(dump.groups[0].halves.values(), sound.groups[0].halves.values(), strict=True)
        own = [a.sources[0].tensor.data_ptr() != b.sources[0].tensor.data_ptr() for a, b in pairs]
        assert any(own) == copied


def test_hashes_of_each_layer_follow_what_was_written_and_not_what_was_damaged() -> None:
    sound = simulate(2, options=HistoryOptions(halves="K", layers=2))
    half = sound.groups[0].halves["K"]
    each = torch.zeros((half.num_slots, 2), dtype=torch.int64)
    with_hashes = replace(sound, groups=(replace(sound.groups[0], halves={"K": replace(half, source_hashes=each)}),))
    pool = Pool(with_hashes.groups[0], sound.hash_mode, np.random.default_rng(0))
    pool.refresh(np.flatnonzero(pool.main.any(axis=1)))
    assert check_dump(with_hashes, engine="cpu").num_violations == 0
    shifted, _ = inject(with_hashes, "positions_shifted", 0)
    assert letters(check_dump(shifted, engine="cpu")) == FailReason.VERIFY_POSITION_MISMATCH
    for seed in range(4):
        changed, label = inject(with_hashes, "kv_bytes_changed", seed)
        (check, *_) = [c for c in check_dump(changed, engine="cpu").checks if c.rows.shape[0]]
        assert set(check.changed_sources) == set(label.slots)
        if "layers" in label.details:
            assert check.changed_sources[label.slots[0]] == tuple(label.details["layers"])


def test_dumps_that_lack_optional_parts(histories: list[Dump]) -> None:
    mapping = encode(histories[0])
    for key in ("violation_log", "finished", "events", "radix", "allocator", "counters"):
        mapping.pop(key, None)
    mapping["requests"].pop("kv_indices")
    bare = decode(mapping)
    for fault in FAULT_NAMES:
        try:
            dump, label = inject(bare, fault, 0)
        except FaultNotApplicable:
            assert fault in {
                "live_slot_on_free_list",
                "double_free",
                "canary_stale",
                "padding_write",
            } or fault.startswith("swa")
            continue
        assert decode(encode(dump)).requests is not None
        assert label.fault == fault


def test_a_dump_with_bytes_of_few_slots_is_refused(histories: list[Dump]) -> None:
    group = histories[0].groups[0]
    few = replace(group.halves["K"], source_slots=torch.tensor([1]))
    with pytest.raises(FaultNotApplicable, match="source_slots"):
        inject(replace(histories[0], groups=(replace(group, halves={"K": few}),)), "kv_bytes_changed", 0)
