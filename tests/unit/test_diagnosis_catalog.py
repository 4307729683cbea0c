"""The catalog of faults, what could not be tested, and how findings are merged and ordered."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from diagnosis_world import World

from canary_numba.check import check_dump
from canary_numba.diagnosis import diagnose
from canary_numba.diagnosis.case import span
from canary_numba.diagnosis.catalog import FAULTS
from canary_numba.findings import CORRUPT, LATENT, NOTE

NAMES = [
    "slot_owned_twice",
    "live_slot_on_free_list",
    "double_free",
    "duplicate_slot_in_request",
    "unlawful_sharing",
    "table_points_elsewhere",
    "stale_table_row",
    "row_recycled",
    "row_owned_twice",
    "stale_row_tail",
    "index_copy_stale",
    "slot_out_of_range",
    "unallocated_slot_in_prefix",
    "slots_never_written",
    "slots_exchanged",
    "foreign_block",
    "positions_shifted",
    "tokens_differ_from_request",
    "wrong_prefix_hit",
    "canary_field_bit_flip",
    "kv_bytes_changed",
    "restore_mismatch",
    "kv_bytes_copied",
    "canary_stale",
    "physical_range_overwritten",
    "padding_write",
    "swa_slot_evicted_in_window",
    "swa_mapping_points_elsewhere",
    "component_missing",
    "ranks_disagree",
    "nonfinite_kv",
    "unexplained",
    "stale_violation_log",
]


def test_every_fault_is_there() -> None:
    assert set(FAULTS) == set(NAMES)
    for fault in FAULTS.values():
        assert fault.severity in (CORRUPT, LATENT, NOTE)
        assert fault.summary
        assert fault.signature
        assert fault.next_steps
        assert fault.keys
        assert set(fault.mistaken_for) <= set(FAULTS)


def test_what_a_bare_dump_does_not_allow() -> None:
    dump = World().dump()
    bare = replace(dump, allocator=None, radix=None, requests=None, finished=None)
    diagnosis = diagnose(bare, check_dump(bare, engine="cpu"))
    missing = {one.fault: one.key for one in diagnosis.not_tested}
    assert missing["double_free"] == "allocator.free_slots"
    assert missing["row_owned_twice"] == "requests"
    assert missing["slot_owned_twice"] == "requests or radix"
    assert diagnosis.findings == ()
    assert set(diagnosis.tested) | set(missing) == set(FAULTS)


def test_a_full_dump_allows_most() -> None:
    diagnosis = World(window=16).diagnose()
    missing = {one.fault for one in diagnosis.not_tested}
    assert missing <= {
        "index_copy_stale",
        "ranks_disagree",
        "restore_mismatch",
        "stale_violation_log",
        "unlawful_sharing",
    }


def test_order_is_by_severity_then_cause() -> None:
    world = World()
    world.pool.append(world.slots["old"][3])
    world.kv["FULL", "K"][world.slots["c"][6], 3] += 1
    world.table[world.rows["b"], 20] = 0
    assert [f.fault for f in world.findings()] == [
        "unallocated_slot_in_prefix",
        "kv_bytes_changed",
        "live_slot_on_free_list",
    ]


def test_separate_runs_stay_apart() -> None:
    world = World()
    for p in (3, 4, 15):
        world.kv["FULL", "K"][world.slots["c"][p], 3] += 1
    assert sorted(f.positions["c"] for f in world.findings()) == [(3, 4), (15,)]


def test_names_that_occur_twice_are_told_apart() -> None:
    world = World()
    world.table[world.rows["c"], 5] = 0
    world.more_requests["rids"] = ["same", "same", "same"]
    assert world.only("unallocated_slot_in_prefix").requests == ("same (2)",)


def test_the_diagnosis_is_the_same_each_time() -> None:
    world = World(seed=3)
    world.table[world.rows["c"], 5] = world.slots["a"][30]
    world.kv["FULL", "V"][world.slots["b"][20], 3] += 1
    assert world.diagnose() == world.diagnose()


def test_spans() -> None:
    assert span([3, 1, 2, 9]) == "1-3, 9"
    assert span(np.arange(0, 40, 2), limit=3) == "0, 2, 4, ... (20 in all)"
    assert span([]) == ""
