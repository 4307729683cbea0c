"""Differences of two dumps: a server's own steps are explained, damage in between is not."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from canary_numba.diff import DumpDiff, diff_dumps
from canary_numba.dump import Dump, load_dump
from canary_numba.errors import ArgumentError
from canary_numba.faults import draw_options, inject
from canary_numba.faults.history import dump_of
from canary_numba.faults.server import Server


def history(seed: int, lengths: tuple[int, ...]) -> list[Dump]:
    """Dumps of one simulated server, ``lengths`` steps apart."""
    options = replace(draw_options(seed), in_flight=False)
    server = Server(seed, options)
    found = []
    for length in (options.steps - 4, *lengths):
        for _ in range(length):
            server.step()
        server.writes.flush()
        found.append(deepcopy(dump_of(server)))
    return found


def retract(server: Server) -> str:
    """Take the slots of the live request with the most tokens, as a server without a free slot does; it waits again."""
    request = max(server.live, key=lambda one: one.cached)
    for node in request.held:
        node.locks -= 1
    server._free(request.pages[len(request.held) :])
    server.live.remove(request)
    server.free_rows.append(request.row)
    # What it had generated is part of what has to be computed again.
    request.prompt, request.cached, request.held, request.pages = max(request.prompt, request.cached), 0, [], []
    return request.rid


def retracted(seed: int, steps: int) -> tuple[Dump, Dump, str]:
    """Dumps before a retraction, and ``steps`` steps after the request was admitted again."""
    options = replace(draw_options(seed), in_flight=False)
    server = Server(seed, options)
    for _ in range(options.steps - 4):
        server.step()
    server.writes.flush()
    before = deepcopy(dump_of(server))
    request = max(server.live, key=lambda one: one.cached)
    rid = retract(server)
    # Others get some of its slots meanwhile.
    server.step()
    server._admit(request)
    for _ in range(steps):
        server.step()
    server.writes.flush()
    return before, deepcopy(dump_of(server)), rid


def changes_of(diff: DumpDiff, rid: str) -> dict[str, tuple[bool, int]]:
    return {change.what: (change.explained, len(change.numbers)) for change in diff.changes if change.request == rid}


def unexplained(diff: DumpDiff) -> list[tuple[str, str | None, tuple[int, ...]]]:
    return [(change.part, change.request, change.numbers) for change in diff.changes if not change.explained]


@pytest.mark.parametrize("seed", range(12))
def test_the_steps_of_a_server_are_explained(seed: int) -> None:
    before, *others = history(seed, (1, 3))
    for after in others:
        diff = diff_dumps(before, after)
        assert diff.changes
        assert unexplained(diff) == []


# 53: one half is not used; 101: the request gets a page of its own back, for other positions.
@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("seed", [*range(12), 53, 101])
def test_a_retraction_is_explained(seed: int, steps: int) -> None:
    before, after, rid = retracted(seed, steps)
    diff = diff_dumps(before, after)
    assert unexplained(diff) == []
    assert changes_of(diff, rid)


def test_what_a_retraction_looks_like() -> None:
    found = [changes_of(diff_dumps(*dumps), rid) for *dumps, rid in (retracted(seed, 1) for seed in range(12))]
    lost, moved = (
        "retracted: cached tokens given back",
        "table entries of cached tokens changed: the same tokens, in other slots",
    )
    for what in (lost, moved):
        assert sum(what in changes for changes in found) >= 3
    assert all(changes[what][0] for changes in found for what in (lost, moved) if what in changes)


def shrunk(dump: Dump, free: bool) -> tuple[Dump, str, tuple[int, ...]]:
    """The dump with one request short of its last five tokens, whose slots nobody else holds: freed or lost."""
    requests, allocator = dump.requests, dump.allocator
    assert requests is not None
    assert allocator is not None
    index = int(requests.prefix_lens.argmax())
    row, length = int(requests.req_pool_indices[index]), int(requests.prefix_lens[index])
    lens = requests.prefix_lens.clone()
    lens[index] -= 5
    slots = requests.req_to_token[row, length - 5 : length].to(torch.int64)
    if free:
        allocator = replace(allocator, free_slots=torch.cat([allocator.free_slots, slots]))
    shorter = replace(dump, requests=replace(requests, prefix_lens=lens), allocator=allocator)
    return shorter, requests.rids[index], tuple(range(length - 5, length))


@pytest.mark.parametrize("free", [True, False])
def test_lost_tokens_are_explained_when_their_slots_went_somewhere(free: bool, shared: Path) -> None:
    dump = load_dump(shared / "dumps" / "clean.pt")
    shorter, rid, positions = shrunk(dump, free)
    (change,) = [one for one in diff_dumps(dump, shorter).changes if one.request == rid]
    assert (change.part, change.explained, change.numbers) == ("lengths", free, positions)
    told = replace(shorter, allocator=None)
    assert [one.explained for one in diff_dumps(dump, told).changes if one.request == rid] == [False]


@pytest.mark.parametrize("seed", [0, 2, 4, 5])
def test_damage_beside_a_retraction_is_not_explained(seed: int) -> None:
    before, after, rid = retracted(seed, 3)
    assert after.requests is not None
    index = after.requests.rids.index(rid)
    row, length = int(after.requests.req_pool_indices[index]), int(after.requests.prefix_lens[index])
    slot = int(after.requests.req_to_token[row, length // 2])
    for half in after.groups[0].halves.values():
        for buf in half.buffers.values():
            buf[slot, 0] ^= 1
    whats = {change.what for change in diff_dumps(before, after).changes if not change.explained}
    assert whats & {"table entries of cached tokens changed", "cached tokens lost"}


def test_a_dump_does_not_differ_from_itself() -> None:
    (dump,) = history(3, ())
    assert diff_dumps(dump, dump) == DumpDiff(changes=(), not_compared=())


@pytest.mark.parametrize(
    ("fault", "part"),
    [
        ("kv_bytes_changed", "K/V bytes"),
        ("canary_field_bit_flip", "records"),
        ("slot_owned_twice", "records"),
        ("table_points_elsewhere", "table"),
        ("live_slot_on_free_list", "FULL free list"),
        ("slots_never_written", "records"),
    ],
)
def test_damage_is_not_explained(fault: str, part: str, shared: Path) -> None:
    dump = load_dump(shared / "dumps" / "clean.pt")
    broken, label = inject(dump, fault, 5)
    found = [change for change in diff_dumps(dump, broken).changes if not change.explained]
    chosen = [change for change in found if part in change.part]
    assert chosen
    numbers = {number for change in chosen for number in change.numbers}
    places = {position for positions in label.positions.values() for position in positions}
    assert numbers & (places if part == "table" else set(label.slots))


def test_dumps_of_other_servers(shared: Path) -> None:
    clean, window = (load_dump(shared / "dumps" / f"{name}.pt") for name in ("clean", "clean_swa"))
    with pytest.raises(ArgumentError, match="groups"):
        diff_dumps(clean, window)


def test_what_one_dump_lacks_is_said(shared: Path) -> None:
    dump = load_dump(shared / "dumps" / "clean.pt")
    diff = diff_dumps(dump, replace(dump, requests=None, allocator=None, radix=None))
    assert {"requests", "prefix cache", "FULL free list"} <= set(diff.not_compared)
