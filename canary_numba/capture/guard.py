"""What a guarded pass does about violations, and whether the guard is awake at all."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from canary_numba.errors import ArgumentError, CorruptionError
from canary_numba.layout import CanaryLaunchTag
from canary_numba.violations import Violation

logger = logging.getLogger("canary_numba.capture")

MODES = ("log", "raise", "dump")
SHOWN = 8
"""Violations that a log line or an exception spells out."""


def require_mode(mode: str, directory: object) -> None:
    """Check the mode of a guarded pass.

    Raises
    ------
    ArgumentError
        There is no such mode, or dumps are asked for without a folder to put them in.
    """
    if mode not in MODES:
        raise ArgumentError(f"mode: expected one of {', '.join(MODES)}, got {mode!r}")
    if mode == "dump" and directory is None:
        raise ArgumentError("directory: needed with mode='dump', got None")


def describe(violations: Sequence[Violation], total: int) -> str:
    """Say in a line or a few what the ring holds."""
    lines = [f"{total} canary violations, so far"]
    for violation in violations[:SHOWN]:
        reasons = ", ".join(violation.reasons)
        lines.append(f"  {violation.tag} slot {violation.slot} position {violation.position}: {reasons}")
    if len(violations) > SHOWN:
        lines.append(f"  and {len(violations) - SHOWN} more in the ring")
    return "\n".join(lines)


def report(mode: str, violations: Sequence[Violation], total: int) -> None:
    """Log the violations; in mode ``raise`` raise them.

    Raises
    ------
    CorruptionError
        The mode is ``raise``.
    """
    text = describe(violations, total)
    if mode == "raise":
        raise CorruptionError(text)
    logger.warning("%s", text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Whether the canary ran since the last look, and what it saw.

    Attributes
    ----------
    passes : int
        Guarded passes since the last look.
    launches, slots : Mapping
        By tag name, launches and slots processed since the last look.
    stalled : tuple of str
        Tags that each pass should launch and none did.
    plans_too_large : int
        Plans that did not fit since the last look: those passes verified nothing. Raise ``max_cached_tokens``.
    violations : int
        Violations ever reported.
    """

    passes: int
    launches: Mapping[str, int]
    slots: Mapping[str, int]
    stalled: tuple[str, ...]
    plans_too_large: int
    violations: int

    @property
    def ok(self) -> bool:
        """Whether every pass since the last look was checked. Says nothing about violations."""
        return not self.stalled and not self.plans_too_large


class HealthCheck:
    """Compares counters with those of the last look."""

    def __init__(self, tags: Sequence[CanaryLaunchTag]) -> None:
        self._tags = tuple(tags)
        self._launches = [0] * len(CanaryLaunchTag)
        self._slots = [0] * len(CanaryLaunchTag)
        self._plans_too_large = 0
        self._passes = 0

    def look(
        self, *, launches: list[int], slots: list[int], plans_too_large: int, passes: int, violations: int
    ) -> Health:
        """Report what happened since the last call, from the counters as they stand now."""
        grown = {tag.name: launches[tag] - self._launches[tag] for tag in CanaryLaunchTag}
        health = Health(
            passes=passes - self._passes,
            launches={name: count for name, count in grown.items() if count},
            slots={tag.name: slots[tag] - self._slots[tag] for tag in CanaryLaunchTag if grown[tag.name]},
            stalled=tuple(tag.name for tag in self._tags if passes > self._passes and not grown[tag.name]),
            plans_too_large=plans_too_large - self._plans_too_large,
            violations=violations,
        )
        self._launches, self._slots = launches, slots
        self._plans_too_large, self._passes = plans_too_large, passes
        return health
