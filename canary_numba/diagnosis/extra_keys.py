"""Prefixes shared across what should tell them apart.

- ``wrong_prefix_hit``: two live requests share slots, and their tokens agree, but not their extra keys (adapter, image,
  salt): the K/V bytes were computed for another one. No check fails.
- ``row_recycled``: the same, and one of them has no slot of its own, though it is not computing its first.
"""

from __future__ import annotations

import numpy as np

from canary_numba.diagnosis.case import LISTED, Case, Desk, plural, span


def find_shared_across_keys(desk: Desk) -> None:
    """One case for each pair of requests that share sound slots under different extra keys."""
    requests, group = desk.view.dump.requests, desk.view.groups.get("FULL")
    if requests is None or requests.extra_keys is None or group is None or not group.slot.shape[0]:
        return
    numbers = {key: i for i, key in enumerate(dict.fromkeys(requests.extra_keys))}
    key = np.array([numbers[k] for k in requests.extra_keys], dtype=np.int64)[group.request]
    sound = np.flatnonzero(~desk.explained["FULL"].cells & (group.slot > 0) & (group.slot < group.num_slots))
    least = np.full(group.num_slots, len(numbers), dtype=np.int64)
    most = np.full(group.num_slots, -1, dtype=np.int64)
    np.minimum.at(least, group.slot[sound], key[sound])
    np.maximum.at(most, group.slot[sound], key[sound])
    mixed = sound[least[group.slot[sound]] < most[group.slot[sound]]]
    pairs: dict[tuple[int, int], list[int]] = {}
    for cell in mixed[:LISTED].tolist():
        others = [other for other in group.cells_of(int(group.slot[cell])).tolist() if key[other] != key[cell]]
        owner = min(int(group.request[other]) for other in others)
        if owner < int(group.request[cell]):
            pairs.setdefault((owner, int(group.request[cell])), []).append(cell)
    for (owner, request), cells in pairs.items():
        whole = next((r for r in (request, owner) if _has_nothing_else(desk, r, len(cells))), None)
        if whole is None:
            desk.add(_shared(desk, owner, request, cells))
        else:
            desk.add(_recycled(desk, whole, owner if whole == request else request))


def _has_nothing_else(desk: Desk, request: int, shared: int) -> bool:
    group = desk.view.groups["FULL"]
    own = int(group.starts[request + 1] - group.starts[request])
    return shared == own and int(desk.view.extend_lens()[request]) == 0


def _recycled(desk: Desk, request: int, owner: int) -> Case:
    group = desk.view.groups["FULL"]
    cells = np.arange(group.starts[request], group.starts[request + 1])
    return Case(
        fault="row_recycled",
        summary=f"The whole row of {desk.name(request)} belongs to {desk.name(owner)}, whose extra key is another: "
        "it has no slot of its own.",
        cells=desk.places(group, cells),
        slots=group.slot[cells].tolist(),
        evidence=[f"all {plural(cells.shape[0], 'slot')} are {desk.name(owner)}'s; even the newest token's is"],
        details={"owner": desk.name(owner), "owner_position": 0},
        rivals=["wrong_prefix_hit"],
    )


def _shared(desk: Desk, owner: int, request: int, cells: list[int]) -> Case:
    requests, group = desk.view.dump.requests, desk.view.groups["FULL"]
    assert requests is not None
    assert requests.extra_keys is not None
    positions = group.position[cells]
    return Case(
        fault="wrong_prefix_hit",
        summary=f"{desk.name(request)} and {desk.name(owner)} share {plural(len(cells), 'slot')} (position "
        f"{span(positions)}), though their extra keys differ: one reads K/V bytes of the other's adapter or image.",
        cells=desk.places(group, cells),
        partners=[desk.name(owner)],
        slots=group.slot[cells].tolist(),
        evidence=[
            f"extra keys {requests.extra_keys[request]!r} and {requests.extra_keys[owner]!r}",
            "tokens and chain agree: no check can see it",
        ],
        details={"owner": desk.name(owner), "owner_position": int(positions[0]), "extra_keys": True},
    )
