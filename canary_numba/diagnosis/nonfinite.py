"""NaN and Inf in K/V.

- ``nonfinite_kv`` (latent): bytes decode to non-finite in the source's dtype while the fingerprint is intact: they were
  poisoned when written. Slot 0 and free slots count too, since 0 * NaN = NaN in attention.
"""

from __future__ import annotations

import numpy as np
import torch

from canary_numba.diagnosis.case import Case, Desk, plural, span
from canary_numba.diagnosis.catalog import MOST_BYTES_DECODED, kv_bytes
from canary_numba.diagnosis.chains import Int64s
from canary_numba.diagnosis.kv_lookup import non_finite
from canary_numba.diagnosis.view import GroupView
from canary_numba.dump.model import Source
from canary_numba.dump.pages import forget
from canary_numba.findings import CERTAIN

CHUNK_BYTES = 64 << 20
"""Bytes decoded at once."""


def find_non_finite(desk: Desk) -> None:
    """One case for each pool and half with non-finite bytes that no finding explains."""
    if kv_bytes(desk.view.dump) > MOST_BYTES_DECODED:
        return
    for group in desk.view.groups.values():
        by_half: dict[str, list[Int64s]] = {}
        names: list[str] = []
        for half, content in group.halves.items():
            for source in content.sources:
                slots = poisoned(source, group.num_slots)
                if slots.shape[0]:
                    names.append(source.name or "unnamed")
                    by_half.setdefault(half, []).append(slots)
        if not by_half:
            continue
        known = np.flatnonzero(desk.explained[group.kind].slots)
        halves = [
            half for half, found in by_half.items() if np.setdiff1d(np.unique(np.concatenate(found)), known).shape[0]
        ]
        found = [slots for half in halves for slots in by_half[half]]
        left = np.setdiff1d(np.unique(np.concatenate(found)), known) if found else known[:0]
        left = _outside_ranges(desk, group, left)
        if left.shape[0]:
            desk.add(_case(desk, group, left, "+".join(halves), names))


def _outside_ranges(desk: Desk, group: GroupView, slots: Int64s) -> Int64s:
    """Leave out what a reported range of the pool covers."""
    for case in desk.cases:
        if case.pool == group.kind and case.fault == "physical_range_overwritten":
            slots = np.setdiff1d(slots, np.array(case.slots, dtype=np.int64))
    return slots


def _case(desk: Desk, group: GroupView, slots: Int64s, halves: str, names: list[str]) -> Case:
    cells = desk.owners(group, slots.tolist())
    owned = int(group.owned[slots].sum())
    return Case(
        fault="nonfinite_kv",
        summary=f"{plural(slots.shape[0], 'slot')} of the {group.kind} pool hold NaN or Inf in their {halves} bytes, "
        f"and did so when they were fingerprinted; {owned} of them are in use.",
        pool=group.kind,
        confidence=CERTAIN,
        cells=cells,
        slots=slots.tolist(),
        evidence=[f"slots {span(slots)}", f"in {', '.join(sorted(set(names))[:6])}"]
        + (["slot 0 among them: every padded read takes it up"] if int(slots[0]) == 0 else []),
        details={"half": halves, "in_use": owned, "sources": sorted(set(names))},
    )


def poisoned(source: Source, num_slots: int) -> Int64s:
    """Slots with a NaN or Inf among their bytes, ascending; none for a dtype that has no such values."""
    if non_finite(torch.zeros((1, 8), dtype=torch.uint8), source.tensor.dtype) is None:
        return np.empty(0, dtype=np.int64)
    page, width = source.page_size, source.num_bytes_per_token
    raw = source.tensor.view(torch.uint8)
    rows = max(1, CHUNK_BYTES // max(1, page * width))
    found = []
    for begin in range(0, raw.shape[0], rows):
        piece = raw[begin : begin + rows, : page * width]
        bad = non_finite(piece.reshape(piece.shape[0] * page, width), source.tensor.dtype)
        assert bad is not None
        found.append(torch.nonzero(bad.any(dim=1))[:, 0].numpy() + begin * page)
        forget(piece.data_ptr(), piece.shape[0] * raw.stride(0))
    slots = np.concatenate(found) if found else np.empty(0, dtype=np.int64)
    return slots[slots < num_slots]
