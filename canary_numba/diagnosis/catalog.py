"""Every fault that a diagnosis can name: what it is, how a dump shows it, what it is mistaken for, what to do.

``canary-check explain`` prints it. The modules that find a fault state its signature in their docstrings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from canary_numba.diagnosis.catalog_text import TEXTS
from canary_numba.dump.model import Dump
from canary_numba.findings import CORRUPT, LATENT, NOTE
from canary_numba.layout import RealKvHashMode


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One kind of fault.

    ``order``: place among findings of one severity, causes before consequences. ``keys``: keys of a dump without which
    it cannot be looked for.
    """

    name: str
    summary: str
    severity: str
    signature: str
    mistaken_for: tuple[str, ...]
    next_steps: tuple[str, ...]
    keys: tuple[str, ...]
    order: int


MOST_BYTES_DECODED: Final = 8 << 30
"""K/V bytes up to which all are searched for NaN and Inf; those of a larger dump are read only for their hashes."""

_LATENT: Final = {"live_slot_on_free_list", "double_free", "unlawful_sharing", "stale_row_tail", "nonfinite_kv"}


def _faults() -> Mapping[str, Fault]:
    found = {}
    for order, (name, text) in enumerate(TEXTS.items()):
        severity = NOTE if name == "stale_violation_log" else LATENT if name in _LATENT else CORRUPT
        found[name] = Fault(name=name, severity=severity, order=order, **_typed(text))
    return found


def _typed(text: Mapping[str, Any]) -> dict[str, Any]:
    listed = ("mistaken_for", "next_steps", "keys")
    return {key: tuple(value) if key in listed else value for key, value in text.items()}


FAULTS: Final[Mapping[str, Fault]] = _faults()
"""By name, in order of cause."""


def missing_key(dump: Dump, fault: Fault) -> str | None:
    """The first key that ``dump`` lacks for this fault to be looked for; None if it has all."""
    return next((key for key in fault.keys if not _has(dump, key)), None)


def kv_bytes(dump: Dump) -> int:
    """Bytes of all K/V sources of a dump."""
    return sum(
        source.tensor.numel() * source.tensor.element_size()
        for group in dump.groups
        for half in group.halves.values()
        for source in half.sources
    )


def _has(dump: Dump, key: str) -> bool:
    requests = dump.requests
    sources = any(half.sources for group in dump.groups for half in group.halves.values())
    answers = {
        "requests": requests is not None,
        "requests or radix": requests is not None or dump.radix is not None,
        "requests.expected_tokens": requests is not None and requests.expected_tokens is not None,
        "requests.extend_seq_lens": requests is not None and bool(requests.extend_seq_lens.any()),
        "requests.kv_indices": requests is not None and requests.kv_indices is not None,
        "allocator.free_slots": dump.allocator is not None,
        "violation_log": dump.violation_log is not None,
        "events": bool(dump.events),
        "groups[].halves.K.sources": sources,
        "hash_mode other than none": dump.hash_mode != RealKvHashMode.NONE,
        "groups of kind SWA": any(group.kind == "SWA" for group in dump.groups),
        "a second group or half": len(dump.groups) > 1 or any(len(group.halves) > 1 for group in dump.groups),
        "sources of a floating dtype": any(
            source.tensor.dtype.is_floating_point
            for group in dump.groups
            for half in group.halves.values()
            for source in half.sources
        ),
        "at most 8 GiB of K/V bytes": kv_bytes(dump) <= MOST_BYTES_DECODED,
        "a dump of another rank": False,
    }
    return answers[key]
