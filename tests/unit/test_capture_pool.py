"""KVCanary: any layout, any number of layers, windows, order of calls, health, dumps that check as the pool does."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from guarded_pool import LAYOUTS, SLOTS, canary, decode, first_pass, layers_of, table

from canary_numba.capture.layers import PagedPool
from canary_numba.capture.pool import KVCanary
from canary_numba.capture.snapshot import radix_of_paths
from canary_numba.check import check_dump
from canary_numba.dump import load_dump, save_dump
from canary_numba.errors import ArgumentError, CorruptionError

TOKENS = [[*range(10), 7], [*range(10, 15), 8]]


@pytest.mark.parametrize(("layers", "keep"), [(1, False), (6, False), (3, True)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_changed_byte_is_seen_in_every_layout_live_and_in_the_dump(layout: str, layers: int, keep: bool) -> None:
    guard = canary(layout, layers, keep_source_hashes=keep)
    with first_pass(guard, mode="raise"):
        for source in (s for half in guard.groups[0].sources.values() for s in half):
            source.tensor.normal_()
    with decode(guard, 0, mode="raise"):
        pass
    radix = radix_of_paths([guard.req_to_token[1, :10]])
    assert guard.verify(radix=radix) == 0
    facts = {"rids": ["a", "b"], "expected_tokens": TOKENS, "radix": radix}
    clean = guard.snapshot(**facts)
    layer = guard.groups[0].sources["V"][-1]
    layer.tensor[5 // layer.page_size].flatten()[-1] += 1
    # Its slot is 5, or the last one of its page.
    found = guard.verify(radix=radix)
    assert found == 2
    assert {violation.tag for violation in guard.violations()} == {"TAIL_V_FULL", "SWEEP_V_FULL"}
    result = check_dump(clean, engine="cpu")
    assert (result.num_violations, [check.tag.name for check in result.checks if check.tag.stage == "SWEEP"]) == (
        0,
        ["SWEEP_K_FULL", "SWEEP_V_FULL"],
    )
    again = check_dump(guard.snapshot(**facts), engine="cpu")
    assert again.num_violations == 2
    changed = [check.changed_sources for check in again.checks if check.tag.name == "TAIL_V_FULL"]
    names = {name for by_slot in changed for names in by_slot.values() for name in names}
    assert names == ({layer.name} if keep else set())


def test_many_layers_write_the_same_records_as_the_kernel_does() -> None:
    tensors = layers_of("slots", 4)
    few = KVCanary(PagedPool(**tensors), table())
    many = KVCanary(PagedPool(**tensors), table(), keep_source_hashes=True)
    for guard in (few, many):
        with first_pass(guard, mode="raise"):
            pass
    for key, stage in few.groups[0].stages.items():
        # Slot 0 is padding: what tokens without a slot leave there does not matter.
        assert torch.equal(stage.records[1:], many.groups[0].stages[key].records[1:])


def test_a_dump_keeps_the_strides_of_interleaved_layers(tmp_path: Path) -> None:
    guard = canary("interleaved slots", 2)
    with first_pass(guard):
        pass
    path = tmp_path / "dump.pt"
    save_dump(guard.snapshot(), path)
    dump = load_dump(path)
    half = dump.groups[0].halves["V"]
    assert [source.tensor.stride() for source in half.sources] == [(32, 1), (32, 1)]
    assert [source.tensor.storage_offset() for source in half.sources] == [16, 16]
    assert "strides [32, 1], storage offset 16" in dump.context["memory V FULL"][0]
    assert check_dump(dump, engine="cpu").num_violations == 0


def test_a_snapshot_shares_nothing_with_the_engine() -> None:
    guard = canary()
    with first_pass(guard):
        pass
    dump = guard.snapshot()
    guard.groups[0].sources["K"][0].tensor.zero_()
    guard.groups[0].stages["TAIL", "K"].records.zero_()
    guard.req_to_token.zero_()
    assert check_dump(dump, engine="cpu").num_violations == 0


def test_a_window_pool_is_guarded_through_its_mapping() -> None:
    mapping = torch.zeros(SLOTS + 1, dtype=torch.int64)
    mapping[1:33] = torch.arange(32, 0, -1)
    mapping[33:53] = torch.arange(33, 53)
    guard = KVCanary(
        PagedPool(**layers_of("slots", 1)),
        table(),
        window_pool=PagedPool(**layers_of("slots", 1)),
        swa_window_size=4,
        full_to_swa_index_mapping=mapping,
    )
    with first_pass(guard, mode="raise"):
        pass
    mapping[1:6] = 0
    with decode(guard, 0, mode="raise"):
        pass
    health = guard.check()
    assert health.ok
    assert health.slots["TAIL_K_SWA"] == 15 + 2 + 8
    assert health.slots["TAIL_K_FULL"] == 15 + 2 + 15
    # Slot 8 of FULL, position 7, lies in slot 25 of the window.
    guard.groups[1].sources["K"][0].tensor[25] += 1
    assert guard.verify() == 1
    (violation,) = guard.violations()
    assert (violation.tag, violation.slot, violation.position) == ("TAIL_K_SWA", 25, 7)
    assert [group.kind for group in guard.snapshot().groups] == ["FULL", "SWA"]


def test_the_three_modes(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    guard = canary()
    with first_pass(guard, mode="raise"):
        pass
    guard.groups[0].sources["K"][0].tensor[3] += 1
    with caplog.at_level(logging.WARNING, logger="canary_numba.capture"), decode(guard, 0, mode="log"):
        pass
    assert "TAIL_K_FULL slot 3 position 2: verify_real_kv_hash" in caplog.text
    with pytest.raises(CorruptionError, match="2 canary violations"), decode(guard, 1, mode="raise"):
        pass
    for step in range(2, 5):
        with decode(guard, step, mode="dump", directory=tmp_path / "dumps", keep=2, facts=lambda: {"rids": ["a", "b"]}):
            pass
    paths = sorted((tmp_path / "dumps").iterdir())
    assert len(paths) == 2
    dump = load_dump(paths[0])
    assert dump.requests is not None
    assert dump.requests.rids == ("a", "b")
    assert dump.requests.prefix_lens.tolist() == [13, 8]
    assert check_dump(dump, engine="cpu").num_violations == 1


def test_a_violation_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    guard = canary()
    with first_pass(guard):
        pass
    source = guard.groups[0].sources["K"][0].tensor
    sound = source[3].clone()
    source[3] += 1
    guard.verify()
    source[3] = sound
    with caplog.at_level(logging.WARNING, logger="canary_numba.capture"):
        for step in range(3):
            with decode(guard, step):
                pass
    assert caplog.text.count("canary violations") == 1


def test_health_tells_of_plans_that_did_not_fit_and_of_launches_that_did_not_run() -> None:
    guard = canary(max_cached_tokens=4)
    assert guard.check().passes == 0
    with first_pass(guard):
        pass
    assert guard.check().ok
    with decode(guard, 0):
        pass
    health = guard.check()
    assert (health.ok, health.plans_too_large, health.stalled) == (False, 1, ())
    guard.log.passes.add_(1)
    assert guard.check().stalled == ("HEAD_K_FULL", "TAIL_K_FULL", "HEAD_V_FULL", "TAIL_V_FULL")


def test_a_pass_that_fails_is_dropped() -> None:
    guard = canary()
    with pytest.raises(RuntimeError, match="out of memory"), first_pass(guard):
        raise RuntimeError("out of memory")
    assert guard.passes == 0
    with first_pass(guard, mode="raise"):
        pass


def test_within_a_pass_new_tokens_are_not_cached() -> None:
    guard = canary()
    with first_pass(guard):
        dump = guard.snapshot()
    assert dump.requests is not None
    assert (dump.requests.prefix_lens.tolist(), dump.requests.extend_seq_lens.tolist()) == ([0, 0], [10, 5])


def test_only_rows_in_use_are_kept() -> None:
    guard = canary()
    dump = guard.snapshot(req_pool_indices=[2, 9], prefix_lens=[0, 3])
    assert dump.requests is not None
    assert dump.requests.row_ids is not None
    assert dump.requests.row_ids.tolist() == [0, 2]
    assert dump.requests.req_pool_indices.tolist() == [1, -1]
    assert dump.requests.rids == ("row 2", "row 9")
    assert torch.equal(dump.requests.req_to_token, guard.req_to_token[[0, 2]])


def test_order_of_calls() -> None:
    guard = canary()
    with pytest.raises(ArgumentError, match="before_forward: called out of order"):
        guard.before_forward([1], [0], [1])
    guard.plan([1], [0], [1])
    guard.before_forward([1], [0], [1])
    for call in (guard.verify, lambda: guard.plan([1], [0], [1])):
        with pytest.raises(ArgumentError, match="called out of order"):
            call()
    guard.after_forward()
    with pytest.raises(ArgumentError, match="after_forward: called out of order"):
        guard.after_forward()


@pytest.mark.parametrize(
    ("pool", "message"),
    [
        ({"k_layers": []}, "FULL pool: expected K tensors of at least one layer"),
        ({"k_layers": [torch.zeros((4, 8, 2))], "page_size": 4}, "layer0.k: expected 4 slots along dimension 1"),
        ({"k_layers": [torch.zeros((8, 2))], "num_slots": 9}, "expected num_slots from 1 to 8"),
        ({"k_layers": [torch.zeros((8, 2))], "layer_names": ["a", "b"]}, "layer_names: expected 1 names"),
        ({"k_layers": [torch.zeros((0, 2))]}, "layer0.k: expected at least one slot"),
        (
            {"k_layers": [torch.zeros((2, 5, 3))[:, :4, :2]], "page_size": 4},
            "layer0.k: expected slots that lie apart at a regular distance",
        ),
    ],
)
def test_pools_that_cannot_be_guarded(pool: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        KVCanary(PagedPool(**pool), table())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"hash_mode": "most"}, "hash_mode: expected none, partial or all"),
        ({"swa_window_size": 3}, "expected all three or none"),
        ({"max_requests": 0}, "max_requests, max_new_tokens: expected at least 1"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        canary(**arguments)


def test_passes_that_do_not_fit() -> None:
    guard = canary(max_requests=1, max_new_tokens=2)
    with pytest.raises(ArgumentError, match="expected at most max_requests=1 requests, got 2"):
        guard.plan([1, 2], [0, 0], [1, 1])
    with pytest.raises(ArgumentError, match="prefix_lens: expected 1 requests, got 2"):
        guard.plan([1], [0, 0], [1])
    guard.plan([1], [0], [3])
    with pytest.raises(ArgumentError, match="expected at most max_new_tokens=2 tokens, got 3"):
        guard.before_forward([1, 2, 3], [0, 1, 2], [1, 2, 3])
    with pytest.raises(ArgumentError, match="mode: expected one of log, raise, dump"), first_pass(guard, mode="panic"):
        pass
    with pytest.raises(ArgumentError, match="directory: needed"), first_pass(guard, mode="dump"):
        pass
