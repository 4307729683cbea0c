"""From a run and its facts to a case: the parts that every family of faults fills in alike."""

from __future__ import annotations

from typing import Any

from canary_numba.diagnosis.case import Case, Cell, Desk, plural, span
from canary_numba.diagnosis.facts import Facts, is_cached_only, letters_text
from canary_numba.findings import LIKELY


def places_of(desk: Desk, facts: Facts) -> list[Cell]:
    """Damaged (request, position) pairs of a run: those of every live request that fails on the same slots."""
    run = facts.run
    if is_cached_only(run):
        return []
    return [(run.request, position) for position in run.positions.tolist()]


def where(desk: Desk, facts: Facts) -> str:
    """``doc-1, positions 12-19`` for summaries."""
    run = facts.run
    name = "the prefix cache" if is_cached_only(run) else desk.name(run.request)
    word = "position" if run.count == 1 else "positions"
    return f"{name}, {word} {span(run.positions)}"


def extent(desk: Desk, facts: Facts) -> str:
    """Start and length of a run, in tokens and pages."""
    run, page = facts.run, desk.view.page_size
    text = f"run of {plural(run.count, 'position')} from {run.start}"
    if page > 1:
        text += (
            f" ({run.count / page:g} pages of {page}; starts {run.start % page} and ends {run.stop % page} into a page)"
        )
    return text


def build(
    desk: Desk,
    facts: Facts,
    fault: str,
    summary: str,
    *,
    confidence: str = LIKELY,
    evidence: list[str] | None = None,
    details: dict[str, Any] | None = None,
    rivals: list[str] | None = None,
) -> Case:
    """A case over a whole run, with its extent, its letters and recovered tokens as evidence."""
    run = facts.run
    lines = [f"{extent(desk, facts)}: {letters_text(run)} differ"]
    edges = [text for text, there in (("at its start", run.opened), ("just after it", run.closed)) if there]
    if edges:
        lines.append(f"the chain breaks {' and '.join(edges)}")
    more = dict(details or {})
    if facts.recovered:
        more["recovered_tokens"] = {str(p): t for p, t in facts.recovered.items()}
        lines += [
            f"token {t} stood at position {p}: it follows from the records on both sides"
            for p, t in facts.recovered.items()
        ]
    if is_cached_only(run):
        more["cached_only"] = True
    return Case(
        fault=fault,
        summary=summary,
        pool=facts.group.kind,
        confidence=confidence,
        cells=places_of(desk, facts),
        slots=run.slots.tolist(),
        evidence=lines + (evidence or []),
        details=more,
        rivals=rivals or [],
    )
