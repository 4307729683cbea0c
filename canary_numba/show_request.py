"""One request of a checked dump: its cached positions as a ladder of runs, with slots and pages."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from canary_numba.check import CheckResult
from canary_numba.diagnosis.chains import Int64s
from canary_numba.diagnosis.pictures import cell_states, cells_at
from canary_numba.diagnosis.view import DumpView, GroupView
from canary_numba.dump.model import Dump
from canary_numba.errors import ArgumentError
from canary_numba.findings import CORRUPT, LATENT, STRIP_STATES, Diagnosis, Finding
from canary_numba.layout import reason_names

_LISTED = 12
"""Names listed in an error message; a server may have hundreds of requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """A run of positions of one state.

    ``state``: one of :data:`~canary_numba.findings.STRIP_STATES`. ``slots``: by position. ``pages``: their pages in
    order, repetitions folded. ``reasons``: what differs anywhere in the run. ``cached``: slots that the prefix cache
    holds; ``shared``: slots that other live requests hold. ``faults``: findings that name a position of the run.
    """

    state: str
    first: int
    last: int
    slots: tuple[int, ...]
    pages: tuple[int, ...]
    reasons: tuple[str, ...]
    cached: int
    shared: int
    faults: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "state": self.state,
            "first": self.first,
            "last": self.last,
            "slots": list(self.slots),
            "pages": list(self.pages),
            "reasons": list(self.reasons),
            "cached": self.cached,
            "shared": self.shared,
            "faults": list(self.faults),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """A request's cached positions in one pool. ``length``: tokens cached; a window starts at the first rung."""

    pool: str
    length: int
    rungs: tuple[Rung, ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        return {"pool": self.pool, "length": self.length, "rungs": [rung.to_dict() for rung in self.rungs]}


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestView:
    """One request: its row of the table (as the dump numbers rows), lengths, page size, and a ladder for each pool."""

    request: str
    row: int
    prefix_len: int
    extend_seq_len: int
    page_size: int
    ladders: tuple[Ladder, ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "request": self.request,
            "row": self.row,
            "prefix_len": self.prefix_len,
            "extend_seq_len": self.extend_seq_len,
            "page_size": self.page_size,
            "ladders": [ladder.to_dict() for ladder in self.ladders],
        }


def show_request(dump: Dump, result: CheckResult, diagnosis: Diagnosis, name: str) -> RequestView:
    """Cut a live request's cached positions into runs of one state.

    Parameters
    ----------
    dump, result, diagnosis
        A dump, its check and its diagnosis.
    name
        The request, by its id.

    Raises
    ------
    ArgumentError
        The dump has no such request; says which it has.
    """
    requests = dump.requests
    if requests is None:
        raise ArgumentError(f"--request {name}: the dump has no live requests (key requests)")
    view = DumpView(dump, result)
    if name not in view.names:
        known = ", ".join(view.names[:_LISTED]) + (", ..." if len(view.names) > _LISTED else "")
        raise ArgumentError(f"--request {name}: not in requests.rids, which has {known or 'nobody'}")
    index = view.names.index(name)
    row = int(requests.req_pool_indices[index])
    if requests.row_ids is not None and 0 <= row < requests.row_ids.shape[0]:
        row = int(requests.row_ids[row])
    return RequestView(
        request=name,
        row=row,
        prefix_len=int(requests.prefix_lens[index]),
        extend_seq_len=int(requests.extend_seq_lens[index]),
        page_size=view.page_size,
        ladders=tuple(
            _ladder(view, group, index, name, [one for one in diagnosis.findings if one.pool == kind])
            for kind, group in sorted(view.groups.items())
        ),
    )


def _ladder(view: DumpView, group: GroupView, request: int, name: str, findings: list[Finding]) -> Ladder:
    if not group.starts[-1]:
        return Ladder(pool=group.kind, length=0, rungs=())
    begin, end = int(group.starts[request]), int(group.starts[request + 1])
    first = int(group.first[request])
    states = cell_states(group, view.names, findings)[begin:end]
    seen: Int64s = np.zeros(end - begin, dtype=np.int64)
    own = (group.failures.entries >= begin) & (group.failures.entries < end)
    seen[group.failures.entries[own] - begin] = group.failures.seen[own]
    named: list[tuple[str, Int64s]] = []
    for severity in (LATENT, CORRUPT):
        for finding in findings:
            positions: Int64s = np.asarray(finding.positions.get(name, ()), dtype=np.int64)
            if finding.severity == severity:
                named.append((finding.fault, cells_at(group, request, positions) - begin))
    edges = [0, *(np.flatnonzero(np.diff(states)) + 1).tolist(), end - begin] if end > begin else []
    rungs = []
    for low, high in pairwise(edges):
        slots = group.slot[begin + low : begin + high]
        bits = int(np.bitwise_or.reduce(seen[low:high]))
        rungs.append(
            Rung(
                state=STRIP_STATES[int(states[low])],
                first=first + low,
                last=first + high - 1,
                slots=tuple(slots.tolist()),
                pages=_pages(slots, view.page_size),
                reasons=tuple(reason_names(bits)),
                cached=sum(bool(group.nodes_of(slot).shape[0]) for slot in slots.tolist()),
                shared=sum(bool((group.request[group.cells_of(slot)] != request).any()) for slot in slots.tolist()),
                faults=tuple(
                    dict.fromkeys(fault for fault, places in named if ((places >= low) & (places < high)).any())
                ),
            )
        )
    return Ladder(pool=group.kind, length=first + end - begin, rungs=tuple(rungs))


def _pages(slots: Int64s, page_size: int) -> tuple[int, ...]:
    pages = slots // page_size
    changed = np.flatnonzero(np.diff(pages, prepend=pages[:1] - 1))
    return tuple(pages[changed].tolist())
