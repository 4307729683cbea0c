"""Capture from SGLang, with stand-ins shaped like its objects, and from dumps that its own code wrote."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang_shaped import SLOTS, Cache, Manager, Mode, Req, token_allocator

from canary_numba.capture.sglang import snapshot
from canary_numba.check import check_dump
from canary_numba.diagnosis import diagnose
from canary_numba.dump import Dump, decode, encode, load_dump
from canary_numba.errors import ArgumentError

DATA = Path(__file__).parents[1] / "data"


def violations(dump: Dump) -> int:
    decode(encode(dump))
    return check_dump(dump, engine="cpu").num_violations


def full(manager: Manager, **more: Any) -> Cache:
    return Cache(token_allocator(manager.pool, [38, 39], **more))


@pytest.mark.parametrize("kv_bytes", ["none", "suspect", "all"])
def test_a_sound_process_gives_a_clean_dump(kv_bytes: str) -> None:
    manager = Manager()
    batch = manager.serve()
    dump = snapshot(manager, full(manager), batch, kv_bytes=kv_bytes)
    assert violations(dump) == 0
    assert dump.requests is not None
    assert dump.requests.rids == ("a", "b")
    assert dump.requests.row_ids is not None
    assert dump.requests.row_ids.tolist() == [0, 2, 4]
    assert dump.requests.req_pool_indices.tolist() == [1, 2]
    assert dump.requests.prefix_lens.tolist() == [11, 8]
    assert dump.requests.expected_tokens is not None
    assert dump.requests.expected_tokens[2, :8].tolist() == [400 + p for p in range(8)]
    assert dump.allocator is not None
    assert dump.allocator.free_slots.tolist() == [38, 39]
    assert dump.radix is not None
    assert dump.radix.prev_slot_indices.tolist() == [-1, 1, 2, 3]
    assert (dump.context["step"], dump.context["step_after"], dump.context["torn"]) == (0, 0, False)
    assert dump.counters is not None
    assert dump.counters.kernel_run[:4].tolist() == [6, 6, 6, 6]
    assert bool(dump.groups[0].halves["K"].sources) == (kv_bytes == "all")


@pytest.mark.parametrize(("kv_bytes", "found"), [("none", 0), ("suspect", 1), ("all", 1)])
def test_changed_bytes_show_when_bytes_or_hashes_were_kept(kv_bytes: str, found: int) -> None:
    manager = Manager()
    batch = manager.serve()
    manager.pool.v_buffer[0][23] += 1
    assert violations(snapshot(manager, None, batch, kv_bytes=kv_bytes)) == found


def test_bytes_of_changed_slots_and_their_neighbours_are_kept_and_explained() -> None:
    manager = Manager(layers=2)
    batch = manager.serve()
    manager.pool.v_buffer[0][23] = manager.pool.v_buffer[1][23] = 0
    dump = snapshot(manager, full(manager), batch)
    half = dump.groups[0].halves["V"]
    assert half.source_slots is not None
    assert half.source_slots.tolist() == [*range(15, 32)]
    assert torch.equal(half.sources[1].tensor.view(torch.bfloat16), manager.pool.v_buffer[1][15:32].flatten(1))
    assert dump.groups[0].halves["K"].sources == ()
    result = check_dump(dump, engine="cpu")
    (finding,) = diagnose(dump, result).findings
    assert (finding.fault, finding.slots) == ("kv_bytes_changed", (23,))
    assert any("zero" in line for line in finding.evidence)
    skipped = {skip.what: skip.reason for skip in result.skipped}
    assert skipped["some K/V bytes of TAIL_V_FULL"] == f"the dump has the K/V bytes of 17 of {SLOTS} slots"


def test_slots_that_the_ring_names_are_under_suspicion_in_both_halves() -> None:
    manager = Manager()
    batch = manager.serve()
    manager.canary.groups[0].stages["TAIL", "K"].records[25, 8] ^= 1
    batch = manager.forward("decode_or_idle", [11, 8], [1, 1])
    halves = snapshot(manager, None, batch).groups[0].halves
    for half in halves.values():
        assert half.source_slots is not None
        # The record of slot 25 and that of its successor, 26, failed.
        assert half.source_slots.tolist() == [*range(17, 35)]


def test_layers_keep_their_names_strides_and_offsets() -> None:
    manager = Manager(layers=2)
    batch = manager.serve()
    dump = snapshot(manager, full(manager), batch, kv_bytes="all")
    sources = dump.groups[0].halves["V"].sources
    assert [source.name for source in sources] == ["layer3.v", "layer4.v"]
    assert [source.tensor.shape for source in sources] == [(SLOTS, 16)] * 2
    offsets = f"storage offset {2 * SLOTS * 16}, {3 * SLOTS * 16}"
    assert dump.context["memory V FULL"] == [f"layer3.v to layer4.v: bfloat16 [{SLOTS}, 16] strides [16, 1], {offsets}"]


def test_a_window_pool_comes_with_its_mapping_and_free_list() -> None:
    manager = Manager(window=True)
    batch = manager.serve()
    inner = {"full_attn_allocator": token_allocator(None, [38]), "swa_attn_allocator": token_allocator(None, [39])}
    pools = SimpleNamespace(full_kv_pool=manager.pool, swa_kv_pool=manager.pool)
    manager._swa_allocator = SimpleNamespace(page_size=1, get_kvcache=lambda: pools, **inner)
    dump = snapshot(manager, None, batch, kv_bytes="suspect")
    assert violations(dump) == 0
    assert [group.kind for group in dump.groups] == ["FULL", "SWA"]
    assert dump.groups[1].swa_window_size == 4
    assert dump.groups[1].full_to_swa_index_mapping is not None
    assert dump.allocator is not None
    assert dump.allocator.swa_free_slots is not None
    assert (dump.allocator.free_slots.tolist(), dump.allocator.swa_free_slots.tolist()) == ([38], [39])


def test_free_pages_are_listed_slot_by_slot() -> None:
    manager = Manager()
    dump = snapshot(manager, Cache(token_allocator(manager.pool, [3, 9], page_size=4)))
    assert dump.allocator is not None
    assert dump.allocator.free_slots.tolist() == [12, 13, 14, 15, 36, 37, 38, 39]
    assert dump.requests is None


def test_the_cache_and_allocator_of_the_manager_are_found() -> None:
    manager = Manager()
    manager._sweep_orchestrator = SimpleNamespace(_radix_cache=full(manager))  # type: ignore[attr-defined]
    dump = snapshot(manager)
    assert dump.radix is not None
    assert dump.allocator is not None


def test_requests_between_passes_bring_lengths_keys_and_finished_ones() -> None:
    manager = Manager()
    manager.serve()
    reqs = [Req("a", 2, 11), Req("b", 4, 8), Req("waiting", None, 3)]
    dump = snapshot(manager, reqs=reqs, row_ids=False, finished={"old": [1, 2, 3]})
    assert violations(dump) == 0
    requests = dump.requests
    assert requests is not None
    assert requests.rids == ("a", "b")
    assert requests.row_ids is None
    assert requests.req_pool_indices.tolist() == [2, 4]
    assert requests.committed_lens is not None
    assert requests.allocated_lens is not None
    assert (requests.committed_lens.tolist(), requests.allocated_lens.tolist()) == ([11, 8], [12, 9])
    assert requests.extra_keys == ("adapter", "adapter")
    assert dump.finished is not None
    assert (dump.finished.rids, dump.finished.indptr.tolist()) == (("old",), [0, 3])


@pytest.mark.parametrize(
    ("mode", "computed", "prefix", "extend"),
    [
        ("extend", True, [9, 6], [0, 0]),
        ("extend", False, [0, 0], [9, 6]),
        ("draft_extend_v2", False, [0, 0], [9, 6]),
        ("target_verify", False, [9, 6], [3, 3]),
        ("target_verify", True, [9, 6], [0, 0]),
    ],
)
def test_lengths_of_each_kind_of_pass(mode: str, computed: bool, prefix: list[int], extend: list[int]) -> None:
    manager = Manager()
    batch = manager.forward("extend", [0, 0], [9, 6])
    batch.forward_mode, batch.spec_info = Mode(mode), SimpleNamespace(draft_token_num=3)
    requests = snapshot(manager, None, batch, computed=computed).requests
    assert requests is not None
    assert (requests.prefix_lens.tolist(), requests.extend_seq_lens.tolist()) == (prefix, extend)


def test_a_dump_torn_by_a_running_step_says_so() -> None:
    class Running(Manager):
        reads = 0

        @property
        def _outer_step_counter(self) -> int:
            self.reads += 1
            return self.reads

        @_outer_step_counter.setter
        def _outer_step_counter(self, value: int) -> None:
            pass

    dump = snapshot(Running())
    assert (dump.context["step"], dump.context["step_after"], dump.context["torn"]) == (1, 2, True)


def test_a_batch_without_names_or_tokens_is_read_all_the_same() -> None:
    manager = Manager()
    batch = manager.serve()
    batch.rids = batch.req_all_ids_flat = None
    batch.req_pool_indices = batch.req_pool_indices[:2]
    requests = snapshot(manager, None, batch).requests
    assert requests is not None
    assert requests.rids == ("row 2", "row 4")
    assert requests.expected_tokens is None


def test_the_table_rows_are_copies() -> None:
    manager = Manager()
    batch = manager.serve()
    dump = snapshot(manager, None, batch, kv_bytes="all")
    manager._req_to_token_pool.req_to_token.zero_()
    manager.pool.k_buffer[0].zero_()
    for stage in manager.canary.groups[0].stages.values():
        stage.records.zero_()
    assert violations(dump) == 0


def test_an_unknown_wish_is_refused() -> None:
    with pytest.raises(ArgumentError, match="kv_bytes: expected one of none, suspect, all, got 'some'"):
        snapshot(Manager(), kv_bytes="some")


def test_what_sglang_wrote_is_clean_before_the_bug() -> None:
    dump = load_dump(DATA / "sglang_clean.pt")
    result = check_dump(dump, engine="cpu")
    assert (dump.producer["engine"], dump.producer["engine_version"]) == ("sglang", "0.5.23")
    assert [check.num_entries for check in result.checks] == [34, 34, 14] * 2
    assert result.num_violations == 0
    assert diagnose(dump, result).findings == ()


def test_what_sglang_wrote_is_corrupt_after_it() -> None:
    dump = load_dump(DATA / "sglang_double_allocation.pt")
    result = check_dump(dump, engine="cpu")
    assert result.num_violations == 8
    (finding,) = diagnose(dump, result).findings
    assert (finding.fault, finding.slots, set(finding.requests)) == (
        "slot_owned_twice",
        (33,),
        {"request-a", "request-b"},
    )
    assert all(path.stat().st_size < 150_000 for path in DATA.glob("*.pt"))


def test_the_step_is_stamped_by_device_counters_too() -> None:
    manager = Manager()
    manager.serve()
    radix = full(manager)
    walk = radix.tree_core.walk_for_kv_canary

    def walk_while_a_kernel_runs(**flags: bool) -> Any:
        manager._device_state.kernel_run_counters += torch.ones(12, dtype=torch.int64)
        return walk(**flags)

    radix.tree_core.walk_for_kv_canary = walk_while_a_kernel_runs
    assert snapshot(manager, radix).context["torn"] is True
