"""Faults that put the wrong tokens' K/V into a request's slots: nothing, another part, somebody else's, old ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from canary_numba.errors import FaultNotApplicable
from canary_numba.faults.label import Label
from canary_numba.faults.pool import Int64s
from canary_numba.faults.scene import Scene
from canary_numba.faults.slot_bytes import fill_slots
from canary_numba.faults.stretches import draw
from canary_numba.layout import CANARY_FIELD_TOKEN

FEWEST_OWNED = 6
"""Slots of live requests in an overwritten piece of the pool: with fewer, it could be anything."""


def slots_never_written(scene: Scene) -> Label:
    """Pages that count as cached never arrived."""
    hit = draw(scene, least=2, pages=True)
    for pool, own in scene.everywhere(hit.slots):
        pool.wipe(own)
    return scene.label("slots_never_written", scene.places(hit.slots.tolist()), hit.slots)


def slots_exchanged(scene: Scene) -> Label:
    """Two pieces of a request arrived in each other's place, or one of them in both places."""
    size = scene.page_size
    requests = [request for request in scene.live if request.length >= 2 * size]
    request = scene.pick(requests, "live request with two pages")
    pages = request.length // size
    count = int(scene.rng.integers(1, max(1, min(pages // 2, 8 // size)) + 1))
    first = int(scene.rng.integers(0, pages - 2 * count + 1))
    second = int(scene.rng.integers(first + count, pages - count + 1))
    slots = scene.slots(request)
    a, b = (slots[page * size : (page + count) * size] for page in (first, second))
    if any(scene.digest(x) == scene.digest(y) for x, y in zip(a.tolist(), b.tolist(), strict=True)):
        raise FaultNotApplicable("the two pieces hold the same")
    repeat = bool(scene.rng.random() < 0.3)
    for pool in scene.pools.values():
        here, there = pool.own(a), pool.own(b)
        both = (here > 0) & (there > 0)
        if not both.any():
            continue
        kept_here, kept_there = here[both], there[both]
        if repeat:
            pool.copy(kept_here, kept_there)
        else:
            pool.copy(np.concatenate([kept_here, kept_there]), np.concatenate([kept_there, kept_here]))
    hit = b if repeat else np.concatenate([a, b])
    delta = (first - second) * size
    return scene.label("slots_exchanged", scene.places(hit.tolist()), hit, delta=delta if repeat else None)


def foreign_block(scene: Scene) -> Label:
    """Whole pages hold another sequence's tokens and history, whose owner is gone."""
    hit = draw(scene, least=2, pages=True)
    whole = hit.request is not None and hit.positions.stop == hit.request.length
    if hit.positions.start == 0 and (whole or scene.requests.expected_tokens is None):
        raise FaultNotApplicable("nothing tells whose a sequence's first block is without what follows it, and tokens")
    tokens = scene.rng.integers(1, 32000, len(hit.slots)).tolist()
    begin = scene.digest(-1) if hit.positions.start == 0 else int(scene.rng.integers(1 << 63))
    for pool, own in scene.everywhere(hit.slots):
        pool.fill(own)
    scene.stamp(hit.slots, tokens, hit.positions, begin)
    return scene.label("foreign_block", scene.places(hit.slots.tolist()), hit.slots)


def canary_stale(scene: Scene) -> Label:
    """K/V bytes were moved to other slots, and the records were left behind."""
    if not any(half.sources for half in scene.full.group.halves.values()) or scene.full.mode == 0:
        raise FaultNotApplicable("the dump has no fingerprints of K/V bytes")
    size = scene.page_size
    choices = [
        (request, page)
        for request in scene.live
        for page in scene.pages(request)
        if all(scene.private(request, p) for p in page) and not (request.extend and page.stop % size)
    ]
    free = scene.free.get("FULL", [])
    old = [slot for slot in free[::size] if scene.full.main[slot].any()] or free[::size]
    request, page = scene.pick(choices, "page that one live request alone holds")
    first = scene.pick([slot for slot in old if slot % size == 0], "free page to move into")
    source = scene.slots(request)[page.start : page.stop]
    target = np.arange(first, first + len(page))
    if scene.digest(int(target[0])) == scene.digest(int(source[0])):
        raise FaultNotApplicable("the free page holds the same tokens of the same history")
    whole = source[0] // size * size + np.arange(size)
    scene.free["FULL"] = [slot for slot in free if not first <= slot < first + size]
    _leave_old_records(scene, target, page)
    scene.full.copy(source, target, records=False)
    window = scene.pools.get("SWA")
    if window is not None and window.mapping is not None:
        window.mapping[first + np.arange(size)] = window.own(whole)
        window.mapping[whole] = 0
    scene.point(request, page, target)
    scene.release(whole.tolist())
    return scene.label(
        "canary_stale", {request.name: page}, target, copied_from=source.tolist() if len(source) > 1 else int(source[0])
    )


def _leave_old_records(scene: Scene, slots: Int64s, page: range) -> None:
    """Give slots that were never used the records of an earlier request."""
    empty = slots[~scene.full.main[slots].any(axis=1)]
    if empty.size:
        tokens = scene.rng.integers(1, 32000, len(empty)).tolist()
        positions = range(page.stop + 3, page.stop + 3 + len(empty))
        scene.full.write(
            empty, tokens, list(positions), scene.chain(int(scene.rng.integers(1 << 62)), tokens, positions)
        )


def physical_range_overwritten(scene: Scene) -> Label:
    """A kernel wrote one value over neighbouring slots, whoever owns them: over bytes, or over a field of records."""
    pool = scene.full
    used = np.zeros(pool.num_slots, dtype=np.bool_)
    used[[slot for slot in {*scene.owners, *scene.nodes} if 0 < slot < pool.num_slots]] = True
    count = int(scene.rng.integers(6, 16)) + (scene.page_size if scene.page_size > 1 else 0)
    starts = [
        first
        for first in range(1, pool.num_slots - count)
        if used[first] and used[first + count - 1] and _scattered(scene, range(first, first + count))
    ]
    first = scene.pick(starts, "piece of the pool in which several owners have slots")
    slots = np.arange(first, first + count)
    half = str(scene.rng.choice(pool.halves))
    sources = pool.group.halves[half].sources
    if not sources or pool.mode == 0 or scene.rng.random() < 0.25:
        value = int(scene.rng.choice((0, 0x7F7F7F7F7F7F7F7F)))
        stage = str(scene.rng.choice([s for h, s in pool.records if h == half]))
        pool.records[half, stage][slots, CANARY_FIELD_TOKEN] = value
        where: dict[str, Any] = {"field": "token", "value": value}
    else:
        pattern = int(scene.rng.choice((0x00, 0xFF, 0x5A)))
        for layer in pool.own_sources(half):
            fill_slots(layer, slots, pattern)
        where = {"value": pattern}
    hit = [slot for slot in slots.tolist() if used[slot]]
    return scene.label("physical_range_overwritten", scene.places(hit), slots, half=half, **where)


def _scattered(scene: Scene, slots: range) -> bool:
    """Tell whether several live requests own some of these neighbours, and none has them as neighbouring positions."""
    owned = [{(request.index, position - slot) for request, position in scene.owners.get(slot, [])} for slot in slots]
    owned = [places for places in owned if places]
    requests = {index for places in owned for index, _ in places}
    return len(owned) >= FEWEST_OWNED and len(requests) > 1 and not set.intersection(*owned)
