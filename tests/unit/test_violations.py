"""Violation rows tied to requests: who owns a slot, at which position, and what cannot be told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from canary_numba.check import check_dump
from canary_numba.dump import Dump, load_dump
from canary_numba.dump.model import LiveLog, Requests
from canary_numba.layout import SLOT_OUT_OF_RANGE
from canary_numba.violation_list import ViolationList
from canary_numba.violations import Violation, live_violations

CLEAN = Path(__file__).parents[2] / "examples" / "dumps" / "clean.pt"


def found(dump: Dump, tag: str) -> list[Violation]:
    violations = ViolationList(dump, check_dump(dump, engine="cpu"))
    return [violation for violation in violations if violation.tag == tag]


def with_table(dump: Dump, **cells: int) -> Dump:
    """Put slots at table places named ``r<request>_p<position>``."""
    requests = parts(dump)
    table = requests.req_to_token.clone()
    for place, slot in cells.items():
        request, position = place[1:].split("_p")
        table[requests.req_pool_indices[int(request)], int(position)] = slot
    return replace(dump, requests=replace(requests, req_to_token=table))


def parts(dump: Dump) -> Requests:
    assert dump.requests is not None
    return dump.requests


def slot_at(dump: Dump, request: int, position: int) -> int:
    return int(parts(dump).req_to_token[parts(dump).req_pool_indices[request], position])


def with_bad_token(dump: Dump, slot: int) -> Dump:
    """Change the token that the K half's tail record of ``slot`` holds."""
    group = dump.groups[0]
    tail = group.halves["K"].tail
    assert tail is not None
    tail = tail.clone()
    tail.view(torch.int64)[slot, 0] += 1
    return replace(
        dump, groups=(replace(group, halves=dict(group.halves) | {"K": replace(group.halves["K"], tail=tail)}),)
    )


def test_a_shared_prefix_fails_once_for_each_request_that_holds_it() -> None:
    dump = load_dump(CLEAN)
    names = parts(dump).rids
    prefixes = {i: slot_at(dump, i, 0) for i in range(len(names))}
    shared = next(s for s in prefixes.values() if list(prefixes.values()).count(s) > 1)
    owners = [names[i] for i, slot in prefixes.items() if slot == shared]
    rows = [v for v in found(with_bad_token(dump, shared), "TAIL_K_FULL") if v.slot == shared]
    assert sorted(v.request or "" for v in rows) == sorted(owners)
    assert all(v.table_position == 0 and v.requests == tuple(owners) for v in rows)


def test_a_slot_of_two_requests_names_both_and_the_one_that_fails() -> None:
    clean = load_dump(CLEAN)
    slot = slot_at(clean, 3, 62)
    dump = with_table(clean, r1_p102=slot)
    (row,) = (v for v in found(dump, "TAIL_K_FULL") if v.slot == slot)
    names = parts(dump).rids
    assert (row.request, row.table_position, row.position) == (names[1], 102, 62)
    assert row.requests == (names[1], names[3])


def test_the_last_position_of_the_last_request_belongs_to_it() -> None:
    dump = load_dump(CLEAN)
    last = len(parts(dump).rids) - 1
    position = int(parts(dump).prefix_lens[last]) - 1
    slot = slot_at(dump, last, position)
    row = found(with_bad_token(dump, slot), "TAIL_K_FULL")[0]
    assert (row.slot, row.request, row.table_position) == (slot, parts(dump).rids[last], position)


def test_the_prefix_cache_names_the_live_owner_if_there_is_one() -> None:
    dump = load_dump(CLEAN)
    assert dump.radix is not None
    live = set(check_dump(dump, engine="cpu").checks[0].plan.verify_slot_indices.tolist())
    cached = dump.radix.slot_indices.tolist()
    orphan = next(slot for slot in cached if slot not in live)
    owned = next(slot for slot in cached if slot in live)
    (of_nobody,) = (v for v in found(_spoilt_kv(dump, orphan), "SWEEP_K_FULL") if v.slot == orphan)
    (of_one,) = (v for v in found(_spoilt_kv(dump, owned), "SWEEP_K_FULL") if v.slot == owned)
    place = int(dump.radix.positions[cached.index(orphan)])
    assert (of_nobody.request, of_nobody.requests, of_nobody.table_position) == (None, (), place)
    assert of_one.request == of_one.requests[0]
    alone = replace(dump, requests=None)
    (nameless,) = (v for v in found(_spoilt_kv(alone, owned), "SWEEP_K_FULL") if v.slot == owned)
    assert (nameless.request, nameless.requests) == (None, ())


def _spoilt_kv(dump: Dump, slot: int) -> Dump:
    group = dump.groups[0]
    half = group.halves["K"]
    tensor = half.sources[0].tensor.clone()
    tensor.view(torch.uint8)[slot, 0] ^= 1
    half = replace(half, sources=(replace(half.sources[0], tensor=tensor), *half.sources[1:]))
    return replace(dump, groups=(replace(group, halves=dict(group.halves) | {"K": half}),))


def test_window_slots_belong_to_positions_of_the_whole_request(shared: Path) -> None:
    dump = load_dump(shared / "dumps" / "swa_mapping_stale.pt")
    group = next(g for g in dump.groups if g.kind == "SWA")
    requests = parts(dump)
    mapping = group.full_to_swa_index_mapping
    assert mapping is not None
    rows = found(dump, "TAIL_K_SWA")
    assert len(rows) == 2
    for row in rows:
        assert row.request is not None
        assert row.table_position is not None
        request = requests.rids.index(row.request)
        prefix = int(requests.prefix_lens[request])
        assert prefix - group.swa_window_size <= row.table_position < prefix
        assert int(mapping[slot_at(dump, request, row.table_position)]) == row.slot


def test_a_table_entry_outside_the_pool_belongs_to_its_request() -> None:
    dump = with_table(load_dump(CLEAN), r1_p50=100_000)
    row = found(dump, "TAIL_K_FULL")[-1]
    name = parts(dump).rids[1]
    assert (row.slot, row.request, row.table_position, row.requests) == (100_000, name, 50, (name,))
    assert row.reasons == ["verify_slot_out_of_range"]


def test_rows_outside_the_table_do_not_make_requests_owners_of_one_slot() -> None:
    dump = load_dump(CLEAN)
    indices = parts(dump).req_pool_indices.clone()
    indices[1], indices[2] = 10**6, -3
    rows = found(replace(dump, requests=replace(parts(dump), req_pool_indices=indices)), "HEAD_K_FULL")
    assert {row.slot for row in rows} == {SLOT_OUT_OF_RANGE}
    assert {row.requests for row in rows} == {(parts(dump).rids[1],), (parts(dump).rids[2],)}
    assert all(row.requests == (row.request,) for row in rows)


def test_rows_are_sorted_by_tag_slot_and_position() -> None:
    dump = with_table(load_dump(CLEAN), r1_p50=100_000, r1_p20=400, r3_p10=-7)
    rows = ViolationList(dump, check_dump(dump, engine="cpu"))
    assert [row.order for row in rows] == sorted(row.order for row in rows)
    heads = [(row.slot, row.position) for row in rows if row.tag == "HEAD_K_FULL"]
    assert heads == sorted(heads)
    assert len(heads) > 3


def test_the_live_ring_holds_no_more_than_it_has_rows_for() -> None:
    ring = torch.arange(16).reshape(2, 8)
    ring[1, 0] = 77
    dump = replace(load_dump(CLEAN), violation_log=LiveLog(ring=ring, write_index=5))
    total, rows = live_violations(dump)
    assert total == 5
    assert [row.tag for row in rows] == ["HEAD_K_FULL", "UNKNOWN_77"]
    assert [row.slot for row in rows] == [1, 9]
    assert live_violations(replace(dump, violation_log=None)) == (0, ())
    log = LiveLog(ring=ring, write_index=1)
    assert [row.slot for row in live_violations(replace(dump, violation_log=log))[1]] == [1]
