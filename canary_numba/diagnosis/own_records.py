"""Records that this same request wrote, or should have: at the wrong place, with wrong positions or tokens, or never.

- ``slots_never_written``: all-zero records over a run. Chain, position and token fail on the first, position and token
  on the rest (a chain of zeros looks sound), the chain once more just after.
- ``slots_exchanged``: the records fit this request at other positions; the delta is the same over a page.
- ``positions_shifted``: only positions differ, by one constant; the chain is sound.
- ``tokens_differ_from_request``: only tokens differ, and the chain is built on them.
- ``canary_field_bit_flip``: one record, one field, a bit or a few from what its neighbours ask, and no twin to tell.
"""

from __future__ import annotations

import numpy as np

from canary_numba.diagnosis.attribution import LIVE
from canary_numba.diagnosis.case import Case, Desk, span
from canary_numba.diagnosis.case_of_run import build, where
from canary_numba.diagnosis.damaged_records import FEW_BITS, FIELDS, bits_of
from canary_numba.diagnosis.facts import Facts, describe_writer, digest_before, is_cached_only
from canary_numba.diagnosis.view import H, P, T
from canary_numba.findings import LIKELY, NOTE, POSSIBLE
from canary_numba.layout import CANARY_FIELD_POSITION, CANARY_FIELD_PREV_HASH
from canary_numba.mixing import CHAIN_HEAD_HASH

_WORD = (1 << 64) - 1
PLACEHOLDER = 1 << 24
"""No vocabulary is that large: such ids are hashes that stand for images and sounds."""


def bit_flip(desk: Desk, facts: Facts) -> Case | None:
    """One field of one record off by a few bits, and the record after it off as well (or absent)."""
    run = facts.run
    before = digest_before(facts.group, run)
    if run.count != 1 or before is None or facts.zero:
        return None
    token, position, prev = (int(value) for value in facts.stored[0, :3])
    wanted = {0: facts.tokens[0], 1: run.start, 2: before}
    actual = {0: token, 1: position, 2: prev & _WORD}
    if wanted[0] < 0:
        wanted[0] = token
    wrong = [field for field in wanted if wanted[field] != actual[field]]
    if len(wrong) != 1:
        return None
    bits = bits_of((wanted[wrong[0]] ^ actual[wrong[0]]) & _WORD)
    if len(bits) > FEW_BITS or not (run.closed or (wrong[0] == CANARY_FIELD_PREV_HASH and run.after < 0)):
        return None
    name = FIELDS[wrong[0]]
    return build(
        desk,
        facts,
        "canary_field_bit_flip",
        f"The {name} field of the record in slot {int(run.slots[0])} ({where(desk, facts)}) is off in bit "
        f"{span(bits)}.",
        evidence=[f"{name} is {actual[wrong[0]]}, its neighbours ask for {wanted[wrong[0]]}"],
        details={"field": name, "bit": bits[0] if len(bits) == 1 else bits},
    )


def never_written(desk: Desk, facts: Facts) -> Case | None:
    """All-zero records over a run."""
    if not facts.zero:
        return None
    newest = not is_cached_only(facts.run) and facts.run.after < 0 and not facts.run.closed and facts.run.count == 1
    return build(
        desk,
        facts,
        "slots_never_written",
        f"{where(desk, facts)}: the slots count as cached, but nothing was ever written to them.",
        confidence=POSSIBLE if newest else LIKELY,
        evidence=["every record is zero"]
        + (["it is the newest token only: the dump may be torn between two steps"] if newest else []),
    )


def shifted(desk: Desk, facts: Facts) -> Case | None:
    """Only positions differ, by a constant: the chain runs on through them, or the tokens are known to be right."""
    run, deltas = facts.run, facts.deltas
    if not run.all(P) or run.any(T) or np.unique(deltas).shape[0] != 1:
        return None
    delta = int(deltas[0])
    chained = not run.any(H) and not run.closed
    if not chained and (run.tokens < 0).any() and desk.shifts.get((run.request, run.start)) != delta:
        return None
    desk.shifts[run.request, run.stop] = delta
    start = run.start
    kind = "restarted at 0 with a chunk" if delta == -start else "counted the offset twice" if delta == start else None
    return build(
        desk,
        facts,
        "positions_shifted",
        f"{where(desk, facts)}: every record carries its position {'plus' if delta > 0 else 'minus'} {abs(delta)}"
        + (f": positions {kind}." if kind and start else "."),
        evidence=[
            f"stored minus table position is {delta:+d} throughout",
            "the chain is sound" if chained else "the tokens are right, but were chained to a wrong predecessor",
            "the run ends with the request" if run.after < 0 else f"it ends before position {run.stop}",
        ],
        details={"delta": delta},
    )


def exchanged(desk: Desk, facts: Facts) -> Case | None:
    """Records of this same request from other positions."""
    run = facts.run
    if not run.all(P) or not facts.plausible or facts.zero or (not run.opened and run.start > 0):
        return None
    # Where somebody else has the slots and they are sound for him, the table is wrong, even if his history is this one.
    if any(facts.others) or not (_own_by_tokens(facts) or _own_by_links(facts)):
        return None
    deltas = np.unique(facts.deltas)
    page = desk.view.page_size
    text = f"{int(deltas[0]):+d}" if deltas.shape[0] == 1 else "varying"
    if deltas.shape[0] == 1 and page > 1:
        text += f" ({int(deltas[0]) / page:+g} pages)"
    held = facts.stored[:, CANARY_FIELD_POSITION]
    return build(
        desk,
        facts,
        "slots_exchanged",
        f"{where(desk, facts)}: the slots hold this request's own tokens of positions {span(held)}.",
        evidence=[f"stored minus table position is {text}"],
        details={
            "delta": int(deltas[0]) if deltas.shape[0] == 1 else deltas[:16].tolist(),
            "held_positions": held[:64].tolist(),
        },
    )


def _own_by_tokens(facts: Facts) -> bool:
    """Tell whether this request's tokens have every one of these records at the position it names."""
    mine = facts.run.request
    positions = facts.stored[:, CANARY_FIELD_POSITION].tolist()
    return all(
        any(w.kind == LIVE and w.request == mine and w.position == p for w in here)
        for here, p in zip(facts.writers, positions, strict=True)
    )


def _own_by_links(facts: Facts) -> bool:
    """Without tokens: tell whether the records chain on, by the positions they name, from sound ones."""
    group, run = facts.group, facts.run
    if is_cached_only(run):
        return False
    begin, end = int(group.starts[run.request]), int(group.starts[run.request + 1])
    slots, positions = group.slot[begin:end], group.position[begin:end]
    inside = (slots > 0) & (slots < group.num_slots)
    slots, positions = slots[inside], positions[inside]
    named = group.records[slots, CANARY_FIELD_POSITION]
    at_home = named == positions
    sound = set(zip(group.digests[slots[at_home]].tolist(), positions[at_home].tolist(), strict=True))
    if 0 not in positions[at_home]:
        sound.add((int(CHAIN_HEAD_HASH), -1))
    away = np.flatnonzero(~at_home)
    for i in away[np.argsort(named[away], kind="stable")].tolist():
        prev = int(group.records[slots[i], CANARY_FIELD_PREV_HASH]) & _WORD
        if (prev, int(named[i]) - 1) in sound:
            sound.add((int(group.digests[slots[i]]), int(named[i])))
    return all(
        pair in sound
        for pair in zip(facts.digests.tolist(), facts.stored[:, CANARY_FIELD_POSITION].tolist(), strict=True)
    )


def tokens_differ(desk: Desk, facts: Facts) -> Case | None:
    """Only tokens differ, at a start that the chain runs on into."""
    run = facts.run
    if not run.any(T) or run.any(P) or run.opened or run.closed:
        return None
    wrong = (run.letters & T) != 0
    placeholders = bool((run.tokens[wrong] >= PLACEHOLDER).all())
    stored, asked = facts.stored[wrong, 0], run.tokens[wrong]
    shift = _rotation(facts)
    evidence = [
        f"position {p}: stored {s}, the request has {t}"
        for p, s, t in list(zip(run.positions[wrong].tolist(), stored.tolist(), asked.tolist(), strict=True))[:3]
    ]
    evidence.append("the chain is built on these tokens: they were fed to the model, not damaged later")
    evidence.append("up to the newest token" if run.after < 0 else f"right again from position {run.stop} on")
    if shift:
        evidence.append(f"the stored tokens are the request's own, {shift:+d} positions away")
    return _tokens_case(desk, facts, wrong, evidence, placeholders, shift)


def _tokens_case(
    desk: Desk, facts: Facts, wrong: np.ndarray, evidence: list[str], placeholders: bool, shift: int | None
) -> Case:
    run = facts.run
    case = build(
        desk,
        facts,
        "tokens_differ_from_request",
        f"{where(desk, facts)}: other tokens were processed than the request has.",
        confidence=POSSIBLE if placeholders else LIKELY,
        evidence=evidence,
        details={"from": run.start, "token_shift": shift},
        rivals=["wrong_prefix_hit"] if run.start == 0 and run.count > 1 else [],
    )
    if placeholders:
        case.severity = NOTE
        case.evidence.append("the request's ids there are no vocabulary's: placeholders of an image or sound")
    if case.rivals:
        case.confidence = POSSIBLE
    case.cells = [(run.request, p) for p in run.positions[wrong].tolist()]
    case.slots = run.slots[wrong].tolist()
    return case


def _rotation(facts: Facts) -> int | None:
    """By how many positions the stored tokens are off, if they are the request's own; None if they are others."""
    group, run = facts.group, facts.run
    begin, end = int(group.starts[run.request]), int(group.starts[run.request + 1])
    stored = facts.stored[:, 0]
    for shift in (1, -1):
        cells = run.cells + shift
        inside = (cells >= begin) & (cells < end)
        if inside.sum() >= 2 and (group.token[cells[inside]] == stored[inside]).all():
            return shift
    return None


def unexplained(desk: Desk, facts: Facts) -> Case:
    """What is known of a run that no rule names."""
    held = facts.stored[:, CANARY_FIELD_POSITION]
    name = describe_writer(facts, desk)[0]
    return build(
        desk,
        facts,
        "unexplained",
        f"{where(desk, facts)}: the records fit no known pattern.",
        confidence=POSSIBLE,
        evidence=[f"the records name positions {span(held)}", f"writer: {name or 'unknown'}"],
        details={"plausible": facts.plausible, "writer": name},
    )
