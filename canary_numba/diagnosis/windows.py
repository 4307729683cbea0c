"""Sliding-window pools: what the mapping says, and what the window's records say where the full pool is sound.

- ``swa_slot_evicted_in_window``: the mapping is 0 for a position inside the window. Verify skips slot 0: silent.
- ``swa_mapping_points_elsewhere``: a window record fits another request, or two live slots map to one window slot,
  while the full pool is sound at the same position.
- ``component_missing``: one group's records are zero or old at positions where the other group's are sound.
"""

from __future__ import annotations

import numpy as np

from canary_numba.diagnosis.attribution import LIVE
from canary_numba.diagnosis.case import Case, Desk, plural, span
from canary_numba.diagnosis.case_of_run import build, where
from canary_numba.diagnosis.damaged_records import FEW_BITS, FIELDS, bits_of
from canary_numba.diagnosis.facts import Facts, is_cached_only
from canary_numba.diagnosis.table_entries import by_request
from canary_numba.diagnosis.table_rest import row_of
from canary_numba.diagnosis.view import GroupView
from canary_numba.findings import CERTAIN, LIKELY, POSSIBLE
from canary_numba.layout import CANARY_FIELD_POSITION


def find_evicted(desk: Desk) -> None:
    """Positions inside the window whose mapping entry is 0."""
    for group in desk.view.groups.values():
        mapping = group.group.full_to_swa_index_mapping
        if group.kind != "SWA" or mapping is None:
            continue
        evicted = np.flatnonzero((group.slot == 0) & (group.full > 0) & (group.full < mapping.shape[0]))
        evicted = evicted[~desk.bad_in_full(group, evicted)]
        evicted = evicted[~np.isin(group.full[evicted], _passed(desk, group))]
        for request, cells in _apart(group, evicted):
            positions = group.position[cells]
            desk.add(
                Case(
                    fault="swa_slot_evicted_in_window",
                    summary=f"{desk.name(request)}, position {span(positions)}: the window slot was released, though "
                    f"the position is inside the window of {group.group.swa_window_size:,}.",
                    confidence=CERTAIN,
                    cells=desk.places(group, cells),
                    slots=group.full[cells].tolist(),
                    evidence=[
                        f"mapping entry 0 for {plural(cells.shape[0], 'slot')} of the window, which begins at "
                        f"{int(group.first[request]):,}"
                    ],
                    details={"pool": "SWA"},
                )
            )
        desk.explain(group, evicted, [])


def _passed(desk: Desk, group: GroupView) -> np.ndarray:
    """FULL slots that the window of some live request has left behind: sharers of a prefix release them together."""
    requests = desk.view.dump.requests
    pieces = [np.empty(0, dtype=np.int64)]
    for request in range(len(requests.rids) if requests is not None else 0):
        assert requests is not None
        row = row_of(requests, request)
        if row is not None:
            pieces.append(row[: int(group.first[request])])
    return np.unique(np.concatenate(pieces))


def _apart(group: GroupView, cells: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """Cells by request and stretch of positions."""
    return [
        (request, piece)
        for request, mine in by_request(group, cells)
        for piece in np.split(mine, np.flatnonzero(np.diff(mine) > 1) + 1)
    ]


def full_is_sound(desk: Desk, facts: Facts) -> bool:
    """Tell whether the full pool shows nothing at the run's positions."""
    if facts.group.kind == "FULL" or "FULL" not in desk.view.groups or is_cached_only(facts.run):
        return False
    return not desk.bad_in_full(facts.group, facts.run.cells).any()


def window_run(desk: Desk, facts: Facts) -> Case | None:
    """A run of the window pool that the full pool does not share."""
    if not full_is_sound(desk, facts):
        return None
    run, group = facts.run, facts.group
    full_slots = group.full[run.cells]
    if facts.zero:
        return _missing(desk, facts, "zero")
    flipped = _flipped(desk, facts)
    if flipped is not None:
        return flipped
    owner = facts.sole_owner()
    if owner is None:
        writer = facts.writer()
        live = writer is not None and writer.kind == LIVE
        owner = (writer.request, writer.position) if live and writer is not None else _owner_in_full(desk, facts)
    if owner is None:
        return _missing(desk, facts, "old") if facts.plausible else None
    name = desk.name(owner[0])
    case = build(
        desk,
        facts,
        "swa_mapping_points_elsewhere",
        f"{where(desk, facts)}: the mapping leads slot {span(full_slots)} to the window slot of {name}, position "
        f"{owner[1]}.",
        confidence=CERTAIN if all(facts.others) else LIKELY,
        evidence=[
            f"window slot {span(run.slots)} holds the record of {name}, position {owner[1]}",
            "the full pool's records are sound at the same positions",
        ],
        details={"owner": name, "owner_position": owner[1], "swa_slots": run.slots.tolist()[:64]},
    )
    case.pool = "FULL"
    case.owner = owner
    case.slots = full_slots.tolist()
    return case


def _flipped(desk: Desk, facts: Facts) -> Case | None:
    """One field that is off by a bit or a few from the full pool's record of the same token, its twin."""
    if facts.run.count != 1:
        return None
    full = desk.view.groups["FULL"]
    twin = full.records_at(facts.group.full[facts.run.cells])[0, :3]
    fields = np.flatnonzero(twin != facts.stored[0, :3])
    if fields.shape[0] != 1:
        return None
    field = int(fields[0])
    bits = bits_of(int(twin[field]) ^ int(facts.stored[0, field]))
    if len(bits) > FEW_BITS:
        return None
    name = FIELDS[field]
    return build(
        desk,
        facts,
        "canary_field_bit_flip",
        f"The {name} field of the {facts.group.kind} record in slot {int(facts.run.slots[0])} ({where(desk, facts)}) "
        f"is off in bit {span(bits)}.",
        evidence=[f"{name} is {int(facts.stored[0, field])}, the full pool's record has {int(twin[field])}"],
        details={"field": name, "bit": bits[0] if len(bits) == 1 else bits},
    )


def _owner_in_full(desk: Desk, facts: Facts) -> tuple[int, int] | None:
    """Without tokens: the live cell whose record in the full pool equals the run's first window record."""
    full = desk.view.groups["FULL"]
    held = desk.attribution["FULL"].holders(facts.digests[:1]).get(int(facts.digests[0]), [])
    owners = desk.owners(full, held)
    return owners[0] if owners else None


def _missing(desk: Desk, facts: Facts, how: str) -> Case:
    """The window pool lacks what the full pool has."""
    run = facts.run
    content = "nothing" if how == "zero" else f"positions {span(facts.stored[:, CANARY_FIELD_POSITION])}"
    return build(
        desk,
        facts,
        "component_missing",
        f"{where(desk, facts)}: the {facts.group.kind} records are {how} where the full pool's are sound: one pool was "
        "restored or moved without the other.",
        confidence=LIKELY if how == "zero" or run.count > 1 else POSSIBLE,
        evidence=[f"window slots {span(run.slots)} hold {content}"],
        details={"missing": facts.group.kind, "zero": how == "zero"},
        rivals=[] if how == "zero" else ["swa_mapping_points_elsewhere"],
    )


def full_missing(desk: Desk, facts: Facts) -> Case | None:
    """A zero run of the full pool at positions whose window records are all sound."""
    window = desk.view.groups.get("SWA")
    run = facts.run
    if facts.group.kind != "FULL" or window is None or is_cached_only(run) or not facts.zero:
        return None
    failing = set(window.failures.entries.tolist())
    cells = [window.cell_at(run.request, p) for p in run.positions.tolist()]
    if any(c is None or c in failing or not window.inside(int(window.slot[c])) for c in cells):
        return None
    return build(
        desk,
        facts,
        "component_missing",
        f"{where(desk, facts)}: the full pool's records are zero where the window pool's are sound: one pool was "
        "restored or moved without the other.",
        evidence=["window records are sound at all of these positions"],
        details={"missing": "FULL", "zero": True},
    )
