"""Failing cells cut into runs: maximal ranges of consecutive positions whose own records are wrong.

A record that is wrong at position p also breaks the chain check at p + 1: the *echo*, which belongs to the run. A chain
break with nothing else wrong accuses one of its two sides; which one, the runs' facts decide.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from canary_numba.diagnosis.case import Desk
from canary_numba.diagnosis.chains import Int64s, recovered_token
from canary_numba.diagnosis.view import OUT_OF_RANGE, GroupView, H, P, R, T
from canary_numba.layout import CANARY_FIELD_PREV_HASH
from canary_numba.mixing import CHAIN_HEAD_HASH

CACHED_ONLY = -1
"""Request index of a run along the prefix cache that no live request shares."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Consecutive positions of one request (or of the prefix cache) whose records are wrong.

    ``cells`` index the pool's cells (nodes for :data:`CACHED_ONLY`); ``letters``: reasons seen at each; ``opened``: the
    first record does not follow the one before it; ``closed``: nor does the record just after follow the last;
    ``after``: the slot of that record, -1 if there is none or if it is wrong itself.
    """

    request: int
    cells: Int64s
    positions: Int64s
    slots: Int64s
    prevs: Int64s
    tokens: Int64s
    letters: Int64s
    opened: bool
    closed: bool
    after: int

    @property
    def start(self) -> int:
        """First position."""
        return int(self.positions[0])

    @property
    def stop(self) -> int:
        """Position after the last."""
        return int(self.positions[-1]) + 1

    @property
    def count(self) -> int:
        """How many positions."""
        return int(self.positions.shape[0])

    def any(self, letter: int) -> bool:
        """Tell whether any cell fails for this reason."""
        return bool((self.letters & letter).any())

    def all(self, letter: int) -> bool:
        """Tell whether every cell fails for this reason."""
        return bool(((self.letters & letter) != 0).all())


def request_runs(desk: Desk, group: GroupView, most: int) -> tuple[list[Run], Int64s, Int64s]:
    """Cut what fails of live requests, as far as nothing explains it yet.

    Returns
    -------
    tuple
        At most ``most`` runs; cells int64 ``[n]`` of the runs beyond; cells that show a chain break alone.
    """
    failures = group.failures
    known = desk.explained[group.kind]
    keep = ~known.cells[failures.entries] & ((failures.seen & OUT_OF_RANGE) == 0)
    cells, agreed, seen = failures.entries[keep], failures.agreed[keep], failures.seen[keep]
    letters: Int64s = np.zeros(group.slot.shape[0] + 1, dtype=np.int64)
    letters[cells] = (agreed & (H | P | T)) | (seen & R)
    # An all-zero record at position 0 has the right position, and none the right history.
    never = ((agreed & H) != 0) & ~group.records_at(group.slot[cells]).any(axis=1)
    own = ((agreed & (P | T)) != 0) | never
    wrong = _with_holes(desk, group, cells[own], letters, most)
    pieces = _cut(group, wrong, letters)
    runs = [cell_run(group, piece, letters) for piece in pieces[:most]]
    named = np.zeros(letters.shape[0], dtype=np.bool_)
    named[wrong] = True
    named[[int(piece[-1]) + 1 for piece in pieces]] = True
    alone = cells[((agreed & H) != 0) & ~named[cells]]
    rest = np.concatenate([*pieces[most:], np.empty(0, dtype=np.int64)])
    return runs, rest, alone[~known.is_bad(group.prev[alone])]


def _with_holes(desk: Desk, group: GroupView, wrong: Int64s, letters: Int64s, most: int) -> Int64s:
    """Add cells that look right by chance: their token is the right one, but not the history that the tokens ask for.

    Two kinds: gaps of one or two cells between wrong ones, and what else lies with wrong ones between two chain breaks.
    """
    found = [wrong]
    for i in np.flatnonzero((np.diff(wrong) > 1) & (np.diff(wrong) <= 3))[:most].tolist():
        between = np.arange(wrong[i] + 1, wrong[i + 1])
        same = group.request[wrong[i]] == group.request[wrong[i + 1]]
        if same and not (letters[wrong[i] + 1 : wrong[i + 1] + 1] & H).any() and _other_history(desk, group, between):
            found.append(between)
    opening = np.flatnonzero(letters & H)
    for first, after in zip(opening[:most].tolist(), [*opening[1:].tolist(), letters.shape[0]], strict=False):
        piece = np.arange(first, min(after, int(group.starts[group.request[first] + 1])))
        if ((letters[piece] & (P | T)) != 0).any() and _other_history(desk, group, piece):
            found.append(piece)
    return np.unique(np.concatenate(found))


def _other_history(desk: Desk, group: GroupView, cells: Int64s) -> bool:
    """Tell whether the tokens ask for another record than the one that is there, at each of one request's cells."""
    asked = desk.attribution[group.kind].expected_digests(int(group.request[cells[0]]), group.position[cells])
    slots = group.slot[cells]
    if asked is None or not ((slots > 0) & (slots < group.num_slots)).all():
        return False
    return bool((group.digests[slots] != asked).all())


def _cut(group: GroupView, wrong: Int64s, letters: Int64s) -> list[Int64s]:
    """Cut wrong cells where positions jump, a request ends, a chain break opens another run, or zeros begin or end."""
    if not wrong.shape[0]:
        return []
    request = group.request[wrong]
    zero = np.asarray(~group.records_at(group.slot[wrong]).any(axis=1))
    cut = (np.diff(wrong) != 1) | (np.diff(request) != 0) | (zero[1:] != zero[:-1])
    cut |= ((letters[wrong[1:]] & H) != 0) & ~(zero[1:] & zero[:-1])
    return np.split(wrong, np.flatnonzero(cut) + 1)


def cell_run(group: GroupView, cells: Int64s, letters: Int64s) -> Run:
    """Build the run of these cells of one request; ``letters``: reasons by cell, with one more at the end."""
    last = int(cells[-1])
    request = int(group.request[last])
    follows = last + 1 < int(group.starts[request + 1])
    sound_after = follows and not letters[last + 1] & (P | T) and group.inside(int(group.slot[last + 1]))
    return Run(
        request=request,
        cells=cells,
        positions=group.position[cells],
        slots=group.slot[cells],
        prevs=group.prev[cells],
        tokens=group.token[cells],
        letters=letters[cells],
        opened=bool(letters[cells[0]] & H),
        closed=follows and bool(letters[last + 1] & H),
        after=int(group.slot[last + 1]) if sound_after else -1,
    )


def break_runs(desk: Desk, group: GroupView, breaks: Int64s) -> list[Run]:
    """Runs that explain chain breaks with nothing else wrong, best reading first.

    Two breaks enclose a piece of another history, above all if its first slot is somebody else's and sound for him. A
    break at p accuses p - 1 if one token put there mends the chain. A break that stays alone is reported where it is,
    or up to the request's end if others hold all of that or it is whole pages.
    """
    letters: Int64s = np.zeros(group.slot.shape[0] + 1, dtype=np.int64)
    failures = group.failures
    letters[failures.entries] = failures.seen & R
    letters[breaks] |= H
    left = breaks.tolist()
    found: list[Run] = []
    alone: list[int] = []
    while left:
        first = left.pop(0)
        end = int(group.starts[group.request[first] + 1])
        if left and left[0] < end and _sound_for_others(group, first):
            found.append(cell_run(group, np.arange(first, left.pop(0)), letters))
        elif _mended_before(group, first):
            found.append(cell_run(group, np.array([first - 1], dtype=np.int64), letters))
            alone = [other for other in alone if other != first - 1]
        else:
            alone.append(first)
    return found + _pairs(desk, group, alone, letters)


def _pairs(desk: Desk, group: GroupView, left: list[int], letters: Int64s) -> list[Run]:
    """Runs from one break to the next of the same request; from a last one to where it may reach."""
    page = desk.view.page_size
    found = []
    while left:
        first = left.pop(0)
        end = int(group.starts[group.request[first] + 1])
        if left and left[0] < end:
            stop = left.pop(0)
        else:
            begin = int(group.starts[group.request[first]])
            aligned = int(group.position[first]) % page == 0
            whole_pages = aligned and (end - first) % page == 0
            held = all(_others_hold(group, cell) for cell in range(first, end))
            changed = 0
            while first + changed < end and letters[first + changed] & R:
                changed += 1
            if changed:
                found.append(cell_run(group, np.arange(first, first + changed), letters))
                continue
            if begin < first and (_accused_by_several(group, first) or (aligned and page > 1 and not whole_pages)):
                found.append(cell_run(group, np.arange(begin, first), letters))
                continue
            stop = end if held or whole_pages else first + 1
        found.append(cell_run(group, np.arange(first, stop), letters))
    return found


def _accused_by_several(group: GroupView, cell: int) -> bool:
    """Tell whether different slots fail to follow the one before this cell: then that one is wrong, not they."""
    prev = int(group.prev[cell])
    cells, nodes = group.failures.entries, group.node_failures.entries
    cells, nodes = cells[group.prev[cells] == prev], nodes[group.node_prev[nodes] == prev]
    return bool(np.unique(np.concatenate([group.slot[cells], group.node_slot[nodes]])).shape[0] > 1)


def _sound_for_others(group: GroupView, cell: int) -> bool:
    """Tell whether somebody else points at the cell's slot, and nothing fails there for him."""
    slot = int(group.slot[cell])
    cells, nodes = group.cells_of(slot), group.node_failures.entries
    return bool(
        np.setdiff1d(cells[cells != cell], group.failures.entries).shape[0]
        or np.setdiff1d(group.nodes_of(slot), nodes).shape[0]
    )


def _mended_before(group: GroupView, cell: int) -> bool:
    """Tell whether some token at the position before would make this record follow the one two positions before."""
    request, position = int(group.request[cell]), int(group.position[cell])
    if position == 0 or cell - 1 < int(group.starts[request]) or not group.inside(int(group.prev[cell])):
        return False
    prev = int(group.prev[cell - 1])
    if position > 1 and not group.inside(prev):
        return False
    h = int(CHAIN_HEAD_HASH) if position == 1 else int(group.digests[prev])
    stored = int(group.records[group.slot[cell], CANARY_FIELD_PREV_HASH]) & ((1 << 64) - 1)
    token = recovered_token(h, position - 1, stored)
    return token is not None and int(group.token[cell - 1]) in (-1, token)


def _others_hold(group: GroupView, cell: int) -> bool:
    slot = int(group.slot[cell])
    return bool(group.cells_of(slot).shape[0] > 1 or group.nodes_of(slot).shape[0] > 0)


def node_runs(desk: Desk, group: GroupView, most: int) -> list[Run]:
    """Runs along the prefix cache on slots that nothing has explained so far, echoes left out; at most ``most``."""
    failures = group.node_failures
    agreed = failures.agreed & (H | P)
    letters = dict(zip(failures.entries.tolist(), (agreed | (failures.seen & R)).tolist(), strict=True))
    slots, prevs = group.node_slot, group.node_prev
    nodes = failures.entries[agreed != 0]
    nodes = nodes[~desk.explained[group.kind].witnesses(nodes)]
    nodes = nodes[(slots[nodes] > 0) & (slots[nodes] < group.num_slots)]
    left = list(zip(group.node_position[nodes].tolist(), nodes.tolist(), strict=True))
    wrong = {n for _, n in left if letters[n] & P}
    by_slot = {int(slots[n]): n for n in wrong}
    chains: dict[int, list[int]] = {}
    head: dict[int, int] = {}
    for _, n in sorted(left):
        before = by_slot.get(int(prevs[n]))
        if before is not None and n not in wrong:
            continue
        first = head.get(before, n) if before is not None else n
        head[n] = first
        chains.setdefault(first, []).append(n)
    return [_node_run(group, np.array(chain, dtype=np.int64), letters) for chain in list(chains.values())[:most]]


def _node_run(group: GroupView, nodes: Int64s, letters: dict[int, int]) -> Run:
    found = group.nodes_after(int(group.node_slot[nodes[-1]]))
    after = next((node for node in found.tolist() if group.inside(int(group.node_slot[node]))), -1)
    return Run(
        request=CACHED_ONLY,
        cells=nodes,
        positions=group.node_position[nodes],
        slots=group.node_slot[nodes],
        prevs=group.node_prev[nodes],
        tokens=np.full(nodes.shape[0], -1, dtype=np.int64),
        letters=np.array([letters[n] for n in nodes.tolist()], dtype=np.int64),
        opened=bool(letters[int(nodes[0])] & H),
        closed=bool(letters.get(after, 0) & H),
        after=-1 if after < 0 or letters.get(after, 0) & P else int(group.node_slot[after]),
    )
