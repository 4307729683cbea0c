"""Records that differ between the buffers of one pool: HEAD and TAIL, K and V hold the same token and history.

- ``canary_field_bit_flip``: memory error or stray write. One field of one record differs from what the other buffers
  say by one bit, or a few.
- ``physical_range_overwritten``: such damage in slots that are neighbours by number; often one value.
- ``component_missing``: every buffer of one half is zero or old where the other half is sound.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from canary_numba.diagnosis.case import LISTED, Case, Desk, plural, span
from canary_numba.diagnosis.chains import Int64s
from canary_numba.diagnosis.clusters import FEWEST, in_request_order, neighbours_in_use
from canary_numba.diagnosis.view import Bools, GroupView, H, P, T
from canary_numba.findings import LIKELY, POSSIBLE

FIELDS = ("token", "position", "prev_hash", "real_kv_hash")
FEW_BITS = 4
"""Bits that a memory error changes at most: more look like another value."""

_DENSE = 0.75
"""Share of the slots in use that are damaged, from the first such slot to the last, where one cause has them all."""


@dataclass(frozen=True, slots=True)
class Damage:
    """Slots whose records are damaged alike: in which buffers, in which fields. ``sound``: a buffer that is not."""

    buffers: tuple[str, ...]
    fields: tuple[int, ...]
    sound: str
    slots: Int64s


def find_damaged_records(desk: Desk, group: GroupView) -> None:
    """Turn every record that its twins contradict into a case."""
    for damage in _damages(desk, group):
        rest = []
        hit = np.intersect1d(_differing(group), np.flatnonzero(group.owned))
        for whole in neighbours_in_use(group, np.union1d(hit, damage.slots)):
            piece = whole[np.isin(whole, damage.slots)]
            if not _one_half(group, damage) and _is_physical(group, damage, piece):
                rest.append(piece)
        physical = np.concatenate(rest) if rest else np.empty(0, dtype=np.int64)
        wide = _wide_range(desk, group, damage)
        if wide is not None:
            desk.add(_physical(desk, group, damage, wide))
            physical = damage.slots
        else:
            for piece in rest:
                desk.add(_physical(desk, group, damage, piece))
        alone = np.setdiff1d(damage.slots, physical)
        if alone.shape[0] and _one_half(group, damage) and not _all_flips(group, damage, alone):
            desk.add(_missing_half(desk, group, damage, alone))
        else:
            for slot in alone.tolist():
                desk.add(_single(desk, group, damage, slot))
        _explain(desk, group, damage.slots)


def _differing(group: GroupView) -> Int64s:
    main = group.records[:, :3]
    differs: Bools = np.zeros(group.num_slots, dtype=np.bool_)
    for records in group.buffers.values():
        differs |= (records[:, :3] != main).any(axis=1)
    differs[0] = False
    return np.flatnonzero(differs)


def _failing(group: GroupView) -> dict[str, Bools]:
    """By buffer: slots whose record fails, or whose successor's chain check accuses it."""
    found: dict[str, Bools] = {name: np.zeros(group.num_slots, dtype=np.bool_) for name in group.buffers}
    for i, name in enumerate(group.failure_names):
        bits, entries = group.failures.bits[i], group.failures.entries
        _mark(found[name], group.slot[entries], bits & (H | P | T))
        _mark(found[name], group.prev[entries], bits & H)
    for i, bits in enumerate(group.node_failures.bits):
        name = f"TAIL_{group.node_failure_halves[i]}"
        entries = group.node_failures.entries
        _mark(found[name], group.node_slot[entries], bits & (H | P))
        _mark(found[name], group.node_prev[entries], bits & H)
    return found


def _mark(marks: Bools, slots: Int64s, reasons: Int64s) -> None:
    chosen = slots[(reasons != 0) & (slots > 0) & (slots < marks.shape[0])]
    marks[chosen] = True


def _damages(desk: Desk, group: GroupView) -> list[Damage]:
    """Differing slots that some check complains about, grouped by what is damaged."""
    if len(group.buffers) < 2 or not (group.failures.entries.shape[0] or group.node_failures.entries.shape[0]):
        return []
    slots = _differing(group)
    failing = _failing(group)
    names = list(group.buffers)
    bad = np.stack([failing[name][slots] for name in names])
    keep = bad.any(axis=0) & ~bad.all(axis=0) & ~desk.explained[group.kind].slots[slots]
    slots, bad = slots[keep], bad[:, keep]
    if not slots.shape[0]:
        return []
    sound = bad.argmin(axis=0)
    records = np.stack([group.buffers[name][slots, :3] for name in names])
    good = records[sound, np.arange(slots.shape[0])]
    differing = (records != good).transpose(1, 0, 2).reshape(slots.shape[0], -1)
    codes = differing @ (1 << np.arange(differing.shape[1])) * len(names) + sound
    found = []
    for code in np.unique(codes).tolist():
        mine = codes == code
        which = differing[np.flatnonzero(mine)[0]].reshape(len(names), 3)
        damaged = tuple(sorted(name for name, fields in zip(names, which, strict=True) if fields.any()))
        fields = tuple(np.flatnonzero(which.any(axis=0)).tolist())
        found.append(Damage(damaged, fields, names[code % len(names)], slots[mine]))
    return found


def _explain(desk: Desk, group: GroupView, slots: Int64s) -> None:
    entries = group.failures.entries
    own = np.isin(group.slot[entries], slots) & ((group.failures.seen & (H | P | T)) != 0)
    echo = np.isin(group.prev[entries], slots) & ((group.failures.seen & (P | T)) == 0)
    desk.explain(group, entries[own | echo], slots)


def _one_half(group: GroupView, damage: Damage) -> bool:
    """Tell whether exactly one half is damaged, in all its buffers, and in more than a field."""
    halves = {name.split("_")[1] for name in damage.buffers}
    mine = [name for name in group.buffers if name.split("_")[1] in halves]
    return len(halves) == 1 and len(group.in_use) == 2 and len(mine) == len(damage.buffers) and len(damage.fields) > 1


def _flip(group: GroupView, damage: Damage, slot: int) -> tuple[int, list[int]]:
    """The one damaged field, and the bits that differ."""
    field = damage.fields[0]
    stored = int(group.buffers[damage.buffers[0]][slot, field])
    return field, bits_of(stored ^ int(group.buffers[damage.sound][slot, field]))


def bits_of(word: int) -> list[int]:
    """Numbers of the bits set in a 64-bit word."""
    return [bit for bit in range(64) if word >> bit & 1]


def _all_flips(group: GroupView, damage: Damage, slots: Int64s) -> bool:
    if len(damage.fields) != 1:
        return False
    return all(len(_flip(group, damage, slot)[1]) <= FEW_BITS for slot in slots.tolist())


def _is_physical(group: GroupView, damage: Damage, slots: Int64s) -> bool:
    """Tell whether neighbours are enough of them, or say the same, to be one write."""
    records = group.buffers[damage.buffers[0]][slots][:, list(damage.fields)]
    alike = slots.shape[0] > 1 and bool((records == records[0]).all()) and not _all_flips(group, damage, slots)
    return (slots.shape[0] >= FEWEST or alike) and not in_request_order(group, slots)


def _wide_range(desk: Desk, group: GroupView, damage: Damage) -> Int64s | None:
    """All slots from the first damaged to the last, if among those in use in between hardly one is sound."""
    if damage.slots.shape[0] < 2 * FEWEST or _one_half(group, damage):
        return None
    first, last = int(damage.slots[0]), int(damage.slots[-1])
    used = np.flatnonzero(group.owned[first : last + 1]) + first
    hit = np.isin(used, _differing(group))
    owners = np.unique(group.request[group.cells_on(damage.slots)])
    return used[hit] if hit.mean() > _DENSE and owners.shape[0] != 1 else None


def _physical(desk: Desk, group: GroupView, damage: Damage, slots: Int64s) -> Case:
    cells = group.cells_on(slots)
    names_of = [desk.name(r) for r in np.unique(group.request[cells]).tolist()]
    values = [np.unique(group.buffers[damage.buffers[0]][slots, field]) for field in damage.fields]
    names = [FIELDS[field] for field in damage.fields]
    same = all(value.shape[0] == 1 for value in values)
    value = int(values[0][0]) if same and len(values) == 1 else None
    written = f"{'zero' if value == 0 else value} was written into" if value is not None else "another value stands in"
    return Case(
        fault="physical_range_overwritten",
        summary=f"In slots {int(slots[0])}-{int(slots[-1])} {written} the {' and '.join(names)} field of "
        f"{', '.join(damage.buffers)} records, whoever owns the slot.",
        pool=group.kind,
        cells=desk.places(group, cells[:LISTED]),
        partners=names_of,
        slots=slots.tolist(),
        evidence=[
            f"{plural(slots.shape[0], 'damaged record')} among neighbours by slot number, of "
            f"{plural(len(names_of), 'request')}",
            f"{damage.sound} records of the same slots are sound",
        ],
        details={"field": names[0] if len(names) == 1 else names, "buffers": list(damage.buffers), "value": value},
    )


def _single(desk: Desk, group: GroupView, damage: Damage, slot: int) -> Case:
    cells = desk.owners(group, [slot])
    cached_only = not cells
    where = _where(desk, cells)
    if len(damage.fields) > 1:
        fields = [FIELDS[field] for field in damage.fields]
        return Case(
            fault="unexplained",
            summary=f"The {', '.join(damage.buffers)} record of slot {slot}{where} differs from its twin in "
            f"{' and '.join(fields)}: something wrote into it.",
            pool=group.kind,
            confidence=POSSIBLE,
            cells=cells,
            slots=[slot],
            evidence=[f"{damage.sound} of the same slot is sound"],
            details={"fields": fields, "buffers": list(damage.buffers), "cached_only": cached_only},
            rivals=["physical_range_overwritten", "canary_field_bit_flip"],
        )
    field, bits = _flip(group, damage, slot)
    stored = int(group.buffers[damage.buffers[0]][slot, field])
    true = int(group.buffers[damage.sound][slot, field])
    few = len(bits) <= FEW_BITS
    return Case(
        fault="canary_field_bit_flip",
        summary=f"The {FIELDS[field]} field of the {', '.join(damage.buffers)} record of slot {slot}{where} differs "
        + (f"from its twin in bit {span(bits)}." if few else f"from its twin in {len(bits)} bits."),
        pool=group.kind,
        confidence=LIKELY if few else POSSIBLE,
        cells=cells,
        slots=[slot],
        evidence=[f"{FIELDS[field]} is {stored}, {damage.sound} of the same slot has {true}, and its chain is sound"],
        details={
            "field": FIELDS[field],
            "bit": bits[0] if len(bits) == 1 else bits,
            "buffers": list(damage.buffers),
            "stored": stored,
            "expected": true,
            "cached_only": cached_only,
        },
        rivals=[] if few else ["physical_range_overwritten"],
    )


def _where(desk: Desk, cells: list[tuple[int, int]]) -> str:
    if not cells:
        return " (held by the prefix cache alone)"
    request, position = cells[0]
    return f" ({desk.name(request)}, position {position})"


def _missing_half(desk: Desk, group: GroupView, damage: Damage, slots: Int64s) -> Case:
    half = damage.buffers[0].split("_")[1]
    zero = not group.buffers[damage.buffers[0]][slots].any()
    cells = desk.owners(group, slots.tolist())
    return Case(
        fault="component_missing",
        summary=f"The {half} records of {plural(slots.shape[0], 'slot')} are {'zero' if zero else 'old'} where the "
        "other half is sound: one half was restored or moved without the other.",
        pool=group.kind,
        cells=cells,
        slots=slots.tolist(),
        evidence=[f"{damage.sound} records of slots {span(slots)} are sound"],
        details={"missing": half, "half": half, "zero": zero},
    )
