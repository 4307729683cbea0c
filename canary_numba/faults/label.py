"""What an injected fault did: the truth that a diagnosis is held against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """One injected fault.

    Attributes
    ----------
    fault, severity : str
        As a finding has them: a name, and ``corrupt``, ``latent`` or ``note``.
    requests : tuple of str
        Live requests involved.
    positions : mapping
        Damaged positions by request.
    slots : tuple of int
        Damaged slots, in the numbers of the pool that is damaged.
    details : mapping
        Further facts by name, such as ``writer``, ``owner``, ``owner_position``, ``half``, ``field``, ``bit``,
        ``delta`` and ``copied_from``; under ``also`` the faults that are true of the dump as a consequence.
    """

    fault: str
    severity: str
    requests: tuple[str, ...] = ()
    positions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    slots: tuple[int, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "fault": self.fault,
            "severity": self.severity,
            "requests": list(self.requests),
            "positions": {name: list(places) for name, places in self.positions.items()},
            "slots": list(self.slots),
            "details": dict(self.details),
        }
