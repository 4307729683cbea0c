"""Where a fault strikes: stretches of consecutive positions of a live request, and paths of the prefix cache."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from canary_numba.faults.pool import Int64s
from canary_numba.faults.scene import Live, Scene

LONGEST = 12
"""Positions of a drawn stretch, unless a page is longer."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive positions, with their FULL slots. ``request``: None where only the prefix cache holds the slots."""

    request: Live | None
    positions: range
    slots: Int64s


def draw(scene: Scene, *, least: int = 1, pages: bool = False, cached: bool = False, most: int = LONGEST) -> Stretch:
    """Draw a stretch of a live request.

    Parameters
    ----------
    scene
        Where to look.
    least, most
        Positions that it has; the upper bound yields to a whole page.
    pages
        Whether it begins and ends with a page.
    cached
        Whether it may also be a stretch that the prefix cache alone holds.
    """
    size = scene.page_size if pages else 1
    rows: list[tuple[Live | None, Int64s, int]] = [(request, scene.slots(request), 0) for request in scene.live]
    if cached and scene.rng.random() < 0.2:
        rows = [(None, slots, first) for slots, first in _idle_paths(scene)] or rows
    fitting = [(request, slots, first) for request, slots, first in rows if len(slots) // size * size >= least]
    request, slots, first = scene.pick(fitting, f"live request with {least} cached tokens")
    count = len(slots) // size
    fewest = -(-least // size)
    length = int(scene.rng.integers(fewest, max(fewest, min(count, most // size)) + 1))
    begin = size * int(scene.rng.integers(count - length + 1))
    stop = begin + length * size
    return Stretch(request, range(first + begin, first + stop), slots[begin:stop])


def _idle_paths(scene: Scene) -> list[tuple[Int64s, int]]:
    """Ends of cached paths that no live request holds, each with its first position."""
    found = []
    for path in cached_paths(scene):
        held = [i for i, slot in enumerate(path.tolist()) if slot in scene.owners]
        first = held[-1] + 1 if held else 0
        if first < len(path):
            found.append((path[first:], first))
    return found


def cached_paths(scene: Scene) -> list[Int64s]:
    """Slots of every path of the prefix cache from position 0 to where it ends."""
    found = []
    for leaf in scene.nodes:
        if scene.children.get(leaf):
            continue
        path: list[int] = []
        slot = leaf
        while slot in scene.nodes and len(path) <= len(scene.nodes):
            path.append(slot)
            slot = scene.nodes[slot][1]
        found.append(np.array(path[::-1], dtype=np.int64))
    return found
