"""What a diagnosis says: named faults, and which of them the dump allowed to be looked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

CORRUPT = "corrupt"
LATENT = "latent"
NOTE = "note"

CERTAIN = "certain"
LIKELY = "likely"
POSSIBLE = "possible"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One named fault: who is affected, where, how sure, why, and what to do next.

    ``severity``: ``corrupt`` (data is damaged), ``latent`` (not yet) or ``note``. ``confidence``: ``certain``,
    ``likely`` or ``possible``. ``positions``: by request. ``details``: further facts by name.
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

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "fault": self.fault,
            "severity": self.severity,
            "confidence": self.confidence,
            "requests": list(self.requests),
            "positions": {name: list(places) for name, places in self.positions.items()},
            "slots": list(self.slots),
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
class Diagnosis:
    """Findings in order of severity and cause; names of the faults that were looked for, and those that were not."""

    findings: tuple[Finding, ...]
    tested: tuple[str, ...]
    not_tested: tuple[NotTested, ...]
