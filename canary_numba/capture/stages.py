"""What is launched for a stage of a pass: verify what is cached, write what is new, K and V in one launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

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
    """HEAD or TAIL of one half of one pool: its records, and the fingerprints that do not fit a launch.

    Parameters
    ----------
    context
        Without sources.
    sources
        Whose bytes the records fingerprint; empty for HEAD.
    keep_source_hashes
        Remember the hash of each source alone when a record is written.
    engine
        Who hashes.

    Attributes
    ----------
    context : VerifyOrWriteContext
        With the sources, if one launch takes them.
    expected : torch.Tensor or None
        Otherwise the hash of each slot's bytes, int64 ``[num_slots]``, once :meth:`expect` has made it.
    """

    def __init__(
        self,
        *,
        context: VerifyOrWriteContext,
        sources: Sequence[Source],
        keep_source_hashes: bool,
        engine: str,
    ) -> None:
        mode = context.real_kv_hash_mode
        hashed = tuple(sources) if mode != RealKvHashMode.NONE else ()
        self.records = context.canary_buf
        self.source_hashes: torch.Tensor | None = None
        self.expected: torch.Tensor | None = None
        self._engine = engine
        self._hasher: SourceHasher | None = None
        if hashed and (keep_source_hashes or len(hashed) > MAX_REAL_KV_SOURCES):
            num_slots, device = self.records.shape[0], self.records.device
            self._hasher = SourceHasher(hashed, mode, engine)
            self.expected = torch.zeros(num_slots, dtype=torch.int64, device=device)
            if keep_source_hashes:
                self.source_hashes = torch.zeros((num_slots, len(hashed)), dtype=torch.int64, device=device)
        else:
            # The launchers read sources by attribute, so those of a dump will do.
            context = replace(context, real_kv_sources=hashed)  # type: ignore[arg-type]
        self.context = context

    def expect(self, plan: VerifyPlan) -> None:
        """Hash the bytes of the planned slots as they are now."""
        if self._hasher is not None and self.expected is not None:
            slots = plan.verify_slot_indices
            put_by_slot(self.expected, slots, self._hasher.combined(slots))

    def put_hashes(self, slots: torch.Tensor) -> None:
        """Complete the records that were just written for ``slots``."""
        if self._hasher is None:
            return
        if self.source_hashes is None:
            hashes = self._hasher.combined(slots)
        else:
            single = self._hasher.single(slots)
            put_by_slot(self.source_hashes, slots, single)
            hashes = combine_source_hashes(single)
        put_by_slot(records_of(self.records)[:, CANARY_FIELD_REAL_KV_HASH], slots, hashes)

    def sweep(self, plan: VerifyPlan, tag: CanaryLaunchTag, *, counters: tuple[torch.Tensor, torch.Tensor]) -> None:
        """Verify the slots of another plan, reporting as ``tag``; ``counters``: its kernel and slot run counters."""
        self.expect(plan)
        kernel_run, slot_run = counters
        launch_canary_verify_kernel(
            context=replace(self.context, kernel_kind=tag, kernel_run_counter=kernel_run, slot_run_counter=slot_run),
            plan=plan,
            check_verify_expected_token=False,
            engine=self._engine,
            real_kv_hashes=self.expected,
        )


class StageLaunches:
    """The prepared launches of HEAD or TAIL, for the halves of a pool together.

    Parameters
    ----------
    halves
        The stage's records, K before V.
    plan, write_plan, step, slots
        Bound by address; ``slots`` is int64 ``[max_new_tokens]``, ``step.out_cache_loc`` in this pool's numbers.
    asserts_input
        Whether the first half compares the new tokens with those that the step expects, when it expects any.
    engine
        Who runs it.
    """

    def __init__(
        self,
        halves: Sequence[Stage],
        *,
        plan: VerifyPlan,
        write_plan: WritePlan,
        step: Step,
        slots: torch.Tensor,
        asserts_input: bool,
        engine: str,
    ) -> None:
        self._halves, self._plan, self._step, self._slots = tuple(halves), plan, step, slots
        self._verify = PreparedVerify(
            context=[half.context for half in halves],
            plan=plan,
            check_verify_expected_token=step.token_table is not None,
            engine=engine,
            real_kv_hashes=[half.expected for half in halves],
        )
        flat: dict[str, Any] = {
            "plan": write_plan,
            "input_ids": step.input_ids,
            "positions": step.positions,
            "out_cache_loc": slots,
            "engine": engine,
        }

        def write(written: Sequence[Stage], tokens: Any = None, positions: Any = None) -> PreparedWrite:
            return PreparedWrite(
                **flat,
                context=[half.context for half in written],
                enable_write_input_assert=tokens is not None,
                expected_input_tokens=tokens,
                expected_input_positions=positions,
            )

        self._writes = [write(halves)]
        self._asserting_writes = self._writes
        if asserts_input:
            # All halves write the same tokens: one of them says when they are not those expected.
            first = write(halves[:1], step.expected_input_ids, step.expected_positions)
            self._asserting_writes = [first, *(write([half]) for half in halves[1:])]

    def verify(self) -> None:
        """Verify the planned slots."""
        for half in self._halves:
            half.expect(self._plan)
        self._verify()

    def write(self) -> None:
        """Write the records of the new tokens, over the K/V bytes as they are now."""
        for launch in self._asserting_writes if self._step.expects_input else self._writes:
            launch()
        for half in self._halves:
            half.put_hashes(self._slots)
