"""Checking a dump: every record of every pool, half and stage, on the engine of choice.

For each half: HEAD records over the requests' plan (they carry no K/V bytes), TAIL records over the same plan with the
K/V bytes, and TAIL records over the prefix cache's plan (SWEEP). What cannot be checked is skipped with its reason.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from canary_numba.check_buffer import TagCheck, verify_buffer
from canary_numba.check_hashes import Observer, changed_sources, expected_hashes
from canary_numba.check_plans import plan_radix, plan_requests
from canary_numba.dump.model import Dump, Group, Half
from canary_numba.engine_choice import EngineChoice, choose_engine
from canary_numba.layout import (
    VIOLATION_FIELD_FAIL_REASON_BITS,
    VIOLATION_FIELD_SLOT_IDX,
    CanaryLaunchTag,
    FailReason,
    RealKvHashMode,
)
from canary_numba.plans import VerifyPlan

RECORD_BYTES_PER_ENTRY = 64
"""Record bytes that verifying an entry reads: its own record and its predecessor's."""


class _Silent:
    def stage(self, name: str, total_bytes: int) -> None:
        """Ignore it."""

    def advance(self, done_bytes: int) -> None:
        """Ignore it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A check that was not done, and why."""

    what: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """What checking a dump found. ``bytes_checked``: K/V bytes hashed, and 64 bytes of records an entry."""

    engine: EngineChoice
    checks: tuple[TagCheck, ...]
    skipped: tuple[Skipped, ...]
    seconds: float
    bytes_checked: int

    @property
    def num_violations(self) -> int:
        """Violation rows of all buffers."""
        return sum(check.rows.shape[0] for check in self.checks)


def check_dump(
    dump: Dump, *, engine: str = "auto", observer: Observer | None = None, zero_init_okay: bool = False
) -> CheckResult:
    """Verify everything a dump allows to be verified.

    Parameters
    ----------
    dump
        The dump; its K/V tensors may be mapped files of any size.
    engine
        ``auto``, ``cuda``, ``cpu``, ``reference`` or ``simulator``.
    observer
        Told about progress.
    zero_init_okay
        Count all-zero records as never written instead of as violations.

    Raises
    ------
    ArgumentError, EngineUnavailableError
        The engine is unknown or cannot run.
    DumpError
        The dump asks for more than a plan can hold.
    """
    started = time.perf_counter()
    choice = choose_engine(engine)
    watcher = observer or _Silent()
    checks: list[TagCheck] = []
    skipped: list[Skipped] = []
    hashed = 0
    for group in dump.groups:
        plans = _plans(dump, group, choice)
        for name, half in group.halves.items():
            reason = _unused(group, name)
            if reason is not None:
                skipped += [Skipped(what=f"{s}_{name}_{group.kind}", reason=reason) for s in ("HEAD", "TAIL", "SWEEP")]
                continue
            stages = dict(_stages(half, plans))
            skipped += _missing(dump, half, f"{name}_{group.kind}")
            touching = [plan for stage, plan in stages.items() if stage != "HEAD"]
            hashes, read = expected_hashes(dump, half, touching, choice, watcher, f"{name} {group.kind}")
            hashed += read
            found: list[TagCheck] = []
            for stage, plan in stages.items():
                tag = CanaryLaunchTag.of(stage, name, group.kind)
                tokens = stage != "SWEEP" and dump.requests is not None and dump.requests.expected_tokens is not None
                expected = hashes if stage != "HEAD" else None
                buf = half.head if stage == "HEAD" else half.tail
                assert buf is not None
                found.append(verify_buffer(tag, buf, plan, expected, tokens, zero_init_okay, choice))
            checks += _with_changed_sources(dump, half, found, choice)
    records = sum(check.num_entries for check in checks) * RECORD_BYTES_PER_ENTRY
    return CheckResult(
        engine=choice,
        checks=tuple(checks),
        skipped=tuple(skipped),
        seconds=time.perf_counter() - started,
        bytes_checked=hashed + records,
    )


def _plans(dump: Dump, group: Group, choice: EngineChoice) -> dict[str, VerifyPlan]:
    plans = {}
    if dump.requests is not None:
        plans["requests"] = plan_requests(dump, group, engine=choice.name, device=choice.device)
    if dump.radix is not None:
        plans["radix"] = plan_radix(dump.radix, group, device=choice.device)
    return plans


def _stages(half: Half, plans: dict[str, VerifyPlan]) -> Iterator[tuple[str, VerifyPlan]]:
    if "requests" in plans:
        for stage in half.buffers:
            yield stage, plans["requests"]
    if "radix" in plans and half.tail is not None:
        yield "SWEEP", plans["radix"]


def _missing(dump: Dump, half: Half, suffix: str) -> list[Skipped]:
    reasons = {}
    for stage, buf in (("HEAD", half.head), ("TAIL", half.tail)):
        if buf is None:
            reasons[stage] = f"the dump has no {stage.lower()} records of this half"
        elif dump.requests is None:
            reasons[stage] = "the dump has no requests"
    if half.tail is None:
        reasons["SWEEP"] = "the dump has no tail records of this half"
    elif dump.radix is None:
        reasons["SWEEP"] = "the dump has no prefix cache (radix)"
    if half.tail is not None and not half.sources and dump.hash_mode != RealKvHashMode.NONE:
        instead = "" if half.source_hashes is None else ": its records were compared with its source_hashes instead"
        reasons["K/V bytes of TAIL"] = f"the dump has no K/V bytes (sources) of this half{instead}"
    elif half.tail is not None and half.source_slots is not None:
        kept = f"{half.source_slots.shape[0]} of {half.num_slots} slots"
        reasons["some K/V bytes of TAIL"] = f"the dump has the K/V bytes of {kept}"
    return [Skipped(what=f"{stage}_{suffix}", reason=reason) for stage, reason in reasons.items()]


def _unused(group: Group, name: str) -> str | None:
    used = {key: any(bool(buf.any()) for buf in half.buffers.values()) for key, half in group.halves.items()}
    if used[name] or not any(used.values()):
        return None
    others = ", ".join(key for key, in_use in used.items() if in_use)
    return f"every record of half {name} is zero while half {others} has records: it was not in use"


def _with_changed_sources(dump: Dump, half: Half, found: list[TagCheck], choice: EngineChoice) -> list[TagCheck]:
    """Add to the checks of TAIL and SWEEP whose bytes changed, where a K/V hash failed."""
    rows = torch.cat([check.rows for check in found if check.tag.stage != "HEAD"] or [torch.empty((0, 8)).long()])
    failed = (rows[:, VIOLATION_FIELD_FAIL_REASON_BITS] & int(FailReason.VERIFY_REAL_KV_HASH_MISMATCH)) != 0
    names = changed_sources(dump, half, torch.unique(rows[failed, VIOLATION_FIELD_SLOT_IDX]), choice)
    return [replace(check, changed_sources=names) if check.tag.stage != "HEAD" else check for check in found]
