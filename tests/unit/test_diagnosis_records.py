"""Faults of records: whose they are, whether they were written, and what damaged them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from diagnosis_world import ANCHOR, World, signed

from canary_numba.findings import LIKELY
from canary_numba.mixing import splitmix64_mix3

MODES = [
    pytest.param({}, id="all"),
    pytest.param({"page": 4}, id="pages"),
    pytest.param({"mode": "none"}, id="no K/V hash"),
    pytest.param({"tokens": False}, id="no tokens"),
    pytest.param({"tokens": False, "page": 4, "head": False}, id="no tokens, pages, TAIL only"),
    pytest.param({"halves": "K", "head": False}, id="one buffer"),
    pytest.param({"window": 16}, id="window"),
]
WITH_TOKENS = [mode for mode in MODES if mode.values[0].get("tokens", True)]


@pytest.mark.parametrize("mode", MODES)
def test_double_allocation(mode: dict) -> None:
    world = World(**mode)
    slot = world.slots["a"][20]
    h = world.chain("c", 3)
    lost = world.slots["c"][3]
    world.table[world.rows["c"], 3] = slot
    world.fill_bytes(slot)
    world.write(slot, world.tokens["c"][3], 3, h)
    world.each([lost], [0, 0, 0, 0])
    found = world.only("slot_owned_twice")
    assert set(found.requests) == {"a", "c"}
    assert found.positions == {"a": (20,), "c": (3,)}
    assert found.details["writer"] == "c"
    assert found.details["recovered_tokens"] == {"20": world.tokens["a"][20]}


def test_late_write_of_a_finished_request() -> None:
    world = World()
    old = [int(t) for t in world.rng.integers(1, 32000, 30)]
    world.extra["finished"] = {
        "rids": ["gone"],
        "indptr": torch.tensor([0, 30]),
        "tokens": torch.tensor(old, dtype=torch.int32),
    }
    h = ANCHOR
    for p in range(11):
        h = splitmix64_mix3(h, old[p], p)
    world.write(world.slots["c"][5], old[11], 11, h)
    found = world.only("slot_owned_twice")
    assert found.positions == {"c": (5,)}
    assert found.details["writer"] == "gone"
    assert found.details["owner_position"] == 11


@pytest.mark.parametrize("mode", MODES)
def test_table_entry_overwritten(mode: dict) -> None:
    world = World(**mode)
    world.table[world.rows["c"], 5] = world.slots["a"][30]
    found = world.only("table_points_elsewhere")
    assert found.positions == {"c": (5,)}
    assert (found.details["owner"], found.details["owner_position"]) == ("a", 30)
    assert found.details["orphan_copies"] == [world.slots["c"][5]]


def test_an_equal_record_elsewhere_is_harmless() -> None:
    world = World()
    twin = world.take(1)[0]
    world.write(twin, world.tokens["c"][5], 5, world.chain("c", 5))
    world.table[world.rows["c"], 5] = twin
    assert world.findings() == []


@pytest.mark.parametrize("mode", MODES)
def test_stale_row(mode: dict) -> None:
    world = World(**mode)
    world.table[world.rows["c"], 8:12] = world.slots["a"][8:12]
    found = world.only("stale_table_row")
    assert found.positions == {"c": (8, 9, 10, 11)}
    assert found.slots == tuple(world.slots["a"][8:12])
    assert found.details["owner"] == "a"


@pytest.mark.parametrize("mode", WITH_TOKENS)
def test_whole_row_recycled(mode: dict) -> None:
    world = World(**mode)
    count = len(world.tokens["c"])
    world.table[world.rows["c"], :count] = world.slots["a"][:count]
    found = world.only("row_recycled")
    assert found.requests == ("c",)
    assert found.details["owner"] == "a"


@pytest.mark.parametrize("mode", WITH_TOKENS)
def test_wrong_prefix(mode: dict) -> None:
    world = World(**mode)
    own = world.slots["c"]
    world.table[world.rows["c"], :8] = world.slots["a"][:8]
    h = world.chain("a", 8)
    for p in range(8, len(own)):
        world.write(own[p], world.tokens["c"][p], p, h)
        h = splitmix64_mix3(h, world.tokens["c"][p], p)
    found = world.only("wrong_prefix_hit")
    assert found.positions == {"c": tuple(range(8))}
    assert found.details["owner"] == "a"


@pytest.mark.parametrize("page", [4, 8])
@pytest.mark.parametrize("tokens", [True, False])
def test_foreign_block(page: int, tokens: bool) -> None:
    world = World(page=page, tokens=tokens)
    h = ANCHOR
    for p in range(page):
        h = splitmix64_mix3(h, 999 + p, p)
    for p in range(page, 2 * page):
        slot = world.slots["c"][p]
        world.fill_bytes(slot)
        world.write(slot, 7000 + p, p, h)
        h = splitmix64_mix3(h, 7000 + p, p)
    found = world.only("foreign_block")
    assert found.positions == {"c": tuple(range(page, 2 * page))}


@pytest.mark.parametrize("mode", MODES)
def test_never_written(mode: dict) -> None:
    world = World(**{**mode, "window": 0})
    slots = world.slots["c"][8:12]
    world.each(slots, [0, 0, 0, 0])
    for half in world.halves:
        world.kv["FULL", half][slots] = 0
    found = world.only("slots_never_written")
    assert found.positions == {"c": (8, 9, 10, 11)}
    assert found.slots == tuple(slots)


def test_never_written_from_the_start_or_to_the_end() -> None:
    for begin, end in ((0, 3), (20, 24)):
        world = World()
        slots = world.slots["c"][begin:end]
        world.each(slots, [0, 0, 0, 0])
        for half in world.halves:
            world.kv["FULL", half][slots] = 0
        assert world.only("slots_never_written").positions == {"c": tuple(range(begin, end))}


@pytest.mark.parametrize("mode", MODES)
def test_pages_exchanged(mode: dict) -> None:
    world = World(**{**mode, "window": 0})
    first, second = world.slots["c"][4:8], world.slots["c"][12:16]
    for buf in [*world.records.values(), *world.kv.values()]:
        buf[first + second] = buf[second + first]
    found = world.only("slots_exchanged")
    assert found.positions == {"c": (4, 5, 6, 7, 12, 13, 14, 15)}


@pytest.mark.parametrize("mode", MODES)
def test_neighbouring_pages_exchanged(mode: dict) -> None:
    world = World(**{**mode, "window": 0})
    first, second = world.slots["c"][4:8], world.slots["c"][8:12]
    for buf in [*world.records.values(), *world.kv.values()]:
        buf[first + second] = buf[second + first]
    assert world.only("slots_exchanged").positions == {"c": tuple(range(4, 12))}


@pytest.mark.parametrize("mode", MODES)
def test_page_repeated(mode: dict) -> None:
    world = World(**{**mode, "window": 0})
    first, second = world.slots["c"][4:8], world.slots["c"][12:16]
    for buf in [*world.records.values(), *world.kv.values()]:
        buf[first] = buf[second]
    found = world.only("slots_exchanged")
    assert found.positions == {"c": (4, 5, 6, 7)}
    assert found.details["delta"] == 8


@pytest.mark.parametrize("delta", [1, -8, 8])
@pytest.mark.parametrize("mode", MODES)
def test_positions_shifted(mode: dict, delta: int) -> None:
    world = World(**mode)
    h = world.chain("c", 8)
    for p in range(8, len(world.slots["c"])):
        world.write(world.slots["c"][p], world.tokens["c"][p], p + delta, h)
        h = splitmix64_mix3(h, world.tokens["c"][p], p + delta)
    found = world.only("positions_shifted")
    assert found.positions == {"c": tuple(range(8, 24))}
    assert found.details["delta"] == delta


@pytest.mark.parametrize("mode", WITH_TOKENS)
def test_other_tokens_processed(mode: dict) -> None:
    world = World(**mode)
    h = world.chain("c", 8)
    for p in range(8, len(world.slots["c"])):
        token = world.tokens["c"][p] + (p < 11)
        world.write(world.slots["c"][p], token, p, h)
        h = splitmix64_mix3(h, token, p)
    found = world.only("tokens_differ_from_request")
    assert found.positions == {"c": (8, 9, 10)}


def test_placeholders_of_images_are_a_note() -> None:
    world = World()
    h = world.chain("c", 8)
    for p in range(8, len(world.slots["c"])):
        token = 5 if p < 11 else world.tokens["c"][p]
        world.write(world.slots["c"][p], token, p, h)
        h = splitmix64_mix3(h, token, p)
    world.tokens["c"][8:11] = [1 << 29] * 3
    assert world.only("tokens_differ_from_request").severity == "note"


FLIPS = [("token", 0, 3), ("position", 1, 2), ("prev_hash", 2, 41)]


@pytest.mark.parametrize(("name", "field", "bit"), FLIPS)
@pytest.mark.parametrize("mode", MODES)
def test_bit_flip_in_one_buffer(mode: dict, name: str, field: int, bit: int) -> None:
    world = World(**mode)
    buf = world.records["FULL", "TAIL", "K"]
    buf[world.slots["c"][6], field] ^= 1 << bit
    found = world.only("canary_field_bit_flip")
    assert found.positions == {"c": (6,)}
    assert (found.details["field"], found.details["bit"]) == (name, bit)


@pytest.mark.parametrize(("name", "field", "bit"), FLIPS)
@pytest.mark.parametrize("tokens", [True, False])
def test_bit_flip_in_every_buffer(tokens: bool, name: str, field: int, bit: int) -> None:
    world = World(tokens=tokens)
    for buf in world.records.values():
        buf[world.slots["c"][6], field] ^= 1 << bit
    found = world.only("canary_field_bit_flip")
    assert (found.positions, found.details["field"], found.details["bit"]) == ({"c": (6,)}, name, bit)


def test_bit_flip_in_the_prefix_cache() -> None:
    world = World()
    world.records["FULL", "TAIL", "V"][world.slots["old"][4], 1] ^= 4
    found = world.only("canary_field_bit_flip")
    assert found.requests == ()
    assert found.slots == (world.slots["old"][4],)
    assert found.details["cached_only"]


def test_field_zeroed_over_a_range_of_the_pool() -> None:
    world = World()
    for buf in (world.records["FULL", "TAIL", "K"], world.records["FULL", "TAIL", "V"]):
        buf[40:120, 0] = 0
    found = world.only("physical_range_overwritten")
    assert found.details["field"] == "token"
    assert set(found.slots) <= set(range(40, 120))


@pytest.mark.parametrize("tokens", [True, False])
def test_one_token_in_every_buffer_over_a_range_of_the_pool(tokens: bool) -> None:
    world = World(tokens=tokens)
    for (kind, _, _), buf in world.records.items():
        if kind == "FULL":
            buf[60:80, 0] = 7
    found = world.only("physical_range_overwritten")
    assert found.details["field"] == "token"
    assert len(found.requests) > 1
    assert set(found.slots) <= set(range(60, 80))


@pytest.mark.parametrize("value", [0, -1])
@pytest.mark.parametrize("tokens", [True, False])
def test_records_wiped_over_a_range_of_the_pool(tokens: bool, value: int) -> None:
    world = World(tokens=tokens)
    world.each(list(range(60, 90)), [value] * 4)
    for half in world.halves:
        world.kv["FULL", half][60:90] = value
    found = world.only("physical_range_overwritten")
    assert set(found.slots) <= set(range(60, 90))
    assert len(found.requests) > 1


def test_everything_wrong_accuses_the_reader() -> None:
    world = World()
    for buf in world.records.values():
        buf[:] = world.rng.integers(1, 30, buf.shape)
    found = world.only("unexplained")
    assert "reader" in found.summary


def test_one_half_lost() -> None:
    world = World()
    slots = world.slots["c"][4:10]
    for stage in ("HEAD", "TAIL"):
        world.records["FULL", stage, "V"][slots] = 0
    world.kv["FULL", "V"][slots] = 0
    found = world.only("component_missing")
    assert found.details["missing"] == "V"
    assert found.positions == {"c": tuple(range(4, 10))}


def test_bytes_moved_without_their_records() -> None:
    world = World()
    targets = world.take(3)
    for target, p in zip(targets, range(5, 8), strict=True):
        source = world.slots["c"][p]
        world.write(target, 77 + p, 3 * p, signed(12345 + p) % 2**64)
        for content in world.kv.values():
            content[target] = content[source]
        world.table[world.rows["c"], p] = target
    found = world.only("canary_stale")
    assert found.positions == {"c": (5, 6, 7)}
    assert found.confidence == LIKELY


def test_garbage_is_unexplained() -> None:
    world = World(mode="none")
    world.each([world.slots["c"][6]], [-5, 1 << 50, 99, 0])
    found = world.only("unexplained")
    assert found.positions == {"c": (6,)}


def test_two_faults_stay_apart() -> None:
    world = World()
    world.table[world.rows["c"], 5] = world.slots["a"][30]
    world.kv["FULL", "K"][world.slots["b"][20], 3] += 1
    assert {f.fault for f in world.findings()} == {"table_points_elsewhere", "kv_bytes_changed"}


def test_stored_positions_are_not_trusted_as_indices() -> None:
    world = World()
    world.each([world.slots["c"][6]], np.array([1, 2**62, 3, 4]).tolist())
    assert world.findings()
