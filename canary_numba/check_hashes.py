"""What the real-KV hash of each record should be, and whose bytes changed where it is not.

A record holds one hash over all sources (layers) of its half. A dump may keep the hash of each source alone beside it
(``source_hashes``): then a changed hash can be laid at the door of the layers that changed it, and a dump whose K/V
bytes were left out can still be checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Protocol

import torch

from canary_numba.dump.model import Dump, Half
from canary_numba.engine_choice import EngineChoice
from canary_numba.kv_hashes import bytes_per_slot, hash_slots
from canary_numba.layout import CANARY_FIELD_REAL_KV_HASH, RealKvHashMode
from canary_numba.plans import VerifyPlan
from canary_numba.reference.words import mix, records_of, unmix

ROWS_AT_ONCE = 1 << 16
"""Slots whose source hashes are combined or compared at once."""


class Observer(Protocol):
    """Who wants to know how far a check is; the command line draws a progress bar from it."""

    def stage(self, name: str, total_bytes: int) -> None:
        """A half is about to be hashed: ``total_bytes`` of K/V bytes are to be read."""

    def advance(self, done_bytes: int) -> None:
        """``done_bytes`` more have been read."""


def combine_source_hashes(source_hashes: torch.Tensor) -> torch.Tensor:
    """Compute the real-KV hash of all sources from those of each alone.

    Parameters
    ----------
    source_hashes
        int64 ``[n, sources]`` on any device: what :func:`~canary_numba.launch.launch_real_kv_hash_kernel` makes of each
        source alone.

    Returns
    -------
    torch.Tensor
        int64 ``[n]``.
    """
    combined = torch.zeros(source_hashes.shape[0], dtype=torch.int64, device=source_hashes.device)
    for column in source_hashes.unbind(1):
        # Alone, a source's fold f is stored as mix(0 ^ f); the record chains mix(hash so far ^ f).
        combined = mix(combined ^ unmix(column))
    return combined


def touched_slots(plans: Iterable[VerifyPlan], num_slots: int) -> torch.Tensor:
    """List the slots that the plans look at and that have K/V bytes: int64 ``[n]`` on the CPU, ascending."""
    touched = torch.zeros(num_slots, dtype=torch.bool)
    for plan in plans:
        slots = plan.verify_slot_indices[: int(plan.verify_num_valid)].cpu()
        touched[slots[(slots > 0) & (slots < num_slots)]] = True
    return touched.nonzero()[:, 0]


def expected_hashes(
    dump: Dump, half: Half, plans: list[VerifyPlan], choice: EngineChoice, watcher: Observer, label: str
) -> tuple[torch.Tensor | None, int]:
    """Compute the real-KV hash of every slot that ``plans`` look at, int64 ``[num_slots]``, and count the bytes read.

    From the K/V bytes; where the dump lacks them, of all slots or of one, from the hashes of each source; where it
    lacks those, too, each record is taken at its word. None when records carry no such hash.
    """
    if dump.hash_mode == RealKvHashMode.NONE or not plans:
        return None, 0
    assert half.tail is not None
    slots = touched_slots(plans, half.num_slots)
    if half.sources and half.source_slots is None:
        total = slots.shape[0] * bytes_per_slot(half, dump.hash_mode)
        watcher.stage(label, total)
        hashes = hash_slots(
            half, dump.hash_mode, slots, engine=choice.name, device=choice.device, advance=watcher.advance
        )
        return hashes, total
    stored = records_of(half.tail)[:, CANARY_FIELD_REAL_KV_HASH].contiguous()
    if half.source_hashes is not None:
        for piece in torch.split(slots, ROWS_AT_ONCE):
            stored[piece] = combine_source_hashes(half.source_hashes[piece])
    read = 0
    if half.sources:
        kept = slots[kept_among(half, slots)]
        read = kept.shape[0] * bytes_per_slot(half, dump.hash_mode)
        watcher.stage(label, read)
        stored[kept] = _kept_hashes(half, dump.hash_mode, kept, choice, watcher.advance)
    return stored.to(choice.device), read


def kept_among(half: Half, slots: torch.Tensor) -> torch.Tensor:
    """Tell for which slots (int64 ``[n]``) the half's sources hold the bytes: bool ``[n]``."""
    if half.source_slots is None:
        return torch.ones(slots.shape[0], dtype=torch.bool)
    return torch.isin(slots, half.source_slots)


def _kept_hashes(
    half: Half, mode: RealKvHashMode, slots: torch.Tensor, choice: EngineChoice, advance: Callable[[int], None]
) -> torch.Tensor:
    """Real-KV hashes, int64 ``[n]`` on the CPU, of slots whose bytes the sources hold."""
    numbers = slots
    if half.source_slots is not None:
        assert half.tail is not None
        numbers = torch.searchsorted(half.source_slots, slots)
        half = replace(half, head=None, tail=half.tail[half.source_slots], source_hashes=None, source_slots=None)
    return hash_slots(half, mode, numbers, engine=choice.name, device=choice.device, advance=advance).cpu()[numbers]


def changed_sources(dump: Dump, half: Half, slots: torch.Tensor, choice: EngineChoice) -> Mapping[int, tuple[str, ...]]:
    """Name the sources whose bytes are no longer what they were when the records of ``slots`` were written.

    Parameters
    ----------
    dump, half
        The half whose real-KV hashes failed, and its dump.
    slots
        int64 ``[n]`` on the CPU, ascending and distinct: where they failed.
    choice
        Who hashes.

    Returns
    -------
    Mapping
        Names by slot; nothing for slots whose stored source hashes do not combine to the hash in their record, since
        those are not of the bytes that the record was written for.
    """
    if half.source_hashes is None or not half.sources or half.tail is None or slots.shape[0] == 0:
        return {}
    if dump.hash_mode == RealKvHashMode.NONE:
        return {}
    names = [source.name or f"source {i}" for i, source in enumerate(half.sources)]
    recorded = records_of(half.tail)[:, CANARY_FIELD_REAL_KV_HASH]
    slots = slots[kept_among(half, slots)]
    found: dict[int, tuple[str, ...]] = {}
    known: dict[tuple[int, ...], tuple[str, ...]] = {}
    for piece in torch.split(slots, ROWS_AT_ONCE):
        stored = half.source_hashes[piece]
        differs = torch.stack([_now(dump, half, i, piece, choice) for i in range(len(names))], dim=1) != stored
        sound = combine_source_hashes(stored) == recorded[piece]
        for slot, row in zip(piece[sound].tolist(), differs[sound], strict=True):
            which = tuple(row.nonzero()[:, 0].tolist())
            found[slot] = known.setdefault(which, tuple(names[i] for i in which))
    return found


def _now(dump: Dump, half: Half, number: int, slots: torch.Tensor, choice: EngineChoice) -> torch.Tensor:
    alone = replace(half, sources=(half.sources[number],))
    return _kept_hashes(alone, dump.hash_mode, slots, choice, lambda done_bytes: None)
