"""Which faults a diagnosis names, by what the dump tells it: the hash mode, and whether tokens are known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from canary_numba.dump.model import Dump
from canary_numba.fault_names import FAULT_NAMES
from canary_numba.faults.history import simulate
from canary_numba.faults.options import HASH_MODES, HistoryOptions
from canary_numba.faults.score import MISSED, NAMED, SEEN, has_signature, try_fault

SERVERS: Final = (
    HistoryOptions(),
    HistoryOptions(page_size=4, window=24, dtype="float16", paged_sources=True, in_flight=True),
    HistoryOptions(page_size=16, dtype="float8_e4m3fn", interleaved=True, halves="K"),
    HistoryOptions(window=16, prefix_cache=False, layers=1, in_flight=True),
)
"""Kinds of server tried in turn; a fault strikes the first one that has a place for it."""

Column = tuple[str, bool]
"""Hash mode, and whether the requests' tokens are known."""
COLUMNS: Final[tuple[Column, ...]] = tuple((mode, tokens) for mode in HASH_MODES for tokens in (True, False))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """How often a fault was named, seen or missed in one kind of dump. ``signature``: whether it can show there."""

    named: int
    seen: int
    missed: int
    wrong: int
    signature: bool

    @property
    def tried(self) -> int:
        """Faults injected."""
        return self.named + self.seen + self.missed

    @property
    def verdict(self) -> str:
        """``named``, ``seen`` or ``missed``, whichever was worst; ``none`` where nothing was injected."""
        if not self.tried:
            return "none"
        return MISSED if self.missed else SEEN if self.seen else NAMED


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """The table: a cell for each fault and column."""

    seeds: int
    cells: dict[str, dict[Column, Cell]]

    @property
    def failures(self) -> tuple[str, ...]:
        """What should have been named and was missed, and what was claimed for certain and is wrong."""
        found = []
        for fault, row in self.cells.items():
            for (mode, tokens), cell in row.items():
                where = f"{fault} (hash mode {mode}, tokens {'known' if tokens else 'unknown'})"
                if cell.signature and cell.missed:
                    found.append(f"{where}: missed {cell.missed} of {cell.tried}")
                if cell.wrong:
                    found.append(f"{where}: {cell.wrong} wrong findings called certain")
        return tuple(found)


def measure(
    seeds: int, *, engine: str = "cpu", progress: Callable[[int, int], None] = lambda done, total: None
) -> Coverage:
    """Inject every fault into clean dumps of every kind, and diagnose them.

    Parameters
    ----------
    seeds
        Injections of each fault in each column.
    engine
        Who checks the dumps.
    progress
        Told the injections done and all there are.

    Raises
    ------
    ArgumentError, EngineUnavailableError
        The engine cannot run.
    """
    cells: dict[str, dict[Column, Cell]] = {fault: {} for fault in FAULT_NAMES}
    total, done = seeds * len(COLUMNS) * len(FAULT_NAMES), 0
    for column in COLUMNS:
        counts = {fault: Counter[str]() for fault in FAULT_NAMES}
        example: Dump | None = None
        for seed in range(seeds):
            dumps = _servers(seed, column)
            example = dumps(0)
            for fault in FAULT_NAMES:
                counts[fault] += _strike(dumps, fault, seed, engine)
                done += 1
                progress(done, total)
        for fault, count in counts.items():
            cells[fault][column] = Cell(
                named=count[NAMED],
                seen=count[SEEN],
                missed=count[MISSED],
                wrong=count["wrong"],
                signature=example is not None and has_signature(fault, example),
            )
    return Coverage(seeds=seeds, cells=cells)


def _servers(seed: int, column: Column) -> Callable[[int], Dump]:
    """Clean dumps of one column by number, each simulated when it is asked for and then kept."""
    mode, tokens = column
    made: dict[int, Dump] = {}

    def dump(number: int) -> Dump:
        if number not in made:
            server = SERVERS[(seed + number) % len(SERVERS)]
            made[number] = simulate(seed, options=replace(server, hash_mode=mode, tokens=tokens))
        return made[number]

    return dump


def _strike(dumps: Callable[[int], Dump], fault: str, seed: int, engine: str) -> Counter[str]:
    for number in range(len(SERVERS)):
        outcome = try_fault(dumps(number), fault, seed, engine=engine)
        if outcome is not None:
            return Counter({outcome.result: 1, "wrong": len(outcome.wrong)})
    return Counter()
