"""Records of another history: the slot, the table entry, the row or the whole prefix is somebody else's.

- ``slot_owned_twice``: two live requests point at the slot (or one, and the record fits another): H P T at its position
  and H at the next for the loser; the record that belongs there stands nowhere.
- ``table_points_elsewhere``: the same, but an orphan copy of the record exists: the entry is wrong, not the slot.
- ``stale_table_row``: a run whose records chain among themselves, with another history, at their own positions; others
  hold the slots, or orphan copies of the right records exist.
- ``foreign_block``: such a run, page-aligned, whose slots nobody else holds and whose writer is gone.
- ``wrong_prefix_hit``: from the start, only tokens differ: another prompt's slots, on which the suffix chains on.
- ``row_recycled``: the same up to the last position the request has.
"""

from __future__ import annotations

import numpy as np

from canary_numba.diagnosis.attribution import FINISHED, LIVE
from canary_numba.diagnosis.case import Case, Desk, span
from canary_numba.diagnosis.case_of_run import build, where
from canary_numba.diagnosis.facts import Facts, describe_writer, is_cached_only
from canary_numba.diagnosis.table_rest import row_of
from canary_numba.diagnosis.view import H, P, R, T
from canary_numba.findings import LIKELY, POSSIBLE


def another_prefix(desk: Desk, facts: Facts) -> Case | None:
    """Only tokens differ, the chain is sound, and another request or cached path has exactly these slots."""
    run = facts.run
    if is_cached_only(run) or not run.any(T) or run.any(P) or run.any(H) or run.closed:
        return None
    name, position, how = describe_writer(facts, desk)
    if name is None and not _other_branch(facts):
        return None
    if position is not None and position != run.start:
        return None
    assert desk.view.dump.requests is not None
    whole = run.stop == int(desk.view.dump.requests.prefix_lens[run.request])
    computing = _goes_its_own_way(desk, facts)
    fault = "row_recycled" if whole and not computing and name is not None else "wrong_prefix_hit"
    other = name or "another cached prompt"
    summary = (
        f"The whole row of {desk.name(run.request)} belongs to {other}: every record fits that request."
        if fault == "row_recycled"
        else f"{where(desk, facts)}: the prefix cache gave it the slots of {other}, whose tokens differ."
    )
    evidence = [f"writer {other}: {how}" if name else "the prefix cache continues from these slots with another prompt"]
    evidence.append(
        "the chain is sound throughout" + ("" if whole else f", and the request's own suffix chains on from {run.stop}")
    )
    return build(
        desk,
        facts,
        fault,
        summary,
        evidence=evidence,
        details={"owner": name, "owner_position": position},
        rivals=["wrong_prefix_hit"] if fault == "row_recycled" else [],
    )


def _goes_its_own_way(desk: Desk, facts: Facts) -> bool:
    """Tell whether this step computes tokens of the request into slots that the owner of its prefix does not have."""
    requests, run = desk.view.dump.requests, facts.run
    assert requests is not None
    begin, extend = int(requests.prefix_lens[run.request]), int(requests.extend_seq_lens[run.request])
    mine, owner = row_of(requests, run.request), facts.sole_owner()
    theirs = None if owner is None else row_of(requests, owner[0])
    if extend <= 0 or mine is None or theirs is None:
        return extend > 0
    return not np.array_equal(mine[begin : begin + extend], theirs[begin : begin + extend])


def _other_branch(facts: Facts) -> bool:
    """Tell whether the prefix cache goes on from a slot of the run with a slot that is not this request's."""
    group, run = facts.group, facts.run
    begin, end = int(group.starts[run.request]), int(group.starts[run.request + 1])
    mine = set(group.slot[begin:end].tolist())
    after = [int(group.node_slot[n]) for slot in run.slots.tolist() for n in group.nodes_after(slot).tolist()]
    return any(slot not in mine for slot in after)


def foreign(desk: Desk, facts: Facts) -> Case | None:
    """A run that does not follow from the record before it."""
    run = facts.run
    if facts.zero or (not run.opened and not run.closed):
        return None
    held = all(bool(o) or n for o, n in zip(facts.others, facts.nodes, strict=True))
    if held and not is_cached_only(run):
        return _held_by_others(desk, facts)
    return _held_by_nobody(desk, facts)


def _held_by_others(desk: Desk, facts: Facts) -> Case:
    """Others point at the run's slots, and the records fit them."""
    run = facts.run
    name, position, how = describe_writer(facts, desk)
    other = name or "the prefix cache"
    in_place = not run.any(P)
    details: dict[str, object] = {"owner": name, "owner_position": position, "writer": name}
    evidence = [f"{other} (position {position}): {how}"]
    if facts.orphaned:
        copies = [found[0] for found in facts.copies]
        details["orphan_copies"] = copies[:64]
        evidence.append(f"the records that belong here stand in slot {span(copies)}, which no table points at")
    twice = all(facts.others) and not facts.orphaned
    if run.count > 1 and in_place and not twice:
        return build(
            desk,
            facts,
            "stale_table_row",
            f"{where(desk, facts)}: the table row still holds entries of {other}, whose records these are.",
            evidence=evidence,
            details=details,
        )
    if facts.orphaned:
        return build(
            desk,
            facts,
            "table_points_elsewhere",
            f"{where(desk, facts)}: the table points at slot {span(run.slots)} of {other}; "
            f"the right records stand in slot {span([c[0] for c in facts.copies])}.",
            evidence=evidence,
            details=details,
        )
    return _owned_twice(desk, facts, evidence, details)


def _owned_twice(desk: Desk, facts: Facts, evidence: list[str], details: dict[str, object]) -> Case:
    """Both own the slots; whoever wrote last won."""
    run = facts.run
    owner = facts.sole_owner()
    name = details.get("owner") or ("the prefix cache" if any(facts.nodes) else "another request")
    unknown = None in facts.expected and run.start == 0
    case = build(
        desk,
        facts,
        "slot_owned_twice",
        f"Slot {span(run.slots)} belongs to {desk.name(run.request)} (position {span(run.positions)}) and to {name} "
        f"at once; {name} wrote last, and {desk.name(run.request)} reads its token.",
        confidence=POSSIBLE if unknown else LIKELY,
        evidence=[*evidence, "no slot of nobody holds the record that belongs here"],
        details=details,
        rivals=["table_points_elsewhere"] if unknown else [],
    )
    if unknown:
        case.evidence[-1] = "which record belongs here is unknown: the dump has no tokens"
    if owner is not None:
        winners = [place for here in facts.others for place in here if place[0] == owner[0]]
        case.cells += [place for place in winners if place not in case.cells]
    return case


def _held_by_nobody(desk: Desk, facts: Facts) -> Case | None:
    """Only this request points at the run's slots."""
    run, page = facts.run, desk.view.page_size
    if not facts.plausible or run.any(R):
        return None
    name, position, how = describe_writer(facts, desk)
    writer = facts.writer()
    evidence = [f"writer {name} (position {position}): {how}" if name else f"writer: {how}"]
    details: dict[str, object] = {"writer": name, "owner": name, "owner_position": position}
    freed = all(facts.group.inside(slot) and desk.free[facts.group.kind][slot] for slot in run.slots.tolist())
    in_place = not run.any(P)
    left = run.count > 1 and in_place and name is not None
    if left and all(facts.group.nodes_of(slot).shape[0] for slot in run.slots.tolist()):
        return build(
            desk,
            facts,
            "stale_table_row",
            f"{where(desk, facts)}: the table row still holds entries of {name}, which the prefix cache keeps.",
            evidence=evidence,
            details=details,
        )
    if facts.orphaned or (freed and run.count > 1):
        fault = "table_points_elsewhere" if run.count == 1 or not in_place else "stale_table_row"
        copies = [found[0] for found in facts.copies if found]
        evidence.append(
            f"the records that belong here stand in slot {span(copies)}" if copies else "the slots are on the free list"
        )
        details["orphan_copies"] = copies[:64]
        what = f"slot {span(run.slots)}, which holds the record of {name or 'an earlier request'}"
        summary = f"{where(desk, facts)}: the table points at {what}."
        return build(desk, facts, fault, summary, evidence=evidence, details=details)
    aligned = run.start % page == 0 and run.count % page == 0
    chained = not (run.letters[1:] & H).any()
    gone = writer is None or writer.kind == FINISHED
    if chained and aligned and gone and (run.count > 1 or in_place):
        return build(
            desk,
            facts,
            "foreign_block",
            f"{where(desk, facts)}: the slots hold a piece of another sequence, whole and sound in itself, written by "
            f"{name or 'a request no longer in the dump'}.",
            evidence=[*evidence, "whole pages, nobody else holds the slots"],
            details=details,
            confidence=LIKELY if _bytes_known(desk, facts) and run.count > 1 and _bounded(facts) else POSSIBLE,
            rivals=[] if page > 1 and in_place else ["slot_owned_twice", "stale_table_row"],
        )
    known = writer is not None and writer.kind in (LIVE, FINISHED)
    return build(
        desk,
        facts,
        "slot_owned_twice",
        f"{where(desk, facts)}: {name or 'a request no longer in the dump'} wrote into slot {span(run.slots)} "
        f"although {desk.name(run.request) if not is_cached_only(run) else 'the prefix cache'} holds it.",
        confidence=LIKELY if known else POSSIBLE,
        evidence=evidence,
        details=details,
        rivals=[] if known else ["foreign_block", "slots_never_written"],
    )


def _bounded(facts: Facts) -> bool:
    """Tell whether the run's ends are known: tokens differ in it, or the chain breaks at both."""
    return facts.run.any(T) or (facts.run.opened and facts.run.closed)


def _bytes_known(desk: Desk, facts: Facts) -> bool:
    """Tell whether K/V bytes were checked: a foreign record over matching bytes is a genuine write."""
    return desk.kv[facts.group.kind].known


def chain_break(desk: Desk, facts: Facts) -> Case | None:
    """A break that no rule explains: both sides are sound in themselves."""
    run = facts.run
    if not np.all((run.letters & ~(H | R)) == 0):
        return None
    return build(
        desk,
        facts,
        "unexplained",
        f"{where(desk, facts)}: the chain breaks here, and the records on both sides look sound.",
        confidence=POSSIBLE,
        evidence=["the dump has no tokens to say which side is right"] if (run.tokens < 0).all() else [],
        rivals=["stale_table_row", "foreign_block", "canary_field_bit_flip"],
    )
