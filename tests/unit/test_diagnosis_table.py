"""Faults of the table, its rows and its copies: each with a case, and a near miss that is no fault."""

from __future__ import annotations

import pytest
import torch
from diagnosis_world import World

from canary_numba.findings import CERTAIN, CORRUPT, LATENT

MODES = [
    pytest.param({}, id="all"),
    pytest.param({"page": 4}, id="pages"),
    pytest.param({"mode": "none"}, id="no K/V hash"),
    pytest.param({"tokens": False}, id="no tokens"),
    pytest.param({"tokens": False, "page": 4, "head": False}, id="no tokens, pages, TAIL only"),
    pytest.param({"halves": "K", "head": False}, id="one buffer"),
    pytest.param({"window": 16}, id="window"),
]


@pytest.mark.parametrize("mode", MODES)
def test_entry_out_of_range(mode: dict) -> None:
    world = World(**mode)
    world.table[world.rows["c"], 5] = world.num_slots
    world.table[world.rows["c"], 6] = -7
    found = world.only("slot_out_of_range")
    assert (found.severity, found.confidence) == (CORRUPT, CERTAIN)
    assert found.positions == {"c": (5, 6)}
    assert found.slots == (-7, world.num_slots)


def test_the_last_slot_is_in_range() -> None:
    world = World()
    last = world.num_slots - 1
    world.pool.remove(last)
    world.write(last, world.tokens["c"][5], 5, world.chain("c", 5))
    world.table[world.rows["c"], 5] = last
    world.kv["FULL", "K"][last] = 0
    assert {f.fault for f in world.findings()} <= {"kv_bytes_changed"}


@pytest.mark.parametrize("mode", MODES)
def test_zero_entry_inside_the_prefix(mode: dict) -> None:
    world = World(**mode)
    world.table[world.rows["c"], 4:6] = 0
    found = world.only("unallocated_slot_in_prefix")
    assert found.positions == {"c": (4, 5)}
    assert found.confidence == CERTAIN


def test_zero_entries_past_the_prefix_are_none() -> None:
    world = World()
    assert not world.table[world.rows["c"], len(world.tokens["c"]) :].any()
    assert world.findings() == []


def test_more_cached_than_allocated() -> None:
    world = World()
    lens = torch.tensor([len(world.tokens[name]) for name in world.names])
    world.more_requests["allocated_lens"] = lens + 1
    assert world.findings() == []
    world.more_requests["allocated_lens"] = lens - torch.tensor([0, 0, 2])
    assert world.only("unallocated_slot_in_prefix").requests == ("c",)


@pytest.mark.parametrize("mode", MODES)
def test_duplicate_slot(mode: dict) -> None:
    world = World(**mode)
    world.table[world.rows["c"], 3] = world.slots["c"][9]
    found = world.only("duplicate_slot_in_request")
    assert found.positions == {"c": (3, 9)}
    assert found.slots == (world.slots["c"][9],)


@pytest.mark.parametrize("mode", MODES)
def test_two_requests_of_one_row(mode: dict) -> None:
    world = World(**mode)
    world.rows["c"] = world.rows["b"]
    found = world.findings()
    assert found[0].fault == "row_owned_twice"
    assert found[0].requests == ("b", "c")
    assert len([f for f in found if f.severity == CORRUPT]) == 1


def test_tail_that_others_own() -> None:
    world = World()
    end = len(world.tokens["c"])
    world.table[world.rows["c"], end : end + 2] = world.slots["a"][30:32]
    found = world.only("stale_row_tail")
    assert (found.severity, found.positions) == (LATENT, {"c": (end, end + 1)})


def test_tail_that_nobody_owns_or_the_cache_alone() -> None:
    world = World()
    end = len(world.tokens["c"])
    world.table[world.rows["c"], end : end + 2] = world.free()[:2]
    world.table[world.rows["c"], end + 2 : end + 4] = world.slots["old"][:2]
    assert world.findings() == []


def test_slots_about_to_be_written() -> None:
    world = World()
    end = len(world.tokens["c"])
    world.extend["c"] = 2
    world.table[world.rows["c"], end : end + 2] = world.take(2)
    assert world.findings() == []
    world.table[world.rows["c"], end + 1] = world.slots["a"][30]
    found = world.only("unlawful_sharing")
    assert found.severity == LATENT
    assert found.positions == {"c": (end + 1,), "a": (30,)}


def test_index_copy() -> None:
    world = World()
    lens = [len(world.tokens[name]) for name in world.names]
    indices = torch.tensor([slot for name in world.names for slot in world.slots[name]])
    world.more_requests["kv_indices"] = {"indptr": torch.tensor([0, *lens]).cumsum(0), "indices": indices}
    assert world.findings() == []
    indices[lens[0] + 3] = 1
    found = world.only("index_copy_stale")
    assert found.positions == {"b": (3,)}
    assert found.slots == (1,)


def test_free_lists() -> None:
    world = World(page=4)
    world.pool.append(world.slots["a"][0])
    found = world.only("live_slot_on_free_list")
    assert (found.severity, found.positions) == (LATENT, {"a": (0,), "b": (0,)})
    world.pool.pop()
    world.pool += world.pool[:2]
    found = world.only("double_free")
    assert sorted(found.slots) == sorted(world.pool[:2])


def test_a_cached_slot_on_the_free_list_has_no_request() -> None:
    world = World()
    world.pool.append(world.slots["old"][3])
    found = world.only("live_slot_on_free_list")
    assert found.requests == ()
    assert found.details["cached_only"]


def test_a_prefix_shared_across_adapters() -> None:
    world = World()
    world.more_requests["extra_keys"] = ["adapter-1", "adapter-1", None]
    assert world.findings() == []
    world.more_requests["extra_keys"] = ["adapter-1", "adapter-2", None]
    found = world.only("wrong_prefix_hit")
    assert set(found.requests) == {"a", "b"}
    assert found.positions == {"b": tuple(range(8))}
