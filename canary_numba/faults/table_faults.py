"""Faults of the table from request to slots: entries overwritten, kept, doubled, out of range, or copied too early."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from canary_numba.diagnosis.chains import chain_tokens, digest_records, find_equal
from canary_numba.dump.model import LiveLog
from canary_numba.errors import FaultNotApplicable
from canary_numba.faults.label import Label
from canary_numba.faults.pool import Int64s
from canary_numba.faults.scene import Live, Scene
from canary_numba.layout import CANARY_FIELD_PREV_HASH, VIOLATION_FIELDS, CanaryLaunchTag

LONGEST_RUN = 9


def table_points_elsewhere(scene: Scene) -> Label:
    """One entry was overwritten with another live request's slot."""
    choices = [(victim, other) for victim in scene.live for other in scene.live if victim is not other]
    victim, other = scene.pick(choices, "two live requests")
    position, place = int(scene.rng.integers(victim.length)), int(scene.rng.integers(other.length))
    old, new = int(scene.table[victim.row, position]), int(scene.table[other.row, place])
    if scene.digest(old) == scene.digest(new) or new in scene.slots(victim).tolist():
        raise FaultNotApplicable("the two places hold the same token of the same history")
    scene.point(victim, [position], [new])
    return scene.label(
        "table_points_elsewhere",
        {victim.name: (position,)},
        [new],
        owner=other.name,
        owner_position=place,
        right_slot=old,
    )


def stale_table_row(scene: Scene) -> Label:
    """A recycled row kept a range of entries of its earlier owner."""
    found = [(request, name, run, slots) for request in scene.live for name, run, slots in _stale(scene, request)]
    request, name, run, slots = scene.pick(found, "sequence that an earlier owner of a row could have left")
    scene.point(request, run, slots)
    also = ["live_slot_on_free_list"] if set(slots.tolist()) & set(scene.free.get("FULL", ())) else None
    return scene.label("stale_table_row", {request.name: run}, slots, owner=name, also=also)


def _stale(scene: Scene, request: Live) -> list[tuple[str, range, Int64s]]:
    """Ranges of a request at whose positions another sequence still has its records, from finished requests first."""
    mine, found = scene.slots(request), []
    for name, slots in [*_finished(scene), *((other.name, scene.slots(other)) for other in scene.live)]:
        if name == request.name:
            continue
        length = min(len(slots), request.length)
        fits = slots[:length] > 0
        fits &= ~np.isin(slots[:length], mine)
        fits &= np.array([scene.digest(a) != scene.digest(b) for a, b in zip(slots, mine[:length], strict=False)])
        for piece in np.split(np.arange(length), np.flatnonzero(np.diff(fits.astype(int))) + 1):
            run = _within(scene, piece) if piece.size and fits[piece[0]] else range(0)
            if len(run) > 1 and _shows(scene, request, run, slots):
                found.append((name, run, slots[run.start : run.stop]))
    return found


def _shows(scene: Scene, request: Live, run: range, slots: Int64s) -> bool:
    """Tell whether the chain breaks where another's slots begin or, if tokens say who is right, where they end."""
    before = scene.digest(int(scene.slots(request)[run.start - 1]) if run.start else -1)
    prev = int(scene.full.main[slots[run.start], CANARY_FIELD_PREV_HASH])
    opened = prev % (1 << 64) != before
    return opened or (run.stop < request.length and scene.requests.expected_tokens is not None)


def _within(scene: Scene, piece: Int64s) -> range:
    """Some positions of a stretch, in whole pages if there are pages."""
    size = scene.page_size
    first, last = -(-int(piece[0]) // size) * size, (int(piece[-1]) + 1) // size * size
    count = min((last - first) // size, max(1, LONGEST_RUN // size))
    least = 2 if size == 1 else 1
    if count < least:
        return range(0)
    count = int(scene.rng.integers(least, count + 1))
    begin = first + size * int(scene.rng.integers((last - first) // size - count + 1))
    return range(begin, begin + count * size)


def _finished(scene: Scene) -> list[tuple[str, Int64s]]:
    """Slots that still hold the records of finished requests, 0 where they are gone."""
    finished = scene.dump.finished
    if finished is None:
        return []
    held = digest_records(scene.full.main)
    offset = scene.full.group.kv_token_id_vs_position_offset
    found = []
    for name, begin, end in zip(
        finished.rids, finished.indptr[:-1].tolist(), finished.indptr[1:].tolist(), strict=True
    ):
        tokens = finished.tokens[begin + offset : end].numpy().astype(np.int64)
        zero = np.zeros(1, dtype=np.int64)
        digests = chain_tokens(tokens, zero, np.array([0, len(tokens)]))
        slots = find_equal(digests, held)
        copies = [slots.get(digest, [0]) for digest in digests.tolist()]
        # A prefix computed twice has two copies; the one that is still held is the one its row went on to use.
        best = [min(own, key=lambda slot: slot not in scene.nodes and slot not in scene.owners) for own in copies]
        found.append((name, np.array(best, dtype=np.int64)))
    return found


def row_recycled(scene: Scene) -> Label:
    """A request's row was given to another one, and holds that one's slots."""
    choices = [
        (victim, other)
        for victim in scene.live
        for other in scene.live
        if victim is not other and victim.length <= other.length and not victim.extend
        if scene.digest(int(scene.slots(victim)[-1])) != scene.digest(int(scene.slots(other)[victim.length - 1]))
    ]
    victim, other = scene.pick(choices, "request that is no longer than another one, of another prompt")
    before = [slot for p, slot in enumerate(scene.slots(victim).tolist()) if scene.private(victim, p)]
    slots = scene.slots(other)[: victim.length]
    differ = [p for p, slot in enumerate(scene.slots(victim).tolist()) if scene.digest(slot) != scene.digest(slots[p])]
    scene.point(victim, range(victim.length), slots)
    scene.release(before)
    whole = range(differ[0], victim.length)
    return scene.label("row_recycled", {victim.name: whole}, slots[whole.start :], owner=other.name, owner_position=0)


def row_owned_twice(scene: Scene) -> Label:
    """Two live requests have one row."""
    choices = [(a, b) for a in scene.live for b in scene.live if a is not b]
    victim, other = scene.pick(choices, "two live requests")
    rows = scene.requests.req_pool_indices
    rows[victim.index] = other.row
    return scene.label("row_owned_twice", {}, [], requests=[victim.name, other.name], row=other.row)


def stale_row_tail(scene: Scene) -> Label:
    """Entries past a request's length still point at another one's slots."""
    choices = []
    for request in scene.live:
        end = request.length + request.extend
        if scene.requests.allocated_lens is not None:
            end = max(end, int(scene.requests.allocated_lens[request.index]))
        room = scene.table.shape[1] - end
        others = [other for other in scene.live if other is not request]
        choices += [(request, other, end) for other in others if room > 0]
    request, other, end = scene.pick(choices, "row with room past its request's length, beside another request")
    foreign = scene.slots(other)[~np.isin(scene.slots(other), scene.table[request.row, :end])]
    most = min(LONGEST_RUN, len(foreign), scene.table.shape[1] - end)
    if most < 1:
        raise FaultNotApplicable("the other request has no slot of its own")
    slots = foreign[: int(scene.rng.integers(1, most + 1))]
    positions = range(end, end + len(slots))
    scene.table[request.row, positions.start : positions.stop] = slots
    return scene.label("stale_row_tail", {request.name: positions}, slots, owner=other.name)


def index_copy_stale(scene: Scene) -> Label:
    """The kernel's copy of the indices is older than the table, or ends too early."""
    victim = scene.pick(scene.live, "live request")
    length = victim.length + victim.extend
    entries = scene.table[victim.row, :length].astype(np.int64)
    count = int(scene.rng.integers(1, min(LONGEST_RUN, victim.length) + 1))
    if scene.rng.random() < 0.3:
        positions = range(length - count, length)
        positions = range(min(positions.start, victim.length - 1), victim.length)
        scene.replace_indices(victim, entries[: positions.start].tolist())
        return scene.label("index_copy_stale", {victim.name: positions}, entries[positions.start : positions.stop])
    begin = int(scene.rng.integers(victim.length - count + 1))
    positions = range(begin, begin + count)
    foreign = np.setdiff1d(np.arange(1, scene.full.num_slots), entries)
    entries[begin : begin + count] = scene.rng.choice(foreign, count, replace=False)
    scene.replace_indices(victim, entries.tolist())
    return scene.label("index_copy_stale", {victim.name: positions}, entries[begin : begin + count])


def slot_out_of_range(scene: Scene) -> Label:
    """An entry is no slot of the pool at all."""
    victim = scene.pick(scene.live, "live request")
    position = int(scene.rng.integers(victim.length))
    value = (2**31 - 1, scene.full.num_slots, -7, 0x3F800000)[int(scene.rng.integers(4))]
    scene.point(victim, [position], [value])
    return scene.label("slot_out_of_range", {victim.name: (position,)}, [value])


def unallocated_slot_in_prefix(scene: Scene) -> Label:
    """Entries inside a prefix are 0."""
    victim = scene.pick(scene.live, "live request")
    page = scene.pick(scene.pages(victim), "cached page")
    scene.point(victim, page, [0] * len(page))
    return scene.label("unallocated_slot_in_prefix", {victim.name: page}, [0])


def stale_violation_log(scene: Scene) -> Label:
    """The live ring holds a row about a slot that has been written anew since."""
    log = scene.dump.violation_log or LiveLog(
        ring=torch.zeros((16, VIOLATION_FIELDS), dtype=torch.int64), write_index=0
    )
    if log.write_index >= log.ring.shape[0]:
        raise FaultNotApplicable("the live ring has no room for a row")
    victim = scene.pick(scene.live, "live request")
    position = int(scene.rng.integers(victim.length))
    slot = int(scene.slots(victim)[position])
    half, stage = next(iter(scene.full.records))
    token, expected, prev = (int(value) for value in scene.rng.integers(1, 30000, 3))
    tag = int(CanaryLaunchTag.of(stage, half, "FULL"))
    log.ring[log.write_index] = log.ring.new_tensor([tag, slot, position + 1, token, expected, prev, -prev, 1 | 2])
    scene.dump = replace(scene.dump, violation_log=replace(log, write_index=log.write_index + 1))
    return scene.label("stale_violation_log", {}, [slot])
