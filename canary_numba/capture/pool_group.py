"""One pool under guard: its record buffers, its plan, and its four stages (HEAD and TAIL of K and V)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from canary_numba.capture.layers import PagedPool
from canary_numba.capture.stages import Stage
from canary_numba.capture.step import Step
from canary_numba.check_plans import plan_radix
from canary_numba.context import VerifyOrWriteContext
from canary_numba.dump.model import Group, Radix, Source
from canary_numba.errors import ArgumentError
from canary_numba.layout import CANARY_SLOT_BYTES, NUM_LAUNCH_TAGS, SLOT_OUT_OF_RANGE, CanaryLaunchTag, RealKvHashMode
from canary_numba.plans import VerifyPlan, WritePlan
from canary_numba.prepared import PreparedPlan


@dataclass(frozen=True, kw_only=True)
class SharedLog:
    """Ring and counters that all stages of all pools report into.

    Attributes
    ----------
    ring, write_index, chain_position_assert : torch.Tensor
        As in :class:`~canary_numba.context.VerifyOrWriteContext`.
    kernel_run, slot_run : torch.Tensor
        int64 ``[12]``, by launch tag.
    plans_too_large : torch.Tensor
        int64 ``[1]``, plans whose entries did not fit, so that nothing was verified.
    """

    ring: torch.Tensor
    write_index: torch.Tensor
    chain_position_assert: torch.Tensor
    kernel_run: torch.Tensor
    slot_run: torch.Tensor
    plans_too_large: torch.Tensor

    @classmethod
    def allocate(cls, *, ring_capacity: int, device: torch.device) -> SharedLog:
        """Allocate an empty log; new records must follow their predecessor without a gap."""
        return cls(
            ring=torch.zeros((ring_capacity, 8), dtype=torch.int64, device=device),
            write_index=torch.zeros(1, dtype=torch.int32, device=device),
            chain_position_assert=torch.ones(1, dtype=torch.int32, device=device),
            kernel_run=torch.zeros(NUM_LAUNCH_TAGS, dtype=torch.int64, device=device),
            slot_run=torch.zeros(NUM_LAUNCH_TAGS, dtype=torch.int64, device=device),
            plans_too_large=torch.zeros(1, dtype=torch.int64, device=device),
        )

    def counters(self, tag: CanaryLaunchTag) -> tuple[torch.Tensor, torch.Tensor]:
        """Views ``[1]`` of the kernel and slot run counters of ``tag``."""
        return self.kernel_run[tag : tag + 1], self.slot_run[tag : tag + 1]


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
            req_to_verify_expected_tokens=None,
            req_to_verify_expected_tokens_valid_lens=None,
            kv_token_id_vs_position_offset=offset,
            engine=engine,
        )
        self.stages = {
            (stage, half): Stage(
                context=self._context(stage, half, mode, device),
                sources=self.sources[half] if stage == "TAIL" else (),
                plan=self.plan,
                write_plan=self.write_plan,
                step=step,
                slots=self._slots,
                keep_source_hashes=keep_source_hashes,
                engine=engine,
            )
            for half in pool.halves
            for stage in ("HEAD", "TAIL")
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
        for half in self.sources:
            self.stages[stage, half].verify()
            if write:
                self.stages[stage, half].write()

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
