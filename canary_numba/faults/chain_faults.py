"""Faults that the chain is built on: wrong positions, wrong tokens, another prompt's prefix."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from canary_numba.dump.model import Radix
from canary_numba.faults.label import Label
from canary_numba.faults.pool import Int64s
from canary_numba.faults.scene import Live, Scene
from canary_numba.faults.stretches import cached_paths


def positions_shifted(scene: Scene) -> Label:
    """From some position on, up to a chunk's or the request's end, positions are off by a constant."""
    request = scene.pick([r for r in scene.live if scene.own_from(r) < r.length], "request with a token of its own")
    start = int(scene.rng.integers(scene.own_from(request), request.length))
    stop = request.length
    if scene.rng.random() < 0.4:
        stop = int(scene.rng.integers(start + 1, request.length + 1))
    delta = int(scene.rng.choice([d for d in (1, -1, -start, start) if d and start + d >= 0] or [1]))
    positions = [p + delta if start <= p < stop else p for p in range(start, request.length)]
    _rewrite(scene, request, start, scene.tokens(request)[start:], positions)
    run = range(start, stop)
    return scene.label("positions_shifted", {request.name: run}, scene.slots(request)[start:stop], delta=delta)


def tokens_differ_from_request(scene: Scene) -> Label:
    """Other tokens were fed than the request owns: rotated by one in a chunk, or drafts that had been rejected."""
    request = scene.pick([r for r in scene.live if scene.own_from(r) < r.length], "request with a token of its own")
    own, tokens = scene.own_from(request), scene.tokens(request)
    start = int(scene.rng.integers(own, request.length))
    stop = min(request.length, start + int(scene.rng.integers(1, 9)))
    fed = list(tokens)
    if scene.rng.random() < 0.4 and stop - start > 1:
        fed[start:stop] = [*tokens[start + 1 : stop], tokens[start]]
    else:
        fed[start:stop] = scene.rng.integers(1, 32000, stop - start).tolist()
    wrong = [p for p in range(start, stop) if fed[p] != tokens[p]]
    scene.pick(wrong, "token that differs")
    _rewrite(scene, request, start, fed[start:], range(start, request.length))
    return scene.label("tokens_differ_from_request", {request.name: wrong}, scene.slots(request)[wrong])


def _rewrite(scene: Scene, request: Live, start: int, tokens: list[int], positions: list[int] | range) -> None:
    """Build a request's chain anew from ``start`` on."""
    slots = scene.slots(request)
    begin = scene.digest(int(slots[start - 1]) if start else -1)
    scene.stamp(slots[start:], tokens, positions, begin)


def wrong_prefix_hit(scene: Scene) -> Label:
    """The prefix cache gave a request another prompt's pages; its own part chains on from them."""
    choices = [
        (request, name, slots[:length])
        for request in scene.live
        for name, slots in _prefixes(scene, request)
        # A cached path has to go on past the hit: else nothing in the dump would show whose it is.
        for length in range(scene.page_size, min(len(slots) - (name is None), request.length - 1) + 1, scene.page_size)
        if _can_hit(scene, request, slots[:length])
    ]
    request, name, prefix = scene.pick(choices, "request whose beginning could be another prompt's")
    length, mine, tokens = len(prefix), scene.slots(request), scene.tokens(request)
    differ = [p for p in range(length) if scene.digest(int(mine[p])) != scene.digest(int(prefix[p]))]
    scene.point(request, range(length), prefix)
    _drop(scene, request, mine, prefix)
    _rewrite(scene, request, length, tokens[length:], range(length, request.length))
    run = range(differ[0], length)
    return scene.label(
        "wrong_prefix_hit", {request.name: run}, prefix[run.start :], owner=name, owner_position=run.start
    )


def _prefixes(scene: Scene, request: Live) -> list[tuple[str | None, Int64s]]:
    """Slots of other live requests, and of cached paths."""
    others = [(other.name, scene.slots(other)) for other in scene.live if other is not request]
    return [*others, *((None, path) for path in cached_paths(scene))]


def _can_hit(scene: Scene, request: Live, prefix: Int64s) -> bool:
    """Tell whether a prefix holds other tokens than the request's, and nobody else depends on the part that follows."""
    length, mine = len(prefix), scene.slots(request)
    if scene.own_from(request) > length or np.isin(prefix, mine[length:]).any():
        return False
    if scene.digest(int(mine[0])) == scene.digest(int(prefix[0])):
        return False
    window = scene.pools.get("SWA")
    if window is None:
        return True
    first = max(0, request.length - window.group.swa_window_size)
    return bool((window.own(prefix[first:]) > 0).all())


def _drop(scene: Scene, request: Live, mine: Int64s, prefix: Int64s) -> None:
    """Forget the pages that the hit replaced, as far as nobody else has them, and hang the rest below the hit."""
    length, size = len(prefix), scene.page_size
    gone: set[int] = set()
    for first in range(length - size, -1, -size):
        page = mine[first : first + size].tolist()
        after = int(mine[first + size])
        alone = all(scene.owners.get(slot) == [(request, first + i)] for i, slot in enumerate(page))
        followed = [child for child in scene.children.get(page[-1], []) if child != after]
        if not alone or followed or set(page) & set(prefix.tolist()):
            break
        gone.update(page)
    radix = scene.dump.radix
    if radix is not None:
        prevs = radix.prev_slot_indices.clone()
        prevs[radix.slot_indices == int(mine[length])] = int(prefix[-1])
        keep = ~torch.isin(radix.slot_indices, torch.tensor(sorted(gone), dtype=torch.int64))
        left = Radix(
            slot_indices=radix.slot_indices[keep], positions=radix.positions[keep], prev_slot_indices=prevs[keep]
        )
        scene.dump = replace(scene.dump, radix=left)
    scene.release(sorted(gone))
