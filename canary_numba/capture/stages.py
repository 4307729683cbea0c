"""What is launched for one record buffer in each pass: verify what is cached, write what is new."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from canary_numba.capture.hashes import SourceHasher, combine_source_hashes, put_by_slot
from canary_numba.capture.step import Step
from canary_numba.context import VerifyOrWriteContext
from canary_numba.dump.model import Source
from canary_numba.launch import launch_canary_verify_kernel
from canary_numba.layout import CANARY_FIELD_REAL_KV_HASH, MAX_REAL_KV_SOURCES, CanaryLaunchTag, RealKvHashMode
from canary_numba.plans import VerifyPlan, WritePlan
from canary_numba.prepared import PreparedVerify, PreparedWrite
from canary_numba.reference.words import records_of


class Stage:
    """HEAD or TAIL of one half of one pool: its buffer and its prepared launches.

    Parameters
    ----------
    context
        Without sources.
    sources
        Whose bytes the records fingerprint; empty for HEAD.
    plan, write_plan, step, slots
        Bound by address; ``slots`` is int64 ``[max_new_tokens]``, ``step.out_cache_loc`` in this pool's numbers.
    keep_source_hashes
        Remember the hash of each source alone when a record is written.
    engine
        Who runs it.
    """

    def __init__(
        self,
        *,
        context: VerifyOrWriteContext,
        sources: Sequence[Source],
        plan: VerifyPlan,
        write_plan: WritePlan,
        step: Step,
        slots: torch.Tensor,
        keep_source_hashes: bool,
        engine: str,
    ) -> None:
        mode = context.real_kv_hash_mode
        hashed = tuple(sources) if mode != RealKvHashMode.NONE else ()
        self.records = context.canary_buf
        self.source_hashes: torch.Tensor | None = None
        self._slots, self._plan, self._engine = slots, plan, engine
        self._hasher: SourceHasher | None = None
        self._expected: torch.Tensor | None = None
        if hashed and (keep_source_hashes or len(hashed) > MAX_REAL_KV_SOURCES):
            num_slots, device = self.records.shape[0], self.records.device
            self._hasher = SourceHasher(hashed, mode, engine)
            self._expected = torch.zeros(num_slots, dtype=torch.int64, device=device)
            if keep_source_hashes:
                self.source_hashes = torch.zeros((num_slots, len(hashed)), dtype=torch.int64, device=device)
        else:
            # The launchers read sources by attribute, so those of a dump will do.
            context = replace(context, real_kv_sources=hashed)  # type: ignore[arg-type]
        self._context = context
        self._verify = PreparedVerify(
            context=context,
            plan=plan,
            check_verify_expected_token=False,
            engine=engine,
            real_kv_hashes=self._expected,
        )
        self._write = PreparedWrite(
            context=context,
            plan=write_plan,
            input_ids=step.input_ids,
            positions=step.positions,
            out_cache_loc=slots,
            enable_write_input_assert=False,
            expected_input_tokens=None,
            expected_input_positions=None,
            engine=engine,
        )

    def verify(self) -> None:
        """Verify the planned slots."""
        self._expect(self._plan)
        self._verify()

    def write(self) -> None:
        """Write the records of the new tokens, over the K/V bytes as they are now."""
        self._write()
        if self._hasher is None:
            return
        if self.source_hashes is None:
            hashes = self._hasher.combined(self._slots)
        else:
            single = self._hasher.single(self._slots)
            put_by_slot(self.source_hashes, self._slots, single)
            hashes = combine_source_hashes(single)
        put_by_slot(records_of(self.records)[:, CANARY_FIELD_REAL_KV_HASH], self._slots, hashes)

    def sweep(self, plan: VerifyPlan, tag: CanaryLaunchTag, *, counters: tuple[torch.Tensor, torch.Tensor]) -> None:
        """Verify the slots of another plan, reporting as ``tag``; ``counters``: its kernel and slot run counters."""
        self._expect(plan)
        kernel_run, slot_run = counters
        launch_canary_verify_kernel(
            context=replace(self._context, kernel_kind=tag, kernel_run_counter=kernel_run, slot_run_counter=slot_run),
            plan=plan,
            check_verify_expected_token=False,
            engine=self._engine,
            real_kv_hashes=self._expected,
        )

    def _expect(self, plan: VerifyPlan) -> None:
        if self._hasher is not None and self._expected is not None:
            slots = plan.verify_slot_indices
            put_by_slot(self._expected, slots, self._hasher.combined(slots))
