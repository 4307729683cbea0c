"""One pool under guard: its record buffers, its plan, and its four stages (HEAD and TAIL of K and V)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from canary_numba.capture.layers import PagedPool
from canary_numba.capture.shared_log import SharedLog
from canary_numba.capture.stages import Stage, StageLaunches
from canary_numba.capture.step import Step
from canary_numba.check_plans import plan_radix
from canary_numba.context import VerifyOrWriteContext
from canary_numba.dump.model import Group, Radix, Source
from canary_numba.errors import ArgumentError
from canary_numba.layout import CANARY_SLOT_BYTES, SLOT_OUT_OF_RANGE, CanaryLaunchTag, RealKvHashMode
from canary_numba.plans import VerifyPlan, WritePlan
from canary_numba.prepared import PreparedPlan

STAGES = ("HEAD", "TAIL")


class PoolGroup:
    """The FULL or the SWA pool.

    Parameters
    ----------
    kind
        ``"FULL"`` or ``"SWA"``.
    pool
        Its K/V tensors.
    window, mapping
        Window size in tokens and the int64 map from FULL slots, for SWA.
    req_to_token, step, log
        Shared by all groups, bound by address.
    mode, capacity, offset, keep_source_hashes, engine
        Hash mode, verify entries a pass has room for, token offset, and as in :class:`Stage`.
    """

    def __init__(
        self,
        *,
        kind: str,
        pool: PagedPool,
        window: int,
        mapping: torch.Tensor | None,
        req_to_token: torch.Tensor,
        step: Step,
        log: SharedLog,
        mode: RealKvHashMode,
        capacity: int,
        offset: int,
        keep_source_hashes: bool,
        engine: str,
    ) -> None:
        device = req_to_token.device
        self.kind, self.window, self.mapping, self.offset = kind, window, mapping, offset
        self.sources = {half: pool.sources(half) for half in pool.halves}
        self.num_slots = _num_slots(kind, pool, self.sources)
        self.plan = VerifyPlan.allocate(verify_capacity=capacity, device=device).zero_for_testing_()
        self.write_plan = WritePlan.allocate(
            write_req_capacity=step.req_pool_indices.shape[0], device=device
        ).zero_for_testing_()
        self._step, self._log = step, log
        self._slots = step.out_cache_loc if mapping is None else torch.full_like(step.out_cache_loc, -1)
        self._plan = PreparedPlan(
            verify_plan_out=self.plan,
            write_plan_out=self.write_plan,
            req_pool_indices=step.req_pool_indices,
            prefix_lens=step.prefix_lens,
            extend_seq_lens=step.extend_seq_lens,
            req_to_token=req_to_token,
            swa_window_size=window,
            full_to_swa_index_mapping=mapping,
            verify_capacity=capacity,
            req_to_verify_expected_tokens=step.token_table,
            req_to_verify_expected_tokens_valid_lens=None if step.token_table is None else step.token_lens,
            kv_token_id_vs_position_offset=offset,
            engine=engine,
        )
        self.stages = {
            (stage, half): Stage(
                context=self._context(stage, half, mode, device),
                sources=self.sources[half] if stage == "TAIL" else (),
                keep_source_hashes=keep_source_hashes,
                engine=engine,
            )
            for half in pool.halves
            for stage in STAGES
        }
        self._launches = {
            stage: StageLaunches(
                [self.stages[stage, half] for half in pool.halves],
                plan=self.plan,
                write_plan=self.write_plan,
                step=step,
                slots=self._slots,
                # Every stage writes the same tokens: one of them says when they are not those expected.
                asserts_input=(kind, stage) == ("FULL", "HEAD"),
                engine=engine,
            )
            for stage in STAGES
        }

    @property
    def tags(self) -> tuple[CanaryLaunchTag, ...]:
        """Launch tags that every pass uses."""
        return tuple(CanaryLaunchTag.of(stage, half, self.kind) for stage, half in self.stages)

    def make_plan(self) -> None:
        """Plan the requests of the step."""
        # Entries past the plan's end would else be hashed again, those of some earlier pass.
        self.plan.verify_slot_indices.fill_(-1)
        self._plan()
        self._log.plans_too_large.add_(1 - self.plan.enable)

    def run(self, stage: str, *, write: bool = True) -> None:
        """Verify what is cached in the records of ``stage``, then write those of the new tokens."""
        if write and self.mapping is not None:
            self._slots.copy_(_mapped(self._step.out_cache_loc, self.mapping))
        launches = self._launches[stage]
        launches.verify()
        if write:
            launches.write()

    def sweep(self, radix: Radix) -> None:
        """Verify the slots that the prefix cache holds."""
        device = self._log.ring.device
        here = Radix(
            slot_indices=radix.slot_indices.to(device),
            positions=radix.positions.to(device),
            prev_slot_indices=radix.prev_slot_indices.to(device),
        )
        bare = Group(kind=self.kind, halves={}, full_to_swa_index_mapping=self.mapping)
        plan = plan_radix(here, bare, device=device)
        for half in self.sources:
            tag = CanaryLaunchTag.of("SWEEP", half, self.kind)
            self.stages["TAIL", half].sweep(plan, tag, counters=self._log.counters(tag))

    def buffers(self) -> Iterator[tuple[str, str, Stage]]:
        """Yield stage name, half and stage."""
        for (stage, half), launches in self.stages.items():
            yield stage, half, launches

    def _context(self, stage: str, half: str, mode: RealKvHashMode, device: torch.device) -> VerifyOrWriteContext:
        tag = CanaryLaunchTag.of(stage, half, self.kind)
        kernel_run, slot_run = self._log.counters(tag)
        return VerifyOrWriteContext(
            canary_buf=torch.zeros((self.num_slots, CANARY_SLOT_BYTES), dtype=torch.uint8, device=device),
            kernel_kind=tag,
            violation_ring=self._log.ring,
            violation_write_index=self._log.write_index,
            slot_run_counter=slot_run,
            kernel_run_counter=kernel_run,
            real_kv_sources=(),
            real_kv_hash_mode=mode,
            enable_chain_position_assert=self._log.chain_position_assert,
        )


def make_groups(
    pool: PagedPool,
    *,
    window_pool: PagedPool | None,
    swa_window_size: int,
    full_to_swa_index_mapping: torch.Tensor | None,
    **common: Any,
) -> tuple[PoolGroup, ...]:
    """Put a pool, and its window pool if there is one, under guard; ``common``: what :class:`PoolGroup` takes of both.

    Raises
    ------
    ArgumentError
        What belongs to a window is given in part, or a tensor does not fit.
    """
    windowed = (window_pool is not None, swa_window_size > 0, full_to_swa_index_mapping is not None)
    if any(windowed) and not all(windowed):
        raise ArgumentError("window_pool, swa_window_size, full_to_swa_index_mapping: expected all three or none")
    full = PoolGroup(kind="FULL", pool=pool, window=0, mapping=None, **common)
    if window_pool is None:
        return (full,)
    mapping = full_to_swa_index_mapping
    return full, PoolGroup(kind="SWA", pool=window_pool, window=swa_window_size, mapping=mapping, **common)


def _mapped(slots: torch.Tensor, mapping: torch.Tensor) -> torch.Tensor:
    """As :func:`~canary_numba.check_plans.map_slots`, without a copy from the host, which would wait for the device."""
    inside = mapping[slots.clamp(0, mapping.shape[0] - 1)]
    return torch.where(slots < 0, slots, torch.where(slots < mapping.shape[0], inside, SLOT_OUT_OF_RANGE))


def _num_slots(kind: str, pool: PagedPool, sources: dict[str, tuple[Source, ...]]) -> int:
    held = min((s.tensor.shape[0] * s.page_size for half in sources.values() for s in half), default=0)
    if held == 0:
        raise ArgumentError(f"{kind} pool: expected K tensors of at least one layer, got none")
    num_slots = held if pool.num_slots is None else pool.num_slots
    if not 1 <= num_slots <= held:
        raise ArgumentError(f"{kind} pool: expected num_slots from 1 to {held}, what its tensors hold, got {num_slots}")
    return num_slots
