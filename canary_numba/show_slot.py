"""One slot of a checked dump: who refers to it, who wrote it, and its records field by field."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from canary_numba.check import CheckResult
from canary_numba.check_buffer import TagCheck
from canary_numba.diagnosis.attribution import Attribution
from canary_numba.diagnosis.chains import Int64s, digest_records
from canary_numba.diagnosis.view import DumpView, GroupView
from canary_numba.dump.model import Dump
from canary_numba.errors import ArgumentError
from canary_numba.layout import CANARY_CHAIN_ANCHOR, CANARY_FIELDS_PER_SLOT, FailReason
from canary_numba.mixing import splitmix64

_U64 = (1 << 64) - 1
_FIELD_REASONS = {
    "token": FailReason.VERIFY_TOKEN_MISMATCH,
    "position": FailReason.VERIFY_POSITION_MISMATCH,
    "prev_hash": FailReason.VERIFY_CHAIN_HASH_MISMATCH,
    "real_kv_hash": FailReason.VERIFY_REAL_KV_HASH_MISMATCH,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Something that points at the slot. ``what``: ``table``, ``past the length``, ``prefix cache``, ``free list``,
    ``mapping``, ``kv_indices`` or ``event``; ``request`` and ``position`` where it has any; ``note``: more of it.
    """

    what: str
    request: str | None = None
    position: int | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What one check wants of a record. Hashes are unsigned; ``token`` -1 and ``prev_hash`` None = not checked.

    ``tag``: the check; ``wrong``: names of the fields that are not as expected.
    """

    tag: str
    position: int
    token: int
    prev_hash: int | None
    wrong: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordView:
    """The slot's record in one buffer (``TAIL_K``, ...), hashes unsigned, and what each check of it wants."""

    buffer: str
    token: int
    position: int
    prev_hash: int
    real_kv_hash: int
    expectations: tuple[Expectation, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """A slot near this one. ``relation``: ``slot before``, ``slot after``, ``token before`` or ``token after``.

    ``owners``: (request, position) pairs whose table holds it; ``token``, ``stored_position``: what its record says.
    """

    relation: str
    slot: int
    owners: tuple[tuple[str, int], ...]
    token: int
    stored_position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotView:
    """One slot. ``writers``: (kind, request, position) of everyone whose tokens ask for exactly its record."""

    pool: str
    slot: int
    page: int
    references: tuple[Reference, ...]
    writers: tuple[tuple[str, str, int], ...]
    neighbours: tuple[Neighbour, ...]
    records: tuple[RecordView, ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON data; 64-bit hashes are strings."""
        data = asdict(self)
        data["writers"] = [
            {"kind": kind, "request": name, "position": position} for kind, name, position in self.writers
        ]
        for neighbour in data["neighbours"]:
            neighbour["owners"] = [{"request": name, "position": place} for name, place in neighbour["owners"]]
        for record in data["records"]:
            for field in ("prev_hash", "real_kv_hash"):
                record[field] = f"0x{record[field]:016x}"
            for wanted in record["expectations"]:
                if wanted["prev_hash"] is not None:
                    wanted["prev_hash"] = f"0x{wanted['prev_hash']:016x}"
        return data


def show_slot(dump: Dump, result: CheckResult, slot: int, kind: str = "FULL") -> SlotView:
    """Gather everything that a dump knows of a slot.

    Parameters
    ----------
    dump, result
        A dump and its check.
    slot
        Slot number in the pool's own numbers.
    kind
        The pool, ``FULL`` or ``SWA``.

    Raises
    ------
    ArgumentError
        The dump has no such pool, or the pool no such slot.
    """
    view = DumpView(dump, result)
    group = view.groups.get(kind)
    if group is None:
        raise ArgumentError(f"--group {kind}: not in the dump's groups, which have {', '.join(view.groups)}")
    if not 0 <= slot < group.num_slots:
        raise ArgumentError(f"--slot {slot}: the {kind} pool has slots 0 to {group.num_slots - 1}")
    record = group.records[slot]
    written = Attribution(view, group).writers(group.digests[[slot]]) if record[:3].any() else {}
    return SlotView(
        pool=kind,
        slot=slot,
        page=slot // view.page_size,
        references=tuple(_references(view, group, slot)),
        writers=tuple((one.kind, one.name, one.position) for found in written.values() for one in found),
        neighbours=tuple(_neighbours(view, group, slot)),
        records=tuple(
            _record(name, buf, slot, [check for check in result.checks if _reads(check, name, kind)])
            for name, buf in sorted(_all_buffers(group).items())
        ),
    )


def _owners(view: DumpView, group: GroupView, slot: int) -> list[tuple[str, int]]:
    cells = group.cells_of(slot)
    return [
        (view.names[request], position)
        for request, position in zip(group.request[cells].tolist(), group.position[cells].tolist(), strict=True)
    ]


def _references(view: DumpView, group: GroupView, slot: int) -> list[Reference]:
    found = [Reference(what="table", request=name, position=place) for name, place in _owners(view, group, slot)]
    mapping = group.group.full_to_swa_index_mapping
    full: Int64s = np.array([slot]) if mapping is None else np.flatnonzero(mapping.numpy() == slot)
    found += _past_lengths(view, full if slot else full[:0])
    for node in group.nodes_of(slot).tolist():
        found.append(Reference(what="prefix cache", position=int(group.node_position[node])))
    free = view.free_slots(group.kind)
    if free is not None and (times := int((free == slot).sum())):
        found.append(Reference(what="free list", note="" if times == 1 else f"{times} times"))
    if mapping is not None and slot:
        found += [Reference(what="mapping", note=f"FULL slot {one}") for one in full.tolist()]
    for other in view.groups.values():
        if group.kind == "FULL" and other.group.full_to_swa_index_mapping is not None:
            table = other.group.full_to_swa_index_mapping
            if slot < table.shape[0] and int(table[slot]):
                found.append(Reference(what="mapping", note=f"{other.kind} slot {int(table[slot])}"))
    if group.kind == "FULL":
        found += _copies_and_events(view, slot)
    return found


def _past_lengths(view: DumpView, full: Int64s) -> list[Reference]:
    """Entries of live rows at positions that are not cached: being computed, or left over."""
    requests = view.dump.requests
    if requests is None or not full.shape[0]:
        return []
    table, found = requests.req_to_token.numpy(), []
    for index, row in enumerate(requests.req_pool_indices.tolist()):
        if 0 < row < table.shape[0]:
            cached = max(0, int(requests.prefix_lens[index]))
            held = np.flatnonzero(np.isin(table[row, cached:], full)) + cached
            computed = cached + int(requests.extend_seq_lens[index])
            for place in held.tolist():
                note = "computed in this step" if place < computed else "left over"
                found.append(Reference(what="past the length", request=view.names[index], position=place, note=note))
    return found


def _copies_and_events(view: DumpView, slot: int) -> list[Reference]:
    found: list[Reference] = []
    requests = view.dump.requests
    if requests is not None and requests.kv_indices is not None:
        indptr = requests.kv_indices.indptr.numpy()
        for place in np.flatnonzero(requests.kv_indices.indices.numpy() == slot).tolist():
            index = int(np.searchsorted(indptr, place, side="right")) - 1
            if 0 <= index < len(view.names):
                position = place - int(indptr[index])
                found.append(Reference(what="kv_indices", request=view.names[index], position=position))
    for event in view.dump.events:
        if bool((event.slots == slot).any()):
            found.append(
                Reference(what="event", request=event.request or None, note=f"{event.kind}, step {event.step}")
            )
    return found


def _neighbours(view: DumpView, group: GroupView, slot: int) -> list[Neighbour]:
    cells, nodes = group.cells_of(slot), group.nodes_of(slot)
    after = cells[cells + 1 < group.slot.shape[0]] + 1
    after = after[group.request[after] == group.request[after - 1]]
    related = {
        "slot before": [slot - 1],
        "slot after": [slot + 1],
        "token before": [*group.prev[cells].tolist(), *group.node_prev[nodes].tolist()],
        "token after": [*group.slot[after].tolist(), *group.node_slot[group.nodes_after(slot)].tolist()],
    }
    return [
        Neighbour(
            relation=relation,
            slot=other,
            owners=tuple(_owners(view, group, other)),
            token=int(group.records[other, 0]),
            stored_position=int(group.records[other, 1]),
        )
        for relation, others in related.items()
        for other in dict.fromkeys(others)
        if group.inside(other)
    ]


def _all_buffers(group: GroupView) -> dict[str, Int64s]:
    """Every record buffer of the pool, those of a half that was not in use included."""
    return {
        f"{stage}_{half}": buf.numpy().view(np.int64)[:, :CANARY_FIELDS_PER_SLOT]
        for half, one in group.group.halves.items()
        for stage, buf in one.buffers.items()
    }


def _reads(check: TagCheck, name: str, kind: str) -> bool:
    stage = "TAIL" if check.tag.stage == "SWEEP" else check.tag.stage
    return check.tag.pool_kind == kind and f"{stage}_{check.tag.half}" == name


def _record(name: str, records: Int64s, slot: int, checks: list[TagCheck]) -> RecordView:
    token, position, prev_hash, real_kv_hash = records[slot].tolist()
    return RecordView(
        buffer=name,
        token=token,
        position=position,
        prev_hash=prev_hash & _U64,
        real_kv_hash=real_kv_hash & _U64,
        expectations=tuple(dict.fromkeys(one for check in checks for one in _expectations(check, records, slot))),
    )


def _expectations(check: TagCheck, records: Int64s, slot: int) -> list[Expectation]:
    if slot == 0:
        return []
    plan = check.plan
    bits = dict(zip(check.entries.tolist(), check.rows[:, 7].tolist(), strict=True))
    found = []
    for entry in np.flatnonzero(plan.verify_slot_indices[: check.num_entries].numpy() == slot).tolist():
        prev = int(plan.verify_prev_slot_indices[entry])
        wanted: int | None = None
        if prev < 0:
            wanted = splitmix64(CANARY_CHAIN_ANCHOR)
        elif 0 < prev < records.shape[0]:
            wanted = int(digest_records(records[[prev]])[0])
        failed = bits.get(entry, 0)
        found.append(
            Expectation(
                tag=check.tag.name,
                position=int(plan.verify_expected_positions[entry]),
                token=-1 if check.tag.stage == "SWEEP" else int(plan.verify_expected_tokens[entry]),
                prev_hash=wanted,
                wrong=tuple(field for field, reason in _FIELD_REASONS.items() if failed & reason),
            )
        )
    return found
