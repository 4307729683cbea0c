"""K/V bytes that are not what their record says, while the record itself is sound.

- ``canary_field_bit_flip``: the record's real-KV hash is off by a bit or a few: the fingerprint changed, not the bytes.
- ``kv_bytes_copied``: the bytes' hash is another slot's stored hash.
- ``restore_mismatch``: the failing slots are those of a restore or receive event, or the end of its range.
- ``padding_write``: only the last slot, slot 0's page, or one offset of many pages.
- ``physical_range_overwritten``: failing slots are neighbours by number, not in a request's order.
- ``kv_bytes_changed``: none of these.
"""

from __future__ import annotations

import numpy as np

from canary_numba.diagnosis.case import Case, Desk, plural, span
from canary_numba.diagnosis.chains import Int64s
from canary_numba.diagnosis.clusters import FEWEST, in_request_order, same_place_in_page
from canary_numba.diagnosis.damaged_records import FEW_BITS, bits_of
from canary_numba.diagnosis.kv_extent import Bad, changed_case, grown, runs_of, same_owners
from canary_numba.diagnosis.view import GroupView, P, R, T
from canary_numba.findings import LIKELY, POSSIBLE
from canary_numba.layout import RealKvHashMode

_WORD = (1 << 64) - 1
REACH = 64
"""Slots on both sides of a failing one whose bytes are looked at as well."""


def find_changed_bytes(desk: Desk, group: GroupView) -> None:
    """Turn every slot whose bytes fail alone into a case."""
    bad = _failing(desk, group)
    if not bad.slots.shape[0]:
        return
    desk.explain(group, [], bad.slots)
    bad = _without(bad, _flipped_hashes(desk, group, bad))
    if desk.kv[group.kind].known:
        bad = _without(bad, _copied(desk, group, bad))
    # An event that accounts for all of them says more than that some are neighbours; one of several causes does not.
    bad = _without(bad, _restored(desk, group, bad, alone=True))
    bad = _without(bad, _physical(desk, group, bad))
    bad = _without(bad, _same_offset(desk, group, bad))
    bad = _without(bad, _restored(desk, group, bad))
    bad = _without(bad, _padding(desk, group, bad))
    for slots in runs_of(desk, group, bad.slots):
        desk.add(changed_case(desk, group, bad, slots))


def _failing(desk: Desk, group: GroupView) -> Bad:
    """Slots that fail for their bytes alone, by half."""
    halves: dict[str, list[Int64s]] = {half: [] for half in group.in_use}
    for i, name in enumerate(group.failure_names):
        bits = group.failures.bits[i]
        own = (bits & R != 0) & (bits & (P | T) == 0)
        halves[name.split("_")[1]].append(group.slot[group.failures.entries[own]])
    for half, bits in zip(group.node_failure_halves, group.node_failures.bits, strict=True):
        own = (bits & R != 0) & (bits & P == 0)
        halves[half].append(group.node_slot[group.node_failures.entries[own]])
    known = desk.explained[group.kind]
    found = {half: np.unique(np.concatenate(slots)) for half, slots in halves.items() if slots}
    found = {half: slots[~known.is_bad(slots)] for half, slots in found.items()}
    return Bad({half: slots for half, slots in found.items() if slots.shape[0]})


def _without(bad: Bad, done: set[int]) -> Bad:
    gone = np.array(sorted(done), dtype=np.int64)
    left = {half: np.setdiff1d(slots, gone) for half, slots in bad.by_half.items()}
    return Bad({half: slots for half, slots in left.items() if slots.shape[0]})


def _flipped_hashes(desk: Desk, group: GroupView, bad: Bad) -> set[int]:
    done: set[int] = set()
    for half, slots in bad.by_half.items():
        now = desk.kv[group.kind].expected(half, slots)
        if now is None:
            continue
        stored = desk.kv[group.kind].stored(half)[slots]
        for slot, old, new in zip(slots.tolist(), stored.tolist(), now.tolist(), strict=True):
            bits = bits_of((old ^ new) & _WORD)
            few = len(bits) <= FEW_BITS
            if not few and desk.kv[group.kind].mode != RealKvHashMode.NONE:
                continue
            done.add(slot)
            cells = desk.owners(group, [slot])
            desk.add(
                Case(
                    fault="canary_field_bit_flip",
                    summary=f"The real_kv_hash field of the TAIL_{half} record of slot {slot} is off in bit "
                    f"{span(bits)}; the bytes are what they were.",
                    pool=group.kind,
                    confidence=LIKELY if few else POSSIBLE,
                    cells=cells,
                    slots=[slot],
                    evidence=[f"stored hash 0x{old & _WORD:016x}, it should be 0x{new & _WORD:016x}"],
                    details={
                        "field": "real_kv_hash",
                        "bit": bits[0] if len(bits) == 1 else bits,
                        "half": half,
                        "buffers": [f"TAIL_{half}"],
                        "cached_only": not cells,
                    },
                )
            )
    return done


def _copied(desk: Desk, group: GroupView, bad: Bad) -> set[int]:
    """Slots that hold another slot's bytes; those that obey one rule make one case."""
    sources: dict[int, dict[str, list[int]]] = {}
    for half, slots in bad.by_half.items():
        if half in desk.kv[group.kind].halves:
            for slot, others in desk.kv[group.kind].found_elsewhere(half, slots).items():
                sources.setdefault(slot, {})[half] = others
    origin: dict[int, int] = {}
    for slot, found in sources.items():
        common = set.intersection(*(set(others) for others in found.values()))
        origin[slot] = min(common or set(next(iter(found.values()))))
    if not origin:
        return set()
    slots = np.array(sorted(origin), dtype=np.int64)
    offsets = np.array([origin[s] - s for s in slots.tolist()])
    groups = [slots[offsets == offset] for offset in np.unique(offsets).tolist()]
    alone = np.concatenate([piece for piece in groups if piece.shape[0] == 1] or [slots[:0]])
    for piece in [*(p for p in groups if p.shape[0] > 1), *runs_of(desk, group, alone)]:
        desk.add(_copied_case(desk, group, bad, np.asarray(piece), origin, sources))
    return set(origin)


def _copied_case(
    desk: Desk,
    group: GroupView,
    bad: Bad,
    slots: Int64s,
    origin: dict[int, int],
    sources: dict[int, dict[str, list[int]]],
) -> Case:
    cells = same_owners(desk, group, slots)
    origins = [origin[s] for s in slots.tolist()]
    offsets = np.unique(np.array(origins) - slots)
    halves = "+".join(sorted({half for s in slots.tolist() for half in sources[s]}))
    rule = f"each from {int(offsets[0]):+d}" if offsets.shape[0] == 1 and slots.shape[0] > 1 else None
    return Case(
        fault="kv_bytes_copied",
        summary=f"The {halves} bytes of slot {span(slots)} are those of slot {span(origins)}"
        + (f" ({rule} slots)." if rule else "."),
        pool=group.kind,
        cells=cells,
        slots=slots.tolist(),
        evidence=[
            f"the bytes of slot {s} hash to what the record of slot {origin[s]} says" for s in slots.tolist()[:3]
        ],
        details={
            "half": halves,
            "copied_from": origins[0] if len(origins) == 1 else origins,
            "offset": int(offsets[0]) if offsets.shape[0] == 1 else None,
            "cached_only": not cells,
        },
    )


def _restored(desk: Desk, group: GroupView, bad: Bad, *, alone: bool = False) -> set[int]:
    """Slots that are exactly a restored or received range, or where it begins or ends; ``alone``: and all there are."""
    done: set[int] = set()
    failing = set(bad.slots.tolist())
    runs = [set(run.tolist()) for run in runs_of(desk, group, bad.slots)]
    mapping = group.group.full_to_swa_index_mapping
    for event in desk.view.dump.events:
        if event.kind not in ("restore", "receive") or mapping is not None:
            continue
        listed = [s for s in event.slots.tolist() if s]
        hit = [s for s in listed if s in failing and s not in done]
        whole, suffix = hit == listed, hit == listed[len(listed) - len(hit) :]
        if not hit or not (whole or (suffix and len(hit) > 1) or (hit == listed[: len(hit)] and len(hit) > 1)):
            continue
        slots = np.array(hit, dtype=np.int64)
        if alone and set(hit) != failing:
            continue
        if any(run & set(hit) and not run <= set(hit) for run in runs):
            continue
        done.update(hit)
        desk.add(_restored_case(desk, group, bad, slots, event.kind, event.step, event.source, whole))
    return done


def _in_one_event(desk: Desk, slots: Int64s) -> bool:
    """Tell whether one restore or receive brought all of ``slots``: neighbours in a page then say nothing."""
    return any(
        event.kind in ("restore", "receive") and np.isin(slots, event.slots.numpy()).all()
        for event in desk.view.dump.events
    )


def _restored_case(
    desk: Desk, group: GroupView, bad: Bad, slots: Int64s, kind: str, step: int, source: str, whole: bool
) -> Case:
    case = changed_case(desk, group, bad, np.sort(slots))
    case.fault = "restore_mismatch"
    part = "all" if whole else "a part"
    case.summary = (
        f"The {case.details['half']} bytes differ in {part} of what a {kind} brought in at step {step}: " + case.summary
    )
    case.evidence.append(
        f"{plural(slots.shape[0], 'slot')} of the event {kind} of step {step}" + (f" from {source}" if source else "")
    )
    case.details.update({"event": kind, "step": step, "source": source, "whole": whole})
    case.rivals = []
    return case


def _physical(desk: Desk, group: GroupView, bad: Bad) -> set[int]:
    """Neighbours by number that no request has in this order."""
    done: set[int] = set()
    for piece, look in grown(desk, group, bad, REACH):
        hit = piece[np.isin(piece, bad.slots)]
        if piece.shape[0] < FEWEST or not hit.shape[0]:
            continue
        if _in_one_event(desk, piece) or in_request_order(group, piece) or (hit.shape[0] < FEWEST and look is None):
            continue
        case = changed_case(desk, group, bad, piece)
        case.fault = "physical_range_overwritten"
        case.summary = (
            f"The {case.details['half']} bytes of slots {int(piece[0])}-{int(piece[-1])} were overwritten"
            + (f" ({look})" if look else "")
            + ", whoever owns them: something wrote over a piece of the pool."
        )
        case.evidence.insert(0, f"{plural(piece.shape[0], 'slot')} side by side, {int(hit.shape[0])} of them in use")
        case.rivals = []
        done.update(hit.tolist())
        desk.add(case)
    return done


def _page_size(desk: Desk, group: GroupView) -> int:
    return max(desk.view.page_size, *(source.page_size for half in group.halves.values() for source in half.sources), 1)


def _same_offset(desk: Desk, group: GroupView, bad: Bad) -> set[int]:
    """Slots at one offset of several pages."""
    offset = same_place_in_page(bad.slots, _page_size(desk, group)) if bad.slots.shape[0] else None
    if offset is None:
        return set()
    desk.add(_padding_case(desk, group, bad, f"offset {offset} of every page", sure=True))
    return set(bad.slots.tolist())


def _padding(desk: Desk, group: GroupView, bad: Bad) -> set[int]:
    """The last slot, or slot 0's page, if nothing else fails."""
    page = _page_size(desk, group)
    if not bad.slots.shape[0]:
        return set()
    if bad.slots.tolist() == [group.num_slots - 1]:
        desk.add(_padding_case(desk, group, bad, "the pool's last slot", sure=False))
    elif page > 1 and int(bad.slots[-1]) < page:
        desk.add(_padding_case(desk, group, bad, "the page of slot 0", sure=bad.slots.shape[0] > 1))
    else:
        return set()
    return set(bad.slots.tolist())


def _padding_case(desk: Desk, group: GroupView, bad: Bad, what: str, *, sure: bool) -> Case:
    case = changed_case(desk, group, bad, bad.slots)
    case.fault = "padding_write"
    case.summary = (
        f"Only {what} fails ({case.details['half']} bytes): padded rows of a batch were written into real slots."
    )
    case.confidence = LIKELY if sure else POSSIBLE
    case.rivals = [] if sure else ["kv_bytes_changed"]
    return case
