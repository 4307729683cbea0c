"""The allocator's faults: slots handed out twice, freed too early, freed twice."""

from __future__ import annotations

import numpy as np

from canary_numba.errors import FaultNotApplicable
from canary_numba.faults.label import Label
from canary_numba.faults.pool import Int64s
from canary_numba.faults.scene import Live, Scene


def slot_owned_twice(scene: Scene) -> Label:
    """A live request's page was handed out again: a later request wrote its own tokens there."""
    choices = []
    for late in scene.live:
        newest = scene.pages(late)[-1]
        if not _replaceable(scene, late, newest):
            continue
        mine = set(scene.slots(late).tolist())
        for early in scene.live:
            for page in scene.pages(early) if early is not late else ():
                slots = scene.slots(early)[page.start : page.start + len(newest)]
                # Without tokens, nothing tells whose the first page of a request should be.
                alike = page.start == newest.start == 0 and scene.requests.expected_tokens is None
                if len(page) >= len(newest) and mine.isdisjoint(slots.tolist()) and not alike:
                    choices.append((late, newest, early, page))
    late, newest, early, page = scene.pick(choices, "two live requests of which one could get the other's slots")
    hit = scene.slots(early)[page.start : page.start + len(newest)]
    own = scene.slots(late)[newest.start : newest.stop]
    # Two requests that computed the same beginning each for itself lose nothing by sharing it.
    lost = [scene.digest(int(a)) != scene.digest(int(b)) for a, b in zip(hit, own, strict=True)]
    if not any(lost):
        raise FaultNotApplicable("the two pages hold the same tokens of the same history")
    _hand_over(scene, late, newest, hit)
    hit = hit[lost]
    return scene.label(
        "slot_owned_twice",
        scene.places(hit.tolist()),
        hit,
        writer=late.name,
        owner=late.name,
        owner_position=newest.start,
    )


def _replaceable(scene: Scene, request: Live, page: range) -> bool:
    """Tell whether a page is this request's alone, sound, and not about to be written into."""
    if request.extend and page.stop % scene.page_size:
        return False
    return all(scene.private(request, p) and scene.at_home(request, p) for p in page)


def _hand_over(scene: Scene, late: Live, page: range, hit: Int64s) -> None:
    """Let ``late`` have written its page into the slots ``hit``; the slots that it had are as never used."""
    old = scene.slots(late)[page.start : page.stop]
    whole = _whole_page(scene, old)
    for pool, own in scene.everywhere(old):
        if pool.mapping is None:
            pool.copy(own, hit)
        else:
            # Freeing a slot frees its window slot, and handing it out maps it to a new one.
            scene.release_window(hit)
            pool.mapping[hit] = pool.own(old)
            pool.mapping[old] = 0
    scene.full.wipe(old)
    scene.point(late, page, hit)
    scene.release(whole)


def _whole_page(scene: Scene, slots: Int64s) -> list[int]:
    first = int(slots[0]) // scene.page_size * scene.page_size
    return list(range(first, first + scene.page_size)) if scene.page_size > 1 else slots.tolist()


def live_slot_on_free_list(scene: Scene) -> Label:
    """A page in use was freed; nobody got it yet."""
    if "FULL" not in scene.free:
        raise FaultNotApplicable("the dump has no free list")
    choices = [
        (request, page) for request in scene.live for page in scene.pages(request) if len(page) == scene.page_size
    ]
    request, page = scene.pick(choices, "page of a live request that is full")
    slots = scene.slots(request)[page.start : page.stop].tolist()
    if set(slots) & set(scene.free["FULL"]):
        raise FaultNotApplicable("the page is on the free list as it is")
    scene.free["FULL"].extend(slots)
    return scene.label("live_slot_on_free_list", scene.places(slots), slots)


def double_free(scene: Scene) -> Label:
    """A free page was freed once more."""
    free = scene.free.get("FULL", [])
    slot = scene.pick([slot for slot in free if slot], "free slot on a free list")
    slots = [s for s in _whole_page(scene, np.array([slot])) if s in set(free)]
    free.extend(slots)
    return scene.label("double_free", {}, slots)


def duplicate_slot_in_request(scene: Scene) -> Label:
    """A request was given a page of its own once more: the later tokens are written over the earlier ones."""
    choices = []
    for request in scene.live:
        newest = scene.pages(request)[-1]
        if _replaceable(scene, request, newest):
            choices += [(request, page, newest) for page in scene.pages(request)[:-1]]
    request, page, newest = scene.pick(choices, "live request with two pages, the last one its own")
    hit = scene.slots(request)[page.start : page.start + len(newest)]
    _hand_over(scene, request, newest, hit)
    places = scene.places(hit.tolist())
    return scene.label("duplicate_slot_in_request", places, hit, owner=request.name, owner_position=newest.start)


def unlawful_sharing(scene: Scene) -> Label:
    """The page that a request is about to write is somebody else's."""
    size, choices = scene.page_size, []
    for late in scene.live:
        fresh = late.length % size == 0 and late.length + size <= scene.table.shape[1]
        count = min(size, max(1, late.extend))
        for early in scene.live if fresh else ():
            pages = scene.pages(early) if early is not late else []
            choices += [(late, count, early, page) for page in pages if len(page) >= count]
    late, count, early, page = scene.pick(choices, "request that is about to begin a page, beside another one")
    target = range(late.length, late.length + count)
    old = scene.table[late.row, target.start : target.stop].astype(np.int64)
    slots = scene.slots(early)[page.start : page.start + count]
    if late.extend:
        scene.release(_whole_page(scene, old))
        scene.point(late, target, slots)
    else:
        scene.extend(late, count, slots)
    places = {name: list(own) for name, own in scene.places(slots.tolist()).items()}
    places[late.name] = [*places.get(late.name, []), *target]
    return scene.label("unlawful_sharing", places, slots, writer=late.name, owner=early.name)
