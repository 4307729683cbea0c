"""Faults of K/V bytes: changed, copied, restored wrongly, written over a range, or never finite."""

from __future__ import annotations

import pytest
import torch
from diagnosis_world import World

from canary_numba.diagnosis import catalog, nonfinite
from canary_numba.findings import CERTAIN, CORRUPT, LATENT, NOTE


@pytest.mark.parametrize("halves", ["K", "V", "KV"])
def test_changed(halves: str) -> None:
    world = World()
    for half in halves:
        world.kv["FULL", half][world.slots["c"][6], 3] += 1
    found = world.only("kv_bytes_changed")
    assert found.positions == {"c": (6,)}
    assert found.details["half"] == "+".join(halves)


def test_changed_up_to_the_newest_token() -> None:
    world = World()
    for slot in world.slots["c"][20:]:
        world.kv["FULL", "K"][slot, 3] += 1
    found = world.only("kv_bytes_changed")
    assert found.positions == {"c": (20, 21, 22, 23)}
    assert found.details["newest"] == "c"


def test_a_shared_slot_names_all_who_share_it() -> None:
    world = World()
    world.kv["FULL", "K"][world.slots["a"][2], 3] += 1
    found = world.only("kv_bytes_changed")
    assert found.positions == {"a": (2,), "b": (2,)}
    assert found.details["cached_slots"] == 1


def test_changed_in_the_prefix_cache_alone() -> None:
    world = World()
    world.kv["FULL", "K"][world.slots["old"][4], 3] += 1
    found = world.only("kv_bytes_changed")
    assert (found.requests, found.slots) == ((), (world.slots["old"][4],))
    assert found.details["cached_only"]


def test_bytes_of_slots_of_nobody_may_change() -> None:
    world = World()
    world.kv["FULL", "K"][world.free(), 3] += 1
    assert world.findings() == []


def test_copied() -> None:
    world = World()
    target, origin = world.slots["c"][6], world.slots["a"][11]
    for content in world.kv.values():
        content[target] = content[origin]
    found = world.only("kv_bytes_copied")
    assert found.positions == {"c": (6,)}
    assert (found.details["copied_from"], found.details["half"]) == (origin, "K+V")


def test_zeroed_bytes_are_no_copy_of_empty_slots() -> None:
    world = World()
    world.kv["FULL", "K"][world.slots["c"][6]] = 0
    found = world.only("kv_bytes_changed")
    assert found.details["looks"] == "zero"


def test_restored_range() -> None:
    world = World(page=4)
    slots = world.slots["c"][8:12]
    world.extra["events"] = [
        {"kind": "restore", "slots": torch.tensor(slots), "step": 3, "request": "c", "source": "host"},
    ]
    assert world.findings() == []
    world.kv["FULL", "V"][slots] = 0
    found = world.only("restore_mismatch")
    assert found.positions == {"c": (8, 9, 10, 11)}
    assert found.details["whole"]


def test_a_slot_outside_the_event_is_no_restore_mismatch() -> None:
    world = World(page=4)
    world.extra["events"] = [{"kind": "restore", "slots": torch.tensor(world.slots["c"][8:12]), "step": 3}]
    world.kv["FULL", "V"][world.slots["c"][20]] += 1
    world.only("kv_bytes_changed")


@pytest.mark.parametrize("value", [0.0, 3.0, float("nan")])
def test_range_overwritten(value: float) -> None:
    world = World()
    world.kv["FULL", "K"][60:75] = value
    found = world.only("physical_range_overwritten")
    assert set(found.slots) <= set(range(60, 75))
    assert {r for r, _ in found.positions.items()} <= {"a", "b", "c"}


def test_a_request_that_owns_neighbours_is_no_physical_range() -> None:
    world = World(page=8)
    slots = world.slots["c"][8:16]
    assert slots == list(range(slots[0], slots[0] + 8))
    world.kv["FULL", "K"][slots] += 1
    assert world.only("kv_bytes_changed").positions == {"c": tuple(range(8, 16))}


def test_padded_rows() -> None:
    world = World(page=4)
    slots = [world.slots[name][p] for name in "abc" for p in (3, 11)]
    assert {slot % 4 for slot in slots} == {3}
    world.kv["FULL", "K"][slots] += 1
    found = world.only("padding_write")
    assert set(found.slots) == set(slots)


def test_flipped_hash() -> None:
    world = World()
    world.records["FULL", "TAIL", "K"][world.slots["c"][6], 3] ^= 1 << 17
    found = world.only("canary_field_bit_flip")
    assert (found.details["field"], found.details["bit"]) == ("real_kv_hash", 17)


def test_nan_from_the_beginning() -> None:
    world = World()
    slot = world.slots["c"][6]
    for content in world.kv.values():
        content[slot, 2] = float("inf")
    world.write(slot, world.tokens["c"][6], 6, world.chain("c", 6))
    world.kv["FULL", "V"][0, 0] = float("nan")
    found = world.only("nonfinite_kv")
    assert (found.severity, found.confidence) == (LATENT, CERTAIN)
    assert found.slots == (0, slot)
    assert found.details["in_use"] == 1


def test_bytes_of_a_large_dump_are_not_read_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.kv["FULL", "V"][0, 0] = float("nan")
    assert [finding.fault for finding in world.diagnose().findings] == ["nonfinite_kv"]
    for module in (catalog, nonfinite):
        monkeypatch.setattr(module, "MOST_BYTES_DECODED", catalog.kv_bytes(world.dump()) - 1)
    diagnosis = world.diagnose()
    assert diagnosis.findings == ()
    assert {one.fault: one.key for one in diagnosis.not_tested}["nonfinite_kv"] == "at most 8 GiB of K/V bytes"


def test_live_ring() -> None:
    world = World()
    slot = world.slots["c"][6]
    row = [2, slot, 6, 1, 1, 0, 0, 4]
    written = [2, slot, 6, 1, 1, 0, 0, 16]
    world.extra["violation_log"] = {
        "ring": torch.tensor([row, written], dtype=torch.int64),
        "write_index": torch.tensor([2], dtype=torch.int32),
    }
    found = world.only("stale_violation_log")
    assert (found.severity, found.details["rows"]) == (NOTE, 1)
    world.kv["FULL", "K"][slot, 3] += 1
    assert world.only("kv_bytes_changed").severity == CORRUPT
