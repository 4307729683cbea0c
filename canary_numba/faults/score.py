"""Holding a diagnosis against the label of an injected fault."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from canary_numba.check import check_dump
from canary_numba.diagnosis import diagnose
from canary_numba.diagnosis.ranks import compare_ranks
from canary_numba.dump.model import Dump
from canary_numba.errors import FaultNotApplicable
from canary_numba.faults.inject import inject
from canary_numba.faults.label import Label
from canary_numba.faults.rank_faults import ranked
from canary_numba.findings import CERTAIN, Finding
from canary_numba.layout import RealKvHashMode

NAMED: Final = "named"
SEEN: Final = "seen"
MISSED: Final = "missed"

NEEDS_TOKENS: Final = frozenset({"row_recycled", "tokens_differ_from_request", "wrong_prefix_hit"})
"""Sound in themselves: only the request's tokens tell."""
NEEDS_HASHES: Final = frozenset(
    {"canary_stale", "kv_bytes_changed", "kv_bytes_copied", "padding_write", "restore_mismatch"}
)
"""Only K/V bytes tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a diagnosis made of an injected fault.

    ``result``: ``named`` (the fault, its requests, and its positions or slots), ``seen`` (something was found) or
    ``missed``; ``wrong``: findings that claim to be certain and are not what was done; ``others``: all further ones.
    """

    label: Label
    result: str
    wrong: tuple[Finding, ...]
    others: tuple[Finding, ...]


def has_signature(fault: str, dump: Dump) -> bool:
    """Tell whether a dump like this one could show ``fault`` at all."""
    known = dump.requests is not None and dump.requests.expected_tokens is not None
    if fault in NEEDS_TOKENS and not known:
        return False
    return fault not in NEEDS_HASHES or dump.hash_mode != RealKvHashMode.NONE


def judge(label: Label, findings: Iterable[Finding], violations: int) -> Outcome:
    """Compare the findings of a broken dump with its label.

    Several findings of the fault count as one if together they are the label: a diagnosis may list a slot that two
    requests share once for each.
    """
    found = tuple(findings)
    same = [finding for finding in found if finding.fault == label.fault]
    hits = [finding for finding in same if _is(label, [finding])] or (same if _is(label, same) else [])
    others = tuple(finding for finding in found if finding not in hits)
    also = label.details.get("also", ())
    wrong = tuple(finding for finding in others if finding.confidence == CERTAIN and finding.fault not in also)
    result = NAMED if hits else SEEN if found or violations else MISSED
    return Outcome(label=label, result=result, wrong=wrong, others=others)


def _is(label: Label, findings: list[Finding]) -> bool:
    requests = {name for finding in findings for name in finding.requests}
    if not findings or requests != set(label.requests):
        return False
    positions: dict[str, set[int]] = {}
    for finding in findings:
        for name, places in finding.positions.items():
            positions.setdefault(name, set()).update(places)
    slots = {slot for finding in findings for slot in finding.slots}
    if not label.positions and not label.slots:
        return True
    same_positions = bool(label.positions) and positions == _sets(label.positions)
    return same_positions or (bool(label.slots) and slots == set(label.slots))


def _sets(positions: Mapping[str, tuple[int, ...]]) -> dict[str, set[int]]:
    return {name: set(places) for name, places in positions.items()}


def try_fault(dump: Dump, fault: str, seed: int, *, engine: str = "cpu") -> Outcome | None:
    """Inject a fault into a clean dump, check and diagnose it; None where the dump has no place for it.

    Raises
    ------
    ArgumentError, EngineUnavailableError
        There is no such fault, or the engine cannot run.
    """
    try:
        broken, label = inject(dump, fault, seed)
    except FaultNotApplicable:
        return None
    result = check_dump(broken, engine=engine)
    findings = diagnose(broken, result).findings
    if fault == "ranks_disagree":
        findings += compare_ranks([ranked(dump), broken])
    return judge(label, findings, result.num_violations)
