"""Ranks of one step, held against each other: tensor-parallel ranks do the same bookkeeping, or the model falls apart.

Each rank holds its share of the heads, so K/V bytes and their hashes differ lawfully. Tables, lengths, tokens,
positions and chains must be equal.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from canary_numba.diagnosis.rank_columns import columns_of
from canary_numba.dump.model import Dump
from canary_numba.findings import CERTAIN, CORRUPT, Finding

FAULT = "ranks_disagree"
SAME_STEP_KEYS = ("model", "step", "tp_size", "pp_rank", "dp_rank")
"""Facts of the context that two ranks of one step have in common; absent counts as equal to absent."""


MAX_RANKS = 4096
"""Missing ranks are named up to here; a dump may claim any ``tp_size``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSet:
    """The dumps of one step by rank, in order of rank, and the ranks of which there is no dump."""

    step: int
    tp_size: int
    dumps: dict[int, Dump]
    missing: tuple[int, ...]

    def describe_missing(self) -> str:
        """Say which ranks could not be compared."""
        noun = "rank" if len(self.missing) == 1 else "ranks"
        numbers = ", ".join(map(str, self.missing))
        return f"step {self.step}: no dump of {noun} {numbers} of {self.tp_size}, so not compared with the others"


def group_ranks(dumps: Sequence[Dump]) -> tuple[RankSet, ...]:
    """Sort dumps into steps of more than one rank; of two dumps of one rank the first counts."""
    steps: dict[Hashable, dict[int, Dump]] = defaultdict(dict)
    for dump in dumps:
        step, size, rank = (_whole(dump.context.get(key)) for key in ("step", "tp_size", "tp_rank"))
        if step is not None and size is not None and rank is not None and 0 <= rank < size and size > 1:
            steps[tuple(repr(dump.context.get(key)) for key in SAME_STEP_KEYS)].setdefault(rank, dump)
    return tuple(_rank_set(by_rank) for by_rank in steps.values())


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _rank_set(by_rank: dict[int, Dump]) -> RankSet:
    context = next(iter(by_rank.values())).context
    size = int(context["tp_size"])
    missing = [rank for rank in range(min(size, MAX_RANKS)) if rank not in by_rank]
    return RankSet(
        step=int(context["step"]),
        tp_size=size,
        dumps=dict(sorted(by_rank.items())),
        missing=tuple(missing),
    )


def compare_ranks(dumps: Sequence[Dump]) -> tuple[Finding, ...]:
    """Find requests on which the ranks of one step disagree.

    Dumps with equal ``step`` and ``tp_size`` and different ``tp_rank`` in their context (and equal ``model``,
    ``pp_rank`` and ``dp_rank``, where given) are ranks of one step; all others are left alone.

    Parameters
    ----------
    dumps
        Any dumps, in any order.

    Returns
    -------
    tuple of Finding
        One ``ranks_disagree`` for each request that is not the same on all ranks, in order of step and request: with
        every position that differs, what differs, which ranks deviate from the majority (with two ranks there is none),
        and which ranks had no dump.
    """
    return tuple(finding for ranks in group_ranks(dumps) for finding in _compare(ranks))


def _compare(ranks: RankSet) -> list[Finding]:
    if len(ranks.dumps) < 2:
        return []
    rows = {rank: _row_of(dump) for rank, dump in ranks.dumps.items()}
    names = list(dict.fromkeys(name for by_name in rows.values() for name in by_name))
    found = (
        _compare_request(ranks, name, {rank: by_name.get(name) for rank, by_name in rows.items()}) for name in names
    )
    return [finding for finding in found if finding is not None]


def _row_of(dump: Dump) -> dict[str, int]:
    return {} if dump.requests is None else {name: i for i, name in reversed(list(enumerate(dump.requests.rids)))}


def _compare_request(ranks: RankSet, name: str, places: dict[int, int | None]) -> Finding | None:
    absent = [rank for rank, place in places.items() if place is None]
    columns = {rank: columns_of(ranks.dumps[rank], place) for rank, place in places.items() if place is not None}
    kinds = set.intersection(*(set(column) for column in columns.values()))
    differing: dict[str, np.ndarray] = {}
    for kind in sorted(kinds):
        positions = _differing([column[kind] for column in columns.values()])
        if positions.size:
            differing[kind] = positions
    if not absent and not differing:
        return None
    positions = np.unique(np.concatenate([*differing.values(), np.empty(0, dtype=np.int64)])).astype(np.int64)
    keys: dict[int, Hashable] = {
        rank: tuple(_take(columns[rank][kind], differing[kind]) for kind in differing) if rank in columns else None
        for rank in places
    }
    return _finding(ranks, name, absent, differing, positions.tolist(), _odd_ones(keys))


def _differing(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Positions at which not all arrays ``[n, fields]`` are equal; beyond the end of the shortest all of them."""
    shortest, longest = min(map(len, arrays)), max(map(len, arrays))
    first = arrays[0][:shortest]
    unequal = np.zeros(longest, dtype=bool)
    unequal[shortest:] = True
    for other in arrays[1:]:
        unequal[:shortest] |= (other[:shortest] != first).any(axis=1)
    return np.flatnonzero(unequal)


def _take(column: np.ndarray, positions: np.ndarray) -> bytes:
    return bytes(column[positions[positions < len(column)]].tobytes())


def _odd_ones(keys: dict[int, Hashable]) -> list[int]:
    """Ranks that differ from what more than half of them have; none where no majority exists."""
    key, count = Counter(keys.values()).most_common(1)[0]
    return [rank for rank in keys if keys[rank] != key] if 2 * count > len(keys) else []


def _finding(
    ranks: RankSet,
    name: str,
    absent: list[int],
    differing: dict[str, np.ndarray],
    positions: list[int],
    deviating: list[int],
) -> Finding:
    everyone = ", ".join(map(str, ranks.dumps))
    who = "no majority tells which is right"
    if deviating:
        who = f"rank {', '.join(map(str, deviating))} differs from the others"
    if absent:
        there = ", ".join(str(rank) for rank in ranks.dumps if rank not in absent)
        summary = f"In step {ranks.step}, {name} is live on rank {there} but not on rank {', '.join(map(str, absent))}."
    else:
        summary = (
            f"In step {ranks.step}, ranks {everyone} disagree about {name} from position {positions[0]:,} on "
            f"({len(positions):,} {'position' if len(positions) == 1 else 'positions'}): {who}."
        )
    evidence = [
        f"{kind}: {len(places):,} differing, first at position {int(places[0]):,}" for kind, places in differing.items()
    ]
    evidence.append(f"compared: ranks {everyone} of {ranks.tp_size}")
    if ranks.missing:
        evidence.append(ranks.describe_missing())
    first = min(differing, key=lambda kind: int(differing[kind][0])) if differing else None
    return Finding(
        fault=FAULT,
        severity=CORRUPT,
        confidence=CERTAIN,
        summary=summary,
        requests=(name,),
        positions={name: tuple(positions)} if positions else {},
        evidence=tuple(evidence),
        next_steps=_next_steps(first, absent),
        details={
            "step": ranks.step,
            "tp_size": ranks.tp_size,
            "ranks": list(ranks.dumps),
            "deviating_ranks": deviating,
            "absent_ranks": absent,
            "missing_ranks": list(ranks.missing),
            "first_position": positions[0] if positions else None,
            "differing": {
                kind: {"positions": len(places), "first": int(places[0])} for kind, places in differing.items()
            },
            "paths": [dump.path for dump in ranks.dumps.values()],
        },
    )


def _next_steps(first: str | None, absent: list[int]) -> tuple[str, ...]:
    if absent:
        return ("compare the scheduler's batches of that step: one rank admitted or ended the request earlier",)
    if first == "slots":
        return ("compare allocator and prefix-cache calls of the ranks before that position: one took another path",)
    return ("compare the token ids that the ranks received for that position: sampling and broadcasts come first",)
