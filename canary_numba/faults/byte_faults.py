"""Faults of K/V bytes under sound records: changed, copied, not restored, written by padded rows, not finite."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from canary_numba.dump.model import Event, Source
from canary_numba.errors import FaultNotApplicable
from canary_numba.faults.label import Label
from canary_numba.faults.pool import Int64s, Pool
from canary_numba.faults.scene import Scene
from canary_numba.faults.slot_bytes import random_content, read_slots, write_slots
from canary_numba.faults.stretches import Stretch, draw
from canary_numba.layout import PARTIAL_READ_BYTES, RealKvHashMode


def kv_bytes_changed(scene: Scene) -> Label:
    """Bytes changed after they were fingerprinted: one bit, or a stretch up to the newest token that was late."""
    pool, halves = scene.full, _halves(scene)
    if scene.rng.random() < 0.5:
        hit, half = draw(scene, most=1, cached=True), str(scene.rng.choice(halves))
        if hit.slots[0] == pool.num_slots - 1:
            raise FaultNotApplicable("the pool's last slot is where padded rows are written, too")
        source = _source(scene, half)
        content = read_slots(source, torch.from_numpy(hit.slots))
        byte, bit = int(scene.rng.integers(_read(pool, source))), int(scene.rng.integers(8))
        content[0, byte] ^= 1 << bit
        write_slots(source, torch.from_numpy(hit.slots), content)
        return _label(scene, "kv_bytes_changed", hit, half=half, layers=[source.name])
    request = scene.pick(scene.live, "live request")
    first = max(0, request.length - int(scene.rng.integers(1, 12)))
    hit = Stretch(request, range(first, request.length), scene.slots(request)[first:])
    chosen = halves if scene.rng.random() < 0.5 else [str(scene.rng.choice(halves))]
    _scramble(scene, hit.slots, chosen)
    return _label(scene, "kv_bytes_changed", hit, half="+".join(sorted(chosen)), newest=request.name)


def restore_mismatch(scene: Scene) -> Label:
    """What a restore or a transfer brought in is not what was fingerprinted: wiped, cut short, or other content."""
    halves = _halves(scene)
    hit = draw(scene, least=2, pages=True)
    kind = str(scene.rng.choice(("restore", "receive")))
    how = str(scene.rng.choice(("wiped", "suffix missing", "whole")))
    damaged = hit
    if how == "suffix missing":
        skip = int(scene.rng.integers(0, len(hit.slots) - 1))
        damaged = Stretch(hit.request, hit.positions[skip:], hit.slots[skip:])
    if how == "whole":
        _scramble(scene, damaged.slots, halves)
    else:
        scene.full.wipe(damaged.slots, records=False)
    assert hit.request is not None
    event = Event(
        kind=kind,
        slots=torch.from_numpy(hit.slots.copy()),
        step=_step(scene),
        request=hit.request.name,
        source="host" if kind == "restore" else "prefill-0",
    )
    scene.add_event(event)
    return _label(scene, "restore_mismatch", damaged, half="+".join(sorted(halves)), event=kind, extent=how)


def kv_bytes_copied(scene: Scene) -> Label:
    """Slots hold the bytes of others: a wrong copy."""
    halves = _halves(scene)
    hit = draw(scene, most=4, cached=True)
    written = np.flatnonzero(scene.full.main.any(axis=1))
    written = np.setdiff1d(written[written > 0], hit.slots)
    if len(written) < len(hit.slots):
        raise FaultNotApplicable("the dump has no other written slots")
    origin = scene.rng.choice(written, len(hit.slots), replace=False)
    chosen = halves if scene.rng.random() < 0.6 else [str(scene.rng.choice(halves))]
    for half in chosen:
        if (scene.full.hashes(half, origin) == scene.full.hashes(half, hit.slots)).any():
            raise FaultNotApplicable("the bytes are equal")
        if not np.array_equal(scene.full.hashes(half, origin), scene.full.records[half, "TAIL"][origin, 3]):
            raise FaultNotApplicable("the other slots are not sound")
        scene.full.copy(origin, hit.slots, records=False, halves=half)
    from_ = origin.tolist() if len(origin) > 1 else int(origin[0])
    return _label(scene, "kv_bytes_copied", hit, half="+".join(sorted(chosen)), copied_from=from_)


def padding_write(scene: Scene) -> Label:
    """Padded rows of a batch were written into real slots: the pool's last one, or one offset of many pages."""
    halves, size, pool = _halves(scene), scene.page_size, scene.full
    used = sorted({*scene.owners, *scene.nodes})
    columns = [[slot for slot in used if slot % size == offset] for offset in range(size if size > 1 else 0)]
    choices = [column for column in columns if len(column) >= 3]
    if pool.num_slots - 1 in used:
        choices.append([pool.num_slots - 1])
    slots = np.array(scene.pick(choices, "last slot in use, and no three pages"), dtype=np.int64)
    _scramble(scene, slots, halves)
    return scene.label("padding_write", scene.places(slots.tolist()), slots, half="+".join(sorted(halves)))


def nonfinite_kv(scene: Scene) -> Label:
    """A NaN was written and fingerprinted: into a request's slot, slot 0 or a free one."""
    pool = scene.full
    choices = [
        (half, source, nan)
        for half in pool.halves
        for source in pool.own_sources(half)
        if source.tensor.dtype.is_floating_point and (nan := _nan(source)) is not None
    ]
    half, source, nan = scene.pick(choices, "K/V bytes of a floating dtype")
    hit = draw(scene, most=3)
    slots = hit.slots if scene.rng.random() < 0.7 else np.zeros(1, dtype=np.int64)
    content = read_slots(source, torch.from_numpy(slots))
    width = source.tensor.dtype.itemsize
    place = width * int(scene.rng.integers(source.num_bytes_per_token // width))
    content[:, place : place + width] = nan
    write_slots(source, torch.from_numpy(slots), content)
    if slots[0]:
        pool.refresh(slots)
    return scene.label("nonfinite_kv", scene.places([s for s in slots.tolist() if s]), slots, half=half)


def _nan(source: Source) -> torch.Tensor | None:
    found = torch.full((1,), float("nan"), dtype=torch.float32).to(source.tensor.dtype)
    return found.view(torch.uint8) if bool(torch.isnan(found.float())) else None


def _halves(scene: Scene) -> list[str]:
    pool = scene.full
    halves = [h for h in pool.halves if pool.group.halves[h].sources and (h, "TAIL") in pool.records]
    if pool.mode == RealKvHashMode.NONE or not halves:
        raise FaultNotApplicable("the dump has no fingerprints of K/V bytes")
    return halves


def _source(scene: Scene, half: str) -> Source:
    return scene.pick(scene.full.own_sources(half), "K/V bytes")


def _read(pool: Pool, source: Source) -> int:
    return min(PARTIAL_READ_BYTES, source.read_bytes) if pool.mode == RealKvHashMode.PARTIAL else source.read_bytes


def _scramble(scene: Scene, slots: Int64s, halves: list[str]) -> None:
    """Put other values into all K/V bytes of slots; their records stay."""
    for half in halves:
        for source in scene.full.own_sources(half):
            width = source.num_bytes_per_token
            content = random_content(scene.rng, source.tensor.dtype, len(slots), width)
            write_slots(source, torch.from_numpy(slots), content)


def _step(scene: Scene) -> int:
    step = scene.dump.context.get("step", 0)
    return step if isinstance(step, int) else 0


def _label(scene: Scene, fault: str, hit: Stretch, **details: Any) -> Label:
    places = scene.places(hit.slots.tolist())
    return scene.label(fault, places, hit.slots, cached_only=None if places else True, **details)
