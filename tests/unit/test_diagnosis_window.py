"""Faults of sliding-window pools: eviction, mapping, and a pool that was left out."""

from __future__ import annotations

import pytest
from diagnosis_world import World

from canary_numba.findings import CERTAIN


@pytest.mark.parametrize("tokens", [True, False])
def test_evicted_inside_the_window(tokens: bool) -> None:
    world = World(window=12, tokens=tokens)
    world.mapping[world.slots["c"][18]] = 0
    found = world.only("swa_slot_evicted_in_window")
    assert (found.positions, found.slots) == ({"c": (18,)}, (world.slots["c"][18],))
    assert found.confidence == CERTAIN


def test_evicted_outside_the_window() -> None:
    world = World(window=12)
    world.mapping[world.slots["c"][:12]] = 0
    assert world.findings() == []


def test_released_by_a_request_that_is_further_on() -> None:
    world = World(window=30)
    assert len(world.tokens["a"]) - 30 > 8
    world.mapping[world.slots["a"][:8]] = 0
    assert world.findings() == []


@pytest.mark.parametrize("tokens", [True, False])
def test_mapping_crossed(tokens: bool) -> None:
    world = World(window=12, tokens=tokens)
    world.mapping[world.slots["c"][18]] = world.mapping[world.slots["a"][35]]
    found = world.only("swa_mapping_points_elsewhere")
    assert (found.positions, found.slots) == ({"c": (18,)}, (world.slots["c"][18],))
    assert (found.details["owner"], found.details["owner_position"]) == ("a", 35)


@pytest.mark.parametrize("tokens", [True, False])
def test_window_records_lost(tokens: bool) -> None:
    world = World(window=12, tokens=tokens)
    slots = [int(world.mapping[s]) for s in world.slots["c"][14:18]]
    for (kind, _, _), buf in world.records.items():
        if kind == "SWA":
            buf[slots] = 0
    for (kind, _), content in world.kv.items():
        if kind == "SWA":
            content[slots] = 0
    found = world.only("component_missing")
    assert found.positions == {"c": (14, 15, 16, 17)}
    assert found.details["missing"] == "SWA"


def test_bytes_changed_in_the_window_pool() -> None:
    world = World(window=12)
    world.kv["SWA", "K"][int(world.mapping[world.slots["c"][18]]), 1] += 1
    found = world.only("kv_bytes_changed")
    assert found.positions == {"c": (18,)}


def test_bit_flip_is_told_by_the_full_pool() -> None:
    world = World(window=40, tokens=False, head=False, halves="K")
    world.records["SWA", "TAIL", "K"][int(world.mapping[world.slots["c"][2]]), 0] ^= 1 << 9
    found = world.only("canary_field_bit_flip")
    assert (found.positions, found.details["field"], found.details["bit"]) == ({"c": (2,)}, "token", 9)
