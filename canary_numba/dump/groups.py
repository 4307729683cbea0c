"""Validates the pools of a dump: groups, their K and V halves, the record buffers and the K/V byte sources."""

from __future__ import annotations

from typing import Final

import torch

from canary_numba.dump.model import Group, Half, Source
from canary_numba.dump.section import MAX_LENGTH, Section
from canary_numba.dump.tensors import describe, rows_are_separate
from canary_numba.layout import CANARY_SLOT_BYTES

POOL_KINDS: Final[tuple[str, ...]] = ("FULL", "SWA")
HALVES: Final[tuple[str, ...]] = ("K", "V")
MAX_SOURCES: Final[int] = 4096
"""Sources of one half. Models have some hundred layers; a file that names more could stall the reader."""

_RECORDS: Final[str] = f"uint8 [num_slots, stride >= {CANARY_SLOT_BYTES}, a multiple of 8]"


def decode_groups(dump: Section) -> tuple[Group, ...]:
    """Validate ``groups``: at least one, none of the same kind as another."""
    groups: list[Group] = []
    for section in dump.sections("groups", most=len(POOL_KINDS)):
        kind = section.choice("kind", POOL_KINDS)
        if kind in (group.kind for group in groups):
            raise section.error("kind", "one group of each kind", f"a second {kind} group")
        groups.append(_group(section, kind))
    if not groups:
        raise dump.error("groups", "list of at least one group", "an empty list")
    return tuple(groups)


def _group(section: Section, kind: str) -> Group:
    windowed = kind == "SWA"
    if windowed:
        window = section.integer("swa_window_size", least=0)
    else:
        window = section.integer("swa_window_size", least=0, most=0, default=0)
    mapping = None
    if windowed or section.has("full_to_swa_index_mapping"):
        mapping = section.packed("full_to_swa_index_mapping", torch.int64, "full slots")
    return Group(
        kind=kind,
        halves=_halves(section),
        swa_window_size=window,
        full_to_swa_index_mapping=mapping,
        kv_token_id_vs_position_offset=section.integer("kv_token_id_vs_position_offset", least=0, most=1, default=0),
    )


def _halves(group: Section) -> dict[str, Half]:
    section = group.section("halves")
    # A misspelt half would go unchecked without a word, so an unknown name is refused.
    strangers = [name for name in section.mapping if name not in HALVES]
    if strangers:
        raise group.error("halves", "K and, if there is one, V", f"a half named {describe(strangers[0])}")
    halves = {"K": _half(section.section("K"))}
    if section.has("V"):
        halves["V"] = _half(section.section("V"))
        slots = {name: half.num_slots for name, half in halves.items()}
        if slots["K"] != slots["V"]:
            raise section.error("V", f"as many slots as K, {slots['K']}", str(slots["V"]))
    return halves


def _half(section: Section) -> Half:
    buffers = {stage: _records(section, stage) for stage in ("head", "tail") if section.has(stage)}
    if not buffers:
        raise section.error("tail", f"head or tail, {_RECORDS}", "neither")
    num_slots = {stage: buffer.shape[0] for stage, buffer in buffers.items()}
    if len(set(num_slots.values())) > 1:
        raise section.error("tail", f"as many slots as head, {num_slots['head']}", str(num_slots["tail"]))
    slots = next(iter(num_slots.values()))
    source_slots = _source_slots(section, slots) if section.has("source_slots") else None
    held, whose = slots, f"the {slots} slots of the record buffer"
    if source_slots is not None:
        held, whose = source_slots.shape[0], f"the {source_slots.shape[0]} slots of source_slots"
    sources = tuple(
        _source(source, num_slots=held, whose=whose)
        for source in section.sections("sources", most=MAX_SOURCES, default=True)
    )
    source_hashes = None
    if section.has("source_hashes"):
        columns = ("sources", len(sources)) if sources else "sources"
        source_hashes = section.packed("source_hashes", torch.int64, ("num_slots", slots), columns)
    return Half(
        head=buffers.get("head"),
        tail=buffers.get("tail"),
        sources=sources,
        source_hashes=source_hashes,
        source_slots=source_slots,
    )


def _source_slots(section: Section, num_slots: int) -> torch.Tensor:
    slots = section.packed("source_slots", torch.int64, "k")
    inside = bool(((slots >= 0) & (slots < num_slots)).all())
    if not inside or not bool((slots[1:] > slots[:-1]).all()):
        expected = f"ascending slots from 0 to {num_slots - 1}"
        raise section.error("source_slots", expected, f"{describe(slots)} that are not")
    return slots


def _records(section: Section, stage: str) -> torch.Tensor:
    buffer = section.packed(stage, torch.uint8, "num_slots", "stride", expected=_RECORDS)
    stride = buffer.shape[1]
    if stride < CANARY_SLOT_BYTES or stride % 8:
        raise section.error(stage, _RECORDS, describe(buffer))
    if buffer.shape[0] > MAX_LENGTH:
        raise section.error(stage, f"at most {MAX_LENGTH} slots", describe(buffer))
    return buffer


def _source(section: Section, *, num_slots: int, whose: str) -> Source:
    tensor = section.tensor("tensor", None, "rows", "row")
    if not rows_are_separate(tensor):
        got = f"{describe(tensor)} with strides {list(tensor.stride())}"
        raise section.error("tensor", "contiguous rows that do not overlap", got)
    page_size = section.integer("page_size", least=1)
    token_bytes = section.integer("num_bytes_per_token", least=1)
    read_bytes = section.integer("read_bytes", least=1, most=token_bytes)
    row_bytes = tensor.shape[1] * tensor.element_size()
    if row_bytes < page_size * token_bytes:
        expected = f"rows of at least page_size * num_bytes_per_token = {page_size * token_bytes} bytes"
        raise section.error("tensor", expected, f"{describe(tensor)}, {row_bytes} bytes a row")
    slots = tensor.shape[0] * page_size
    if slots < num_slots:
        expected = f"bytes for {whose}"
        raise section.error("tensor", expected, f"{describe(tensor)}, {slots} slots")
    return Source(
        name=section.text("name"),
        tensor=tensor,
        page_size=page_size,
        num_bytes_per_token=token_bytes,
        read_bytes=read_bytes,
    )
