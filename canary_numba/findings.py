"""What a diagnosis says: named faults, and which of them the dump allowed to be looked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

CORRUPT = "corrupt"
LATENT = "latent"
NOTE = "note"

STRIP_STATES = ("sound", "unchecked", "latent", "echo", "root")
"""States of a position, mildest first. ``unchecked``: no slot; ``latent``: a fault that has damaged nothing yet;
``echo``: fails because of its neighbour; ``root``: damaged itself."""
POOL_STATES = ("nobody", "free", "cached", "owned", "failing", "damaged")
"""States of a slot, mildest first. ``cached``: by the prefix cache alone; ``failing``: its check fails because of
another's damage; ``damaged``: a finding names it."""

CERTAIN = "certain"
LIKELY = "likely"
POSSIBLE = "possible"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One named fault: who is affected, where, how sure, why, and what to do next.

    ``severity``: ``corrupt`` (data is damaged), ``latent`` (not yet) or ``note``. ``confidence``: ``certain``,
    ``likely`` or ``possible``. ``positions``: by request. ``slots`` are in the numbers of ``pool``, ``FULL`` or
    ``SWA``. ``details``: further facts by name.
    """

    fault: str
    severity: str
    confidence: str
    summary: str
    requests: tuple[str, ...] = ()
    positions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    slots: tuple[int, ...] = ()
    evidence: tuple[str, ...] = ()
    next_steps: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    pool: str = "FULL"

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "fault": self.fault,
            "severity": self.severity,
            "confidence": self.confidence,
            "requests": list(self.requests),
            "positions": {name: list(places) for name, places in self.positions.items()},
            "slots": list(self.slots),
            "pool": self.pool,
            "summary": self.summary,
            "evidence": list(self.evidence),
            "next_steps": list(self.next_steps),
            "details": dict(self.details),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class NotTested:
    """A fault that could not be looked for, and the key of the dump that would have allowed it."""

    fault: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """A request's cached positions in one pool, as runs ``(state, first, last)`` that follow one another.

    ``state`` is one of :data:`STRIP_STATES`; positions before the first run are outside the sliding window.
    """

    request: str
    pool: str
    length: int
    runs: tuple[tuple[str, int, int], ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        runs = [{"state": state, "first": first, "last": last} for state, first, last in self.runs]
        return {"request": self.request, "pool": self.pool, "length": self.length, "runs": runs}


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotLine:
    """One slot of a finding: what belongs there and what stands there.

    ``owners``: (request, position) pairs whose table holds it; ``cached``, ``free``: whether the prefix cache and the
    free list hold it. ``expected_token`` -1 = unknown, ``expected_position`` None = nobody's. ``writer``: whom the
    record was written for, with its position there; None = nobody the dump knows.
    """

    slot: int
    owners: tuple[tuple[str, int], ...]
    cached: bool
    free: bool
    expected_token: int
    expected_position: int | None
    stored_token: int
    stored_position: int
    writer: str | None
    writer_position: int | None

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "slot": self.slot,
            "owners": [{"request": name, "position": position} for name, position in self.owners],
            "cached": self.cached,
            "free": self.free,
            "expected_token": self.expected_token,
            "expected_position": self.expected_position,
            "stored_token": self.stored_token,
            "stored_position": self.stored_position,
            "writer": self.writer,
            "writer_position": self.writer_position,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolMap:
    """A pool by slot number: cell i stands for slots ``i * slots_per_cell`` on, by the worst of them.

    ``cells``: indices into :data:`POOL_STATES`.
    """

    pool: str
    num_slots: int
    slots_per_cell: int
    cells: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "pool": self.pool,
            "num_slots": self.num_slots,
            "slots_per_cell": self.slots_per_cell,
            "states": list(POOL_STATES),
            "cells": list(self.cells),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Pictures:
    """What a report draws beside its findings: strips of the requests involved, a table of slots for each finding (in
    their order, possibly cut), and a map of each pool with damage. ``strips_left_out``: request and pool of each strip
    beyond those.
    """

    strips: tuple[Strip, ...] = ()
    strips_left_out: tuple[tuple[str, str], ...] = ()
    slot_lines: tuple[tuple[SlotLine, ...], ...] = ()
    pool_maps: tuple[PoolMap, ...] = ()

    def strips_of(self, finding: Finding) -> list[Strip]:
        """The strips of a finding's requests in its pool."""
        return [strip for strip in self.strips if strip.request in finding.requests and strip.pool == finding.pool]

    def left_out_of(self, finding: Finding) -> list[tuple[str, str]]:
        """Request and pool of the finding's strips that are not drawn."""
        return [one for one in self.strips_left_out if one[0] in finding.requests and one[1] == finding.pool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Findings in order of severity and cause; names of the faults that were looked for, and those that were not."""

    findings: tuple[Finding, ...]
    tested: tuple[str, ...]
    not_tested: tuple[NotTested, ...]
    pictures: Pictures = field(default_factory=Pictures)
