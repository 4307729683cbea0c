"""Nested dict -> :class:`~canary_numba.dump.model.Dump`: every key of the format is checked here, once.

Only the form is judged: types, dtypes, shapes, lengths that fit one another. Wrong slots, rows, tokens or hashes are
what a dump is for, and pass. docs/dump-format.md says the same in a table.
"""

from __future__ import annotations

import math
from typing import Any, Final

import torch

from canary_numba.dump.groups import decode_groups
from canary_numba.dump.model import (
    FORMAT_NAME,
    FORMAT_VERSION,
    Allocator,
    Counters,
    Dump,
    Event,
    LiveLog,
    Radix,
)
from canary_numba.dump.requests import decode_finished, decode_requests
from canary_numba.dump.section import INT64_MAX, Origin, Section
from canary_numba.dump.tensors import describe, printable
from canary_numba.errors import DumpFormatError, DumpVersionError
from canary_numba.layout import NUM_LAUNCH_TAGS, VIOLATION_FIELDS, RealKvHashMode

EVENT_KINDS: Final[tuple[str, ...]] = ("alloc", "free", "evict", "restore", "receive", "move")
MAX_EVENTS: Final[int] = 100_000
MAX_FACTS: Final[int] = 1024
"""Entries of ``context`` and ``producer``, and of a list in ``context``."""

_HASH_MODES: Final[dict[str, RealKvHashMode]] = {mode.name.lower(): mode for mode in RealKvHashMode}


def decode(mapping: Any, path: str | None = None) -> Dump:
    """Turn the nested dict of a dump into a :class:`~canary_numba.dump.model.Dump`, or say which key is wrong.

    Parameters
    ----------
    mapping : dict
        The dict that ``torch.load`` returns for a dump, or that :func:`~canary_numba.dump.encode` made. Keys the format
        does not know are ignored.
    path : str or None
        The file it came from, for messages and ``Dump.path``.

    Returns
    -------
    Dump
        Shares the dict's tensors. K/V sources, tables and record buffers are not copied (so a memory-mapped file stays
        on disk), unless a small one has gaps or an odd address.

    Raises
    ------
    DumpFormatError
        A key is missing or has a wrong type, dtype, shape or length.
    DumpVersionError
        The version is not one this reader knows.
    """
    dump = Section.of(mapping, "", Origin(path))
    dump.choice("format", (FORMAT_NAME,))
    version = dump.integer("version", least=-INT64_MAX, most=INT64_MAX)
    if version != FORMAT_VERSION:
        message = f"version: this dump is of format version {version}, this reader knows version {FORMAT_VERSION}"
        raise DumpVersionError(message, path=path)
    return Dump(
        hash_mode=_HASH_MODES[dump.choice("hash_mode", _HASH_MODES)],
        groups=decode_groups(dump),
        requests=decode_requests(dump.section("requests")) if dump.has("requests") else None,
        radix=_radix(dump.section("radix")) if dump.has("radix") else None,
        allocator=_allocator(dump.section("allocator")) if dump.has("allocator") else None,
        violation_log=_violation_log(dump.section("violation_log")) if dump.has("violation_log") else None,
        finished=decode_finished(dump.section("finished")) if dump.has("finished") else None,
        events=tuple(_event(event) for event in dump.sections("events", most=MAX_EVENTS, default=True)),
        counters=_counters(dump.section("counters")) if dump.has("counters") else None,
        producer=_producer(dump.section("producer")) if dump.has("producer") else {},
        context=_context(dump.section("context")) if dump.has("context") else {},
        path=path,
    )


def _radix(section: Section) -> Radix:
    slots = section.packed("slot_indices", torch.int64, "n")
    same = ("n", slots.shape[0])
    return Radix(
        slot_indices=slots,
        positions=section.packed("positions", torch.int64, same),
        prev_slot_indices=section.packed("prev_slot_indices", torch.int64, same),
    )


def _allocator(section: Section) -> Allocator:
    swa_free = section.packed("swa_free_slots", torch.int64, "k") if section.has("swa_free_slots") else None
    return Allocator(
        page_size=section.integer("page_size", least=1),
        size=section.integer("size", least=0),
        free_slots=section.packed("free_slots", torch.int64, "k"),
        swa_size=section.integer("swa_size", least=0) if section.has("swa_size") else None,
        swa_free_slots=swa_free,
    )


def _violation_log(section: Section) -> LiveLog:
    return LiveLog(
        ring=section.packed("ring", torch.int64, "capacity", VIOLATION_FIELDS),
        write_index=int(section.packed("write_index", torch.int32, 1)[0]),
    )


def _counters(section: Section) -> Counters:
    return Counters(
        kernel_run=section.packed("kernel_run", torch.int64, NUM_LAUNCH_TAGS),
        slot_run=section.packed("slot_run", torch.int64, NUM_LAUNCH_TAGS),
    )


def _event(section: Section) -> Event:
    return Event(
        kind=section.choice("kind", EVENT_KINDS),
        slots=section.packed("slots", torch.int64, "k"),
        step=section.integer("step", least=-INT64_MAX, most=INT64_MAX),
        request=section.text("request", default=""),
        source=section.text("source", default=""),
    )


def _producer(section: Section) -> dict[str, str]:
    return {_name(section, name): section.text(name) for name in _few(section)}


def _context(section: Section) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for name, value in _few(section).items():
        shown = printable(_name(section, name))
        if isinstance(value, list):
            for i, entry in enumerate(section.items(name, most=MAX_FACTS)):
                _require_scalar(section, f"{shown}[{i}]", entry)
            facts[name] = list(value)
        else:
            _require_scalar(section, shown, value)
            facts[name] = value
    return facts


def _few(section: Section) -> dict[Any, Any]:
    if len(section.mapping) > MAX_FACTS:
        origin = section.origin
        raise DumpFormatError(section.key, f"at most {MAX_FACTS} entries", describe(section.mapping), path=origin.path)
    return section.mapping


def _name(section: Section, name: Any) -> str:
    section.require_text(describe(name), name)
    return str(name)


def _require_scalar(section: Section, name: str, value: Any) -> None:
    if type(value) is str:
        section.require_text(name, value)
        return
    fits = (
        value is None
        or type(value) is bool
        or (type(value) is int and value.bit_length() <= 64)
        or (type(value) is float and math.isfinite(value))
    )
    if not fits:
        raise section.error(name, "str, int of 64 bits, finite float, bool or None, or a list of them", describe(value))
