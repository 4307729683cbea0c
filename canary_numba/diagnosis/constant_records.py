"""One field overwritten with one value, over a piece of the pool.

- ``physical_range_overwritten``: slots that are neighbours by number among those in use, several requests' among them,
  are accused (by themselves, or by a chain that breaks just after them) and hold one token, position or chain hash.
"""

from __future__ import annotations

import numpy as np

from canary_numba.diagnosis.case import LISTED, Case, Desk, plural
from canary_numba.diagnosis.chains import Int64s
from canary_numba.diagnosis.clusters import FEWEST, neighbours_in_use
from canary_numba.diagnosis.view import GroupView, H, P, T
from canary_numba.diagnosis.wiped_records import one_owner
from canary_numba.findings import LIKELY
from canary_numba.layout import CANARY_FIELD_POSITION, CANARY_FIELD_PREV_HASH, CANARY_FIELD_TOKEN

_FIELDS = {
    "token": CANARY_FIELD_TOKEN,
    "position": CANARY_FIELD_POSITION,
    "prev_hash": CANARY_FIELD_PREV_HASH,
}


def find_constant_ranges(desk: Desk, group: GroupView) -> None:
    """One case for each such range."""
    slots = _accused(desk, group)
    for piece in neighbours_in_use(group, slots):
        for name, column in _FIELDS.items():
            values = group.records[piece, column]
            for part in np.split(piece, np.flatnonzero(np.diff(values)) + 1):
                owners = group.cells_on(part)
                if part.shape[0] < FEWEST or one_owner(group, part, owners):
                    continue
                desk.add(_case(desk, group, part, owners, name))
                last = np.isin(owners, group.starts[1:] - 1)
                desk.explain(group, np.union1d(owners, owners[~last] + 1), part)


def _accused(desk: Desk, group: GroupView) -> Int64s:
    """Slots whose own record is wrong, or after which a chain breaks with nothing else wrong; ascending."""
    known = desk.explained[group.kind]
    failures, nodes = group.failures, group.node_failures
    keep = ~known.cells[failures.entries]
    cells, bits = failures.entries[keep], failures.agreed[keep]
    fresh = ~known.witnesses(nodes.entries)
    entries, node_bits = nodes.entries[fresh], nodes.agreed[fresh]
    own, node_own = (bits & (P | T)) != 0, (node_bits & P) != 0
    after, node_after = ~own & ((bits & H) != 0), ~node_own & ((node_bits & H) != 0)
    slots = np.concatenate(
        [
            group.slot[cells[own]],
            group.prev[cells[after]],
            group.node_slot[entries[node_own]],
            group.node_prev[entries[node_after]],
        ]
    )
    return np.unique(slots[(slots > 0) & (slots < group.num_slots)])


def _case(desk: Desk, group: GroupView, slots: Int64s, owners: Int64s, field: str) -> Case:
    names = [desk.name(r) for r in np.unique(group.request[owners]).tolist()]
    return Case(
        fault="physical_range_overwritten",
        summary=f"The {field} field of the records of slots {int(slots[0])}-{int(slots[-1])} was overwritten with one "
        "value, whoever owns them: something wrote over a piece of the pool.",
        pool=group.kind,
        confidence=LIKELY,
        cells=desk.places(group, owners[:LISTED]),
        partners=names,
        slots=slots.tolist(),
        evidence=[
            f"{plural(slots.shape[0], 'slot')} side by side among those in use, of {plural(len(names), 'request')}",
            f"each holds the same {field}, and its own check or the next one fails",
        ],
        details={"field": field},
    )
