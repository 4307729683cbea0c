"""Ranks of one step that did not process the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from canary_numba.dump.model import Dump
from canary_numba.faults.label import Label
from canary_numba.faults.scene import Scene


def ranks_disagree(scene: Scene) -> Label:
    """Make the dump that of the next rank, which was fed other tokens, or given other slots, for one request."""
    context = ranked(scene.dump).context
    rank = (int(context["tp_rank"]) + 1) % int(context["tp_size"])
    scene.dump = replace(scene.dump, context={**context, "tp_rank": rank})
    _shard(scene)
    request = scene.pick([r for r in scene.live if scene.own_from(r) < r.length], "request with a token of its own")
    start = int(scene.rng.integers(scene.own_from(request), request.length))
    tokens, slots = scene.tokens(request), scene.slots(request)
    fed = tokens[start:]
    fed[0] = (fed[0] + 1 + int(scene.rng.integers(30000))) % 32000
    begin = scene.digest(int(slots[start - 1]) if start else -1)
    scene.stamp(slots[start:], fed, range(start, request.length), begin)
    expected = scene.requests.expected_tokens
    if expected is not None:
        place = start + scene.full.group.kv_token_id_vs_position_offset
        if place < expected.shape[1]:
            expected[request.row, place] = fed[0]
    return scene.label(
        "ranks_disagree", {request.name: range(start, request.length)}, [], rank=rank, first_position=start
    )


def _shard(scene: Scene) -> None:
    """Give all slots in use the bytes of another share of the heads, and their fingerprints."""
    used = np.array(sorted(slot for slot in {*scene.owners, *scene.nodes} if slot > 0), dtype=np.int64)
    for pool, own in scene.everywhere(used):
        pool.fill(own)
        pool.refresh(np.unique(own))


def ranked(dump: Dump) -> Dump:
    """The dump as it is, if its context says that it is one of several ranks of a step; else as rank 0 of 2."""
    step, size, rank = (dump.context.get(key) for key in ("step", "tp_size", "tp_rank"))
    if isinstance(step, int) and isinstance(size, int) and isinstance(rank, int) and size > 1:
        return dump
    given = step if isinstance(step, int) else 0
    return replace(dump, context={**dump.context, "step": given, "tp_rank": 0, "tp_size": 2})
