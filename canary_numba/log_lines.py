"""Violation lines of a server log: SGLang's frozen one-line form of a violation, written and read back.

    kv_canary violation: launch_tag=TAIL_K_FULL fail_reason=verify_chain_hash+verify_position slot_idx=91 position=17
    stored_token=5 expected_token=-1 stored_chain_hash=0x0123456789abcdef expected_aux=0xfedcba9876543210

(on one line). Standard library only, so that a log of any size can be read where neither torch nor numba is installed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from canary_numba.violations import Violation

LOG_SCHEMA_VERSION = 1
MARK: Final[str] = "kv_canary violation:"
NO_REASON: Final[str] = "none"

_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_NUMBER = r"(-?\d{1,20})"
_HASH = r"0x([0-9a-fA-F]{1,16})(?![0-9a-fA-F])"
_LINE = re.compile(
    rf"{MARK} launch_tag=(\S+) fail_reason=(\S+) slot_idx={_NUMBER} position={_NUMBER} stored_token={_NUMBER} "
    rf"expected_token={_NUMBER} stored_chain_hash={_HASH} expected_aux={_HASH}"
)
_UNKNOWN_IN_LOG = re.compile(r"unknown\((-?\d+)\)")
_UNKNOWN_HERE = re.compile(r"UNKNOWN_(-?\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One violation as a log tells it: the fields of :class:`~canary_numba.violations.Violation`.

    ``prefix``: what the log has before it (time, rank), without colours. ``line``: its line in the file, from 1 on.
    """

    tag: str
    reasons: tuple[str, ...]
    slot: int
    position: int
    stored_token: int
    expected_token: int
    stored_chain_hash: int
    expected_aux: int
    prefix: str = ""
    line: int = 0

    @property
    def pool(self) -> str:
        """The pool whose numbers ``slot`` is in: FULL or SWA, or "?" with an unknown tag."""
        kind = self.tag.rpartition("_")[2]
        return kind if kind in ("FULL", "SWA") else "?"

    def to_dict(self) -> dict[str, Any]:
        """As JSON data; 64-bit hashes are strings."""
        return {
            "line": self.line,
            "prefix": self.prefix,
            "tag": self.tag,
            "slot": self.slot,
            "position": self.position,
            "stored_token": self.stored_token,
            "expected_token": self.expected_token,
            "stored_chain_hash": f"0x{self.stored_chain_hash:016x}",
            "expected_aux": f"0x{self.expected_aux:016x}",
            "reasons": list(self.reasons),
        }


@dataclass(slots=True, kw_only=True)
class LogSummary:
    """The violation lines of a log in numbers, and the first of them.

    ``by_tag``, ``by_reason``: lines by launch tag, and by tag and reason. ``slots``: lines by (pool, slot).
    ``unreadable``: numbers of lines that carry the mark and cannot be read, the first of them. ``shown``: the first
    violations, as many as were asked for.
    """

    lines: int = 0
    violations: int = 0
    unreadable_total: int = 0
    by_tag: Counter[str] = field(default_factory=Counter)
    by_reason: dict[str, Counter[str]] = field(default_factory=dict)
    slots: Counter[tuple[str, int]] = field(default_factory=Counter)
    unreadable: list[int] = field(default_factory=list)
    first: LogLine | None = None
    last: LogLine | None = None
    shown: list[LogLine] = field(default_factory=list)

    def add(self, found: LogLine) -> None:
        """Count one violation."""
        self.violations += 1
        self.by_tag[found.tag] += 1
        self.by_reason.setdefault(found.tag, Counter()).update(found.reasons)
        self.slots[found.pool, found.slot] += 1
        self.first = self.first or found
        self.last = found

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "schema_version": LOG_SCHEMA_VERSION,
            "lines": self.lines,
            "violations_total": self.violations,
            "violations_shown": len(self.shown),
            "unreadable_lines_total": self.unreadable_total,
            "unreadable_lines": self.unreadable,
            "tags": [
                {"tag": tag, "violations": count, "reasons": dict(self.by_reason[tag])}
                for tag, count in sorted(self.by_tag.items())
            ],
            "slots": [
                {"pool": pool, "slot": slot, "violations": count}
                for (pool, slot), count in sorted(self.slots.items(), key=lambda item: (-item[1], item[0]))
            ],
            "first": None if self.first is None else self.first.to_dict(),
            "last": None if self.last is None else self.last.to_dict(),
            "violations": [line.to_dict() for line in self.shown],
        }


def format_line(violation: Violation) -> str:
    """Write a violation as SGLang logs it, without a line end."""
    tag = _UNKNOWN_HERE.sub(r"unknown(\1)", violation.tag)
    return (
        f"{MARK} launch_tag={tag} fail_reason={'+'.join(violation.reasons) or NO_REASON} slot_idx={violation.slot} "
        f"position={violation.position} stored_token={violation.stored_token} "
        f"expected_token={violation.expected_token} stored_chain_hash=0x{violation.stored_chain_hash:016x} "
        f"expected_aux=0x{violation.expected_aux:016x}"
    )


def parse_line(text: str, line: int = 0) -> LogLine | None:
    """Read a violation from a line of a log, whatever stands around it; None where it holds none that is whole."""
    if MARK not in text:
        return None
    plain = _ANSI.sub("", text)
    match = _LINE.search(plain)
    if match is None:
        return None
    tag, reasons, slot, position, stored, expected, chain, aux = match.groups()
    return LogLine(
        tag=_UNKNOWN_IN_LOG.sub(r"UNKNOWN_\1", tag),
        reasons=() if reasons == NO_REASON else tuple(reasons.split("+")),
        slot=int(slot),
        position=int(position),
        stored_token=int(stored),
        expected_token=int(expected),
        stored_chain_hash=int(chain, 16),
        expected_aux=int(aux, 16),
        prefix=plain[: match.start()].strip(),
        line=line,
    )


def summarize_log(lines: Iterable[str], max_violations: int = 0) -> LogSummary:
    """Read a log line by line and count its violations.

    Parameters
    ----------
    lines
        The log's lines; those without a violation only count.
    max_violations
        Violations kept one by one; 0 keeps all.
    """
    summary = LogSummary()
    for number, text in enumerate(lines, start=1):
        summary.lines = number
        found = parse_line(text, number)
        if found is not None:
            summary.add(found)
            if not max_violations or len(summary.shown) < max_violations:
                summary.shown.append(found)
        elif MARK in text:
            summary.unreadable_total += 1
            if len(summary.unreadable) < 20:
                summary.unreadable.append(number)
    return summary
