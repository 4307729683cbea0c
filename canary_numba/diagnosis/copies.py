"""Where a run's own records went: slots with exactly the record that belongs at a position, and nobody else's.

A table entry that was overwritten leaves the right slot behind, sound and forgotten (or still known to the prefix
cache, or to who shares the prefix). A slot that was handed out twice leaves nothing. So copies decide whose fault it
is.
"""

from __future__ import annotations

import numpy as np

from canary_numba.diagnosis.attribution import Attribution
from canary_numba.diagnosis.case import Desk
from canary_numba.diagnosis.chains import Int64s
from canary_numba.diagnosis.facts import Facts, digest_before, is_cached_only
from canary_numba.layout import CANARY_FIELD_POSITION, CANARY_FIELD_PREV_HASH

_WORD = (1 << 64) - 1


def find_copies(desk: Desk, facts: Facts, holders: dict[int, list[int]]) -> list[list[int]]:
    """By position of a run, the slots that hold what belongs there and were the request's.

    ``holders``: slots by digest, for the digests that the run's tokens ask for. Without tokens the records on both
    sides lead to them.
    """
    run, free = facts.run, desk.free[facts.group.kind]
    candidates: list[list[int]] = [holders.get(digest, []) if digest else [] for digest in facts.expected]
    if None in facts.expected and not is_cached_only(run):
        attribution = desk.attribution[facts.group.kind]
        candidates = _walk_back(facts, attribution) if run.after > 0 else _walk_on(facts, attribution)
    own = set(run.slots.tolist())
    copies: list[list[int]] = []
    for found in candidates:
        copies.append([s for s in found if s not in own and not free[s] and _was_here(facts, copies, s)])
    copies[-1] = [slot for slot in copies[-1] if not _leads_elsewhere(facts, slot)]
    return copies


def _walk_back(facts: Facts, attribution: Attribution) -> list[list[int]]:
    """From the record after the run back to the one before it, each step to whoever has the record it follows."""
    group, run = facts.group, facts.run
    nothing: list[list[int]] = [[] for _ in range(run.count)]
    wanted = int(group.records[run.after, CANARY_FIELD_PREV_HASH]) & _WORD
    found: list[list[int]] = []
    for position in reversed(run.positions.tolist()):
        slots = attribution.slots_with(wanted)
        if not slots or int(group.records[slots[0], CANARY_FIELD_POSITION]) != position:
            return nothing
        found.append(slots)
        wanted = int(group.records[slots[0], CANARY_FIELD_PREV_HASH]) & _WORD
    return found[::-1] if wanted == digest_before(group, run) else nothing


def _walk_on(facts: Facts, attribution: Attribution) -> list[list[int]]:
    """From the record before the run on; at position 0 any chain could begin, so nothing is found there."""
    group, run = facts.group, facts.run
    h = digest_before(group, run) if run.start else None
    found: list[list[int]] = []
    for position in run.positions.tolist():
        slots = attribution.successors(h, position) if h else []
        found.append(slots)
        h = int(group.digests[slots[0]]) if slots else None
    return found


def _was_here(facts: Facts, copies: list[list[int]], slot: int) -> bool:
    """Tell whether ``slot`` is the one that the run's next position had, after those of ``copies``.

    Either nobody has it, or only those do, live or cached, who share this request's prefix up to there.
    """
    group, run = facts.group, facts.run
    cells, nodes = group.cells_of(slot), group.nodes_of(slot)
    if not cells.shape[0] and not nodes.shape[0]:
        return True
    if is_cached_only(run):
        return False
    index = len(copies)
    if not run.start and not index:
        return not cells.shape[0] or run.count > 1 or _leads_on(facts, cells[group.position[cells] == 0], nodes)
    before = [int(run.prevs[index]), *(copies[index - 1] if index else [])]
    cells, nodes = cells[np.isin(group.prev[cells], before)], nodes[np.isin(group.node_prev[nodes], before)]
    if not cells.shape[0] and not nodes.shape[0]:
        return False
    # Two prompts that part here may begin their own ways with one token: such a twin is not this request's slot.
    return run.count > 1 or _leads_on(facts, cells, nodes) or not _branches(facts, before)


def _leads_on(facts: Facts, cells: Int64s, nodes: Int64s) -> bool:
    """Tell whether the run's next slot follows one of these cells or nodes."""
    following = _next_slot(facts)
    if following is None:
        return bool(cells.shape[0])
    return following in _followers(facts, cells, nodes)


def _leads_elsewhere(facts: Facts, slot: int) -> bool:
    """Tell whether all who have ``slot`` go on from it with other slots than the request does after the run."""
    group, following = facts.group, _next_slot(facts)
    if following is None or is_cached_only(facts.run):
        return False
    found = _followers(facts, group.cells_of(slot), group.nodes_of(slot))
    return bool(found) and following not in found


def _next_slot(facts: Facts) -> int | None:
    group, run = facts.group, facts.run
    if is_cached_only(run) or int(run.cells[-1]) + 1 >= int(group.starts[run.request + 1]):
        return None
    return int(group.slot[run.cells[-1] + 1])


def _followers(facts: Facts, cells: Int64s, nodes: Int64s) -> list[int]:
    group = facts.group
    ends = set((group.starts[1:] - 1).tolist())
    live = [int(group.slot[cell + 1]) for cell in cells.tolist() if cell not in ends]
    slots = np.unique(group.node_slot[nodes]).tolist()
    return live + [int(group.node_slot[node]) for slot in slots for node in group.nodes_after(slot)]


def _branches(facts: Facts, before: list[int]) -> bool:
    """Tell whether the prefix cache has the run's own first slot on this path as well."""
    group, run = facts.group, facts.run
    own = group.nodes_of(int(run.slots[0]))
    own = own[group.node_position[own] == run.start]
    return bool(np.isin(group.node_prev[own], before).any())
