"""Faults of the records themselves, and of a half or a pool that lacks what the other has."""

from __future__ import annotations

import numpy as np

from canary_numba.errors import FaultNotApplicable
from canary_numba.faults.label import Label
from canary_numba.faults.pool import Pool
from canary_numba.faults.scene import Scene
from canary_numba.faults.stretches import Stretch, draw
from canary_numba.layout import RealKvHashMode

FIELDS = ("token", "position", "prev_hash", "real_kv_hash")


def canary_field_bit_flip(scene: Scene) -> Label:
    """One bit of one field of one record turned over."""
    pool = scene.full
    hit = draw(scene, most=1, cached=True)
    slot = int(hit.slots[0])
    # The prefix cache alone is checked on TAIL records.
    buffers = [key for key in pool.records if hit.request is not None or key[1] == "TAIL"]
    half, stage = scene.pick(buffers, "records of a slot")
    field = int(scene.rng.integers(len(FIELDS)))
    newest = slot not in scene.children if hit.request is None else hit.positions.stop == hit.request.length
    known = hit.request is not None and scene.requests.expected_tokens is not None
    alone = newest and len(pool.records) == 1
    if (FIELDS[field] == "token" and newest and not known) or (field < 2 and alone):
        raise FaultNotApplicable("nothing tells that a record without a successor or a twin has changed")
    if FIELDS[field] == "real_kv_hash" and stage == "TAIL" and not _hashed(pool, half):
        raise FaultNotApplicable("the dump has no K/V bytes to compare a fingerprint with")
    bit = int(scene.rng.integers(31 if field < 2 else 64))
    record = pool.records[half, stage][slot : slot + 1, field].view(np.uint64)
    record ^= np.uint64(1 << bit)
    places = scene.places([slot])
    return scene.label(
        "canary_field_bit_flip",
        places,
        [slot],
        half=half,
        stage=stage,
        field=FIELDS[field],
        bit=bit,
        cached_only=None if places else True,
    )


def _hashed(pool: Pool, half: str) -> bool:
    return pool.mode == RealKvHashMode.NONE or bool(pool.group.halves[half].sources)


def component_missing(scene: Scene) -> Label:
    """A half, or a pool, was not restored over a stretch for which the other one was."""
    choices = [("half", half) for half in scene.full.halves] if len(scene.full.halves) == 2 else []
    choices += [("pool", kind) for kind in scene.pools] if "SWA" in scene.pools else []
    part, which = scene.pick(choices, "second half or pool")
    if part == "half":
        hit = draw(scene, least=2, pages=True)
        scene.full.wipe(hit.slots, halves=which)
        places = scene.places(hit.slots.tolist())
        return scene.label("component_missing", places, hit.slots, missing=which, half=which)
    return _pool_missing(scene, which)


def _pool_missing(scene: Scene, kind: str) -> Label:
    hit = _in_window(scene)
    window, pool = scene.pools["SWA"], scene.pools[kind]
    if kind == "FULL" and not (window.own(hit.slots) > 0).all():
        raise FaultNotApplicable("the window pool does not have all of the stretch")
    own = pool.own(hit.slots)
    pool.wipe(own)
    size = window.group.swa_window_size if kind == "SWA" else 0
    places = {
        request.name: tuple(
            p for p in scene.places(hit.slots.tolist()).get(request.name, ()) if _seen(request.length, p, size)
        )
        for request in scene.live
    }
    return scene.label(
        "component_missing",
        {name: own for name, own in places.items() if own},
        own,
        missing=kind,
        full_slots=hit.slots.tolist(),
    )


def _seen(length: int, position: int, window: int) -> bool:
    return not window or position >= length - window


def _in_window(scene: Scene) -> Stretch:
    """Positions inside one live request's window, in whole pages as far as the window has them, two at least."""
    window = scene.pools["SWA"]
    choices = []
    for request in scene.live:
        first = max(0, request.length - window.group.swa_window_size)
        for page in scene.pages(request):
            run = range(max(first, page.start), page.stop)
            if len(run) >= 2 or (scene.page_size == 1 and page.start >= first and page.start + 1 < request.length):
                run = run if len(run) >= 2 else range(page.start, page.start + 2)
                choices.append((request, run))
    request, run = scene.pick(choices, "live request with two tokens in its window")
    return Stretch(request, run, scene.slots(request)[run.start : run.stop])
