"""What can be known of a run: whose its records are, who else holds its slots, where its own records went."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from canary_numba.diagnosis.attribution import CACHED, FINISHED, LIVE, Writer
from canary_numba.diagnosis.case import Cell, Desk
from canary_numba.diagnosis.chains import MAX_TOKEN, Digests, Int64s, recovered_token
from canary_numba.diagnosis.runs import CACHED_ONLY, Run
from canary_numba.diagnosis.view import GroupView, H, P, R, T
from canary_numba.layout import CANARY_FIELD_POSITION, CANARY_FIELD_PREV_HASH, CANARY_FIELD_TOKEN
from canary_numba.mixing import CHAIN_HEAD_HASH, splitmix64_mix3

_WORD = (1 << 64) - 1
MAX_POSITION = 2**31 - 1


@dataclass(slots=True, kw_only=True)
class Facts:
    """A run with everything that was looked up about it.

    ``stored``: its records int64 ``[n, 4]``; ``digests``: of these; ``expected``: digests that belong there, None where
    unknown; ``tokens``: tokens that belong there, -1 unknown; ``others``: by position, live cells that the record fits;
    ``nodes``: by position, whether a prefix-cache node is sound on the slot; ``writers``: by position, who expects the
    record; ``copies``: by position, unowned slots with exactly the record that belongs there.
    """

    group: GroupView
    run: Run
    stored: Int64s
    digests: Digests
    expected: list[int | None]
    tokens: list[int]
    others: list[list[Cell]] = field(default_factory=list)
    nodes: list[bool] = field(default_factory=list)
    writers: list[list[Writer]] = field(default_factory=list)
    copies: list[list[int]] = field(default_factory=list)

    @property
    def deltas(self) -> Int64s:
        """Stored minus expected position."""
        return self.stored[:, CANARY_FIELD_POSITION] - self.run.positions

    @property
    def zero(self) -> bool:
        """Tell whether every record is all zero."""
        return not self.stored.any()

    @property
    def plausible(self) -> bool:
        """Tell whether every record could be one: a token id and a position."""
        token, position = self.stored[:, CANARY_FIELD_TOKEN], self.stored[:, CANARY_FIELD_POSITION]
        return bool(((token >= 0) & (token <= MAX_TOKEN) & (position >= 0) & (position <= MAX_POSITION)).all())

    @property
    def orphaned(self) -> bool:
        """Tell whether every record that belongs here stands elsewhere, in a slot of nobody."""
        return bool(self.copies) and all(self.copies)

    @property
    def recovered(self) -> dict[int, int]:
        """Tokens by position that follow from the sound records on both sides."""
        if self.run.count != 1:
            return {}
        token = self.tokens[0]
        return {self.run.start: token} if self.run.after > 0 and token >= 0 else {}

    def sole_owner(self) -> Cell | None:
        """The live cell at the run's start that the first record fits, if one request has all of the run's slots."""
        if not self.others or not all(self.others):
            return None
        common = set.intersection(*({r for r, _ in here} for here in self.others))
        return next(((r, p) for r, p in self.others[0] if r in common), None)

    def writer(self) -> Writer | None:
        """Who wrote the first record, if that somebody wrote all of the run's."""
        if not self.writers or not all(self.writers):
            return None
        common = set.intersection(*({(w.kind, w.name) for w in here} for here in self.writers))
        return next((w for w in self.writers[0] if (w.kind, w.name) in common), None)


def gather(desk: Desk, group: GroupView, runs: list[Run]) -> list[Facts]:
    """Look everything up, for all runs of a pool at once."""
    failing = set(group.failures.entries[(group.failures.seen & (H | P | T)) != 0].tolist())
    found = [_start(desk, group, run, failing) for run in runs]
    if not found:
        return []
    attribution = desk.attribution[group.kind]
    writers = attribution.writers(np.concatenate([facts.digests for facts in found]))
    wanted = {digest for facts in found for digest in facts.expected if digest}
    holders = attribution.holders(np.array(sorted(wanted), dtype=np.uint64))
    bad_nodes = set(group.node_failures.entries[(group.node_failures.seen & (H | P)) != 0].tolist())
    for facts in found:
        _finish(desk, facts, writers, failing, bad_nodes)
        copies_to(desk, facts, holders)
    return found


def copies_to(desk: Desk, facts: Facts, holders: dict[int, list[int]]) -> None:
    """Fill in the slots that hold what belongs at the run's positions."""
    from canary_numba.diagnosis.copies import find_copies

    facts.copies = find_copies(desk, facts, holders)


def _start(desk: Desk, group: GroupView, run: Run, failing: set[int]) -> Facts:
    inside = (run.slots > 0) & (run.slots < group.num_slots)
    stored = group.records_at(run.slots)
    digests = group.digests[np.where(inside, run.slots, 0)]
    digests = np.where(inside & stored.any(axis=1), digests, np.uint64(0))
    expected, tokens = expected_chain(group, run)
    if not is_cached_only(run) and int(run.cells[0]) - 1 in failing:
        # The record before the run is wrong itself: the tokens alone say what belongs here.
        asked = desk.attribution[group.kind].expected_digests(run.request, run.positions)
        if asked is not None:
            expected = list(asked.tolist())
    return Facts(group=group, run=run, stored=stored, digests=digests, expected=expected, tokens=tokens)


def digest_before(group: GroupView, run: Run) -> int | None:
    """Digest of the record before the run; None where that slot cannot be read."""
    if run.start == 0:
        return int(CHAIN_HEAD_HASH)
    prev = int(run.prevs[0])
    return int(group.digests[prev]) if group.inside(prev) else None


def expected_chain(group: GroupView, run: Run) -> tuple[list[int | None], list[int]]:
    """Digests and tokens that belong at the run's positions, from the record before it on; None and -1 if unknown."""
    h = digest_before(group, run)
    tokens = run.tokens.tolist()
    if run.count == 1 and run.after > 0 and h is not None:
        after = int(group.records[run.after, CANARY_FIELD_PREV_HASH]) & _WORD
        recovered = recovered_token(h, run.start, after)
        if recovered is not None and tokens[0] in (-1, recovered):
            tokens[0] = recovered
    digests: list[int | None] = []
    for position, token in zip(run.positions.tolist(), tokens, strict=True):
        h = splitmix64_mix3(h, token, position) if h is not None and token >= 0 else None
        digests.append(h)
    return digests, tokens


def _finish(
    desk: Desk,
    facts: Facts,
    writers: dict[int, list[Writer]],
    failing: set[int],
    bad_nodes: set[int],
) -> None:
    group, run = facts.group, facts.run
    for i, slot in enumerate(run.slots.tolist()):
        here = (run.request, int(run.positions[i]))
        cells = [cell for cell in group.cells_of(slot).tolist() if cell not in failing]
        facts.others.append([place for place in desk.places(group, cells) if place != here])
        facts.nodes.append(any(node not in bad_nodes for node in group.nodes_of(slot).tolist()))
        named = writers.get(int(facts.digests[i]), [])
        facts.writers.append([w for w in named if (w.request, w.position) != here])
    sharers = _sharers_of_the_end(facts, failing)
    facts.others = [[place for place in here if place[0] not in sharers] for here in facts.others]
    if any(facts.nodes) and not _other_path(facts, bad_nodes):
        facts.nodes = [False] * run.count


def _sharers_of_the_end(facts: Facts, failing: set[int]) -> set[int]:
    """Requests that have the run's last slot at the same position, and whose chain breaks just after it as well."""
    group, run = facts.group, facts.run
    if run.opened or is_cached_only(run):
        return set()
    cells = group.cells_of(int(run.slots[-1]))
    same = cells[group.position[cells] == run.stop - 1]
    last = set((group.starts[1:] - 1).tolist())
    return {int(group.request[cell]) for cell in same.tolist() if cell not in last and cell + 1 in failing}


def _other_path(facts: Facts, bad_nodes: set[int]) -> bool:
    """Tell whether the prefix cache holds the run's slots on a path that is not this request's own."""
    group, run = facts.group, facts.run
    if is_cached_only(run):
        return True
    if run.start:
        before = group.node_prev[group.nodes_of(int(run.slots[0]))]
        return bool((before != run.prevs[0]).any())
    last = int(run.cells[-1]) + 1
    following = int(group.slot[last]) if last < int(group.starts[run.request + 1]) else -1
    sound = [node for node in group.nodes_after(int(run.slots[-1])).tolist() if node not in bad_nodes]
    after = group.node_slot[sound]
    return bool((after != following).any())


def describe_writer(facts: Facts, desk: Desk) -> tuple[str | None, int | None, str]:
    """Name and position of whoever the run's first record was written for, and how that is known."""
    owner = facts.sole_owner()
    if owner is not None:
        return desk.name(owner[0]), owner[1], "its table points at the slot, and the record fits it there"
    writer = facts.writer()
    if writer is not None and writer.kind in (LIVE, FINISHED):
        known = "live" if writer.kind == LIVE else "finished"
        return writer.name, writer.position, f"the tokens of this {known} request have this very history"
    if facts.nodes and all(facts.nodes):
        return (
            None,
            int(facts.stored[0, CANARY_FIELD_POSITION]),
            f"a {CACHED} prefix holds the slot, and the record fits it",
        )
    return None, None, "an earlier request, no longer in the dump"


def letters_text(run: Run) -> str:
    """What fails, in words, over the whole run."""
    names = {H: "chain", P: "position", T: "token", R: "K/V bytes"}
    return ", ".join(name for letter, name in names.items() if run.any(letter)) or "nothing"


def is_cached_only(run: Run) -> bool:
    """Tell whether no live request has the run."""
    return run.request == CACHED_ONLY
