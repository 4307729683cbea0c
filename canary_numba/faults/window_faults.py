"""Faults of the mapping from full to window slots."""

from __future__ import annotations

from canary_numba.errors import FaultNotApplicable
from canary_numba.faults.label import Label
from canary_numba.faults.pool import Int64s
from canary_numba.faults.scene import Live, Scene


def swa_slot_evicted_in_window(scene: Scene) -> Label:
    """Window slots were released while their positions are still inside the window."""
    mapping, window = _mapping(scene)
    choices = []
    for request in scene.live:
        first = max(0, request.length - window)
        for page in scene.pages(request):
            slots = scene.slots(request)[page.start : page.stop]
            if page.start >= first and (mapping[slots] > 0).all() and not _passed(scene, slots, window):
                choices.append((request, page))
    request, page = scene.pick(choices, "page inside a window")
    slots = scene.slots(request)[page.start : page.stop]
    whole = slots[0] // scene.page_size * scene.page_size + range(scene.page_size) if scene.page_size > 1 else slots
    scene.free.get("SWA", []).extend(int(slot) for slot in mapping[whole] if slot)
    mapping[whole] = 0
    return scene.label("swa_slot_evicted_in_window", scene.places(slots.tolist()), slots)


def _passed(scene: Scene, slots: Int64s, window: int) -> bool:
    """Tell whether some live request's window has left one of the slots behind."""
    wanted = set(slots.tolist())
    return any(wanted & set(scene.slots(other)[: max(0, other.length - window)].tolist()) for other in scene.live)


def swa_mapping_points_elsewhere(scene: Scene) -> Label:
    """A mapping entry leads to another request's window slot, or two entries are crossed."""
    mapping, window = _mapping(scene)
    inside = [
        (request, position)
        for request in scene.live
        for position in range(max(0, request.length - window), request.length)
        if mapping[scene.slots(request)[position]] > 0
    ]
    victim, position = scene.pick(inside, "position inside a window")
    slot = int(scene.slots(victim)[position])
    choices = [(o, q) for o, q in inside if o is not victim and _differs(scene, victim, slot, o, q)]
    other, place = scene.pick(choices, "second live request inside its window")
    target = int(scene.slots(other)[place])
    crossed = bool(scene.rng.random() < 0.3)
    old, new = int(mapping[slot]), int(mapping[target])
    mapping[slot] = new
    if crossed:
        mapping[target] = old
    hit = [slot, target] if crossed else [slot]
    places = {
        request.name: tuple(p for p in scene.places(hit).get(request.name, ()) if p >= request.length - window)
        for request in scene.live
    }
    return scene.label(
        "swa_mapping_points_elsewhere",
        {name: own for name, own in places.items() if own},
        hit,
        owner=other.name,
        owner_position=place,
        crossed=crossed or None,
    )


def _differs(scene: Scene, victim: Live, slot: int, other: Live, position: int) -> bool:
    target = int(scene.slots(other)[position])
    return target not in scene.slots(victim).tolist() and scene.digest(target) != scene.digest(slot)


def _mapping(scene: Scene) -> tuple[Int64s, int]:
    pool = scene.pools.get("SWA")
    if pool is None or pool.mapping is None:
        raise FaultNotApplicable("the dump has no sliding-window pool")
    return pool.mapping, pool.group.swa_window_size
