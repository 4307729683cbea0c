"""Differences of two dumps: a server's own steps are explained, damage in between is not."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest

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


def unexplained(diff: DumpDiff) -> list[tuple[str, str | None, tuple[int, ...]]]:
    return [(change.part, change.request, change.numbers) for change in diff.changes if not change.explained]


@pytest.mark.parametrize("seed", range(12))
def test_the_steps_of_a_server_are_explained(seed: int) -> None:
    before, *others = history(seed, (1, 3))
    for after in others:
        diff = diff_dumps(before, after)
        assert diff.changes
        assert unexplained(diff) == []


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
