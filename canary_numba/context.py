"""What every verify or write launch shares: the canary buffer, the K/V byte sources, the violation ring, the counters.

``RealKvSource`` and ``VerifyOrWriteContext`` have the field names of SGLang 0.5.23's dataclasses of the same name;
launchers read them by attribute, so either may be passed. ``ViolationAggregate`` is this project's addition.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from canary_numba.errors import ArgumentError
from canary_numba.layout import (
    NUM_FAIL_REASONS,
    NUM_LAUNCH_TAGS,
    VIOLATION_FIELDS,
    CanaryLaunchTag,
    RealKvHashMode,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RealKvSource:
    """K or V bytes of one layer (or any other per-slot bytes) that records fingerprint.

    Slot s lives in row ``s // page_size``, from byte ``(s % page_size) * num_bytes_per_token`` of that row on.

    Attributes
    ----------
    tensor : torch.Tensor
        Any dtype, at least 2-D ``[rows, ...]``; seen as bytes. Rows may be strided, a row itself is contiguous.
    page_size : int
        Slots in one row.
    num_bytes_per_token : int
        Bytes from one slot of a row to the next.
    read_bytes : int
        Leading bytes of each slot that mode ALL folds. Any width is legal; whole aligned words fold faster.

    Raises
    ------
    ArgumentError
        A size is not positive, ``read_bytes`` exceeds ``num_bytes_per_token``, or a row is too narrow for its slots.
    """

    tensor: torch.Tensor
    page_size: int
    num_bytes_per_token: int
    read_bytes: int

    def __post_init__(self) -> None:
        if self.page_size < 1:
            raise ArgumentError(f"RealKvSource.page_size: expected >= 1, got {self.page_size}")
        if self.num_bytes_per_token < 1:
            raise ArgumentError(f"RealKvSource.num_bytes_per_token: expected >= 1, got {self.num_bytes_per_token}")
        if not 1 <= self.read_bytes <= self.num_bytes_per_token:
            raise ArgumentError(
                f"RealKvSource.read_bytes: expected 1 to num_bytes_per_token={self.num_bytes_per_token}, "
                f"got {self.read_bytes}"
            )
        if self.tensor.ndim < 2:
            raise ArgumentError(f"RealKvSource.tensor: expected at least 2-D, got shape {list(self.tensor.shape)}")
        row_bytes = self.tensor[0].numel() * self.tensor.element_size() if self.tensor.shape[0] else 0
        needed = self.page_size * self.num_bytes_per_token
        if self.tensor.shape[0] and row_bytes < needed:
            raise ArgumentError(
                f"RealKvSource.tensor: expected rows of at least page_size * num_bytes_per_token = {needed} bytes, "
                f"got {row_bytes} (shape {list(self.tensor.shape)}, {self.tensor.dtype})"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOrWriteContext:
    """Arguments that a verify and a write launch have in common.

    Attributes
    ----------
    canary_buf : torch.Tensor
        uint8 ``[num_slots, stride]``, stride >= 32 and a multiple of 8: one record a slot. Written by write only.
    kernel_kind : CanaryLaunchTag
        Stamped into every violation row of the launch.
    violation_ring : torch.Tensor
        int64 ``[ring_capacity, 8]``, rows are appended until it is full, later ones dropped.
    violation_write_index : torch.Tensor
        int32 ``[1]``, rows ever reported; goes on counting past the capacity. No launch resets it.
    slot_run_counter : torch.Tensor
        int64 ``[1]``, grows by the entries a launch processed.
    kernel_run_counter : torch.Tensor
        int64 ``[1]``, grows by 1 a launch: shows that the canary runs at all.
    real_kv_sources : tuple of RealKvSource
        At most 4; empty = records carry no K/V fingerprint.
    real_kv_hash_mode : RealKvHashMode
        NONE, PARTIAL or ALL, for all sources.
    enable_chain_position_assert : torch.Tensor
        int32 ``[1]``, read by write: non-zero = positions must follow the seed without a gap.
    """

    canary_buf: torch.Tensor
    kernel_kind: CanaryLaunchTag
    violation_ring: torch.Tensor
    violation_write_index: torch.Tensor
    slot_run_counter: torch.Tensor
    kernel_run_counter: torch.Tensor
    real_kv_sources: tuple[RealKvSource, ...]
    real_kv_hash_mode: RealKvHashMode
    enable_chain_position_assert: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ViolationLog:
    """The ring and counters of a context, allocated together.

    Attributes
    ----------
    violation_ring, violation_write_index, slot_run_counter, kernel_run_counter, enable_chain_position_assert
        As in :class:`VerifyOrWriteContext`; all zero when allocated.
    """

    violation_ring: torch.Tensor
    violation_write_index: torch.Tensor
    slot_run_counter: torch.Tensor
    kernel_run_counter: torch.Tensor
    enable_chain_position_assert: torch.Tensor

    @classmethod
    def allocate(cls, *, ring_capacity: int, device: torch.device | str) -> ViolationLog:
        """Allocate a zeroed log whose ring holds ``ring_capacity`` rows.

        Raises
        ------
        ArgumentError
            ``ring_capacity`` is negative.
        """
        if ring_capacity < 0:
            raise ArgumentError(f"ring_capacity: expected >= 0, got {ring_capacity}")
        return cls(
            violation_ring=torch.zeros((ring_capacity, VIOLATION_FIELDS), dtype=torch.int64, device=device),
            violation_write_index=torch.zeros(1, dtype=torch.int32, device=device),
            slot_run_counter=torch.zeros(1, dtype=torch.int64, device=device),
            kernel_run_counter=torch.zeros(1, dtype=torch.int64, device=device),
            enable_chain_position_assert=torch.zeros(1, dtype=torch.int32, device=device),
        )

    def context(
        self,
        *,
        canary_buf: torch.Tensor,
        kernel_kind: CanaryLaunchTag,
        real_kv_sources: tuple[RealKvSource, ...] = (),
        real_kv_hash_mode: RealKvHashMode = RealKvHashMode.NONE,
    ) -> VerifyOrWriteContext:
        """Build the context of a launch that reports into this log."""
        return VerifyOrWriteContext(
            canary_buf=canary_buf,
            kernel_kind=kernel_kind,
            violation_ring=self.violation_ring,
            violation_write_index=self.violation_write_index,
            slot_run_counter=self.slot_run_counter,
            kernel_run_counter=self.kernel_run_counter,
            real_kv_sources=real_kv_sources,
            real_kv_hash_mode=real_kv_hash_mode,
            enable_chain_position_assert=self.enable_chain_position_assert,
        )

    def rows(self) -> torch.Tensor:
        """Return the rows the ring holds: int64 ``[min(write index, capacity), 8]`` on the CPU. Synchronises."""
        kept = min(max(int(self.violation_write_index.item()), 0), self.violation_ring.shape[0])
        return self.violation_ring[:kept].cpu()


AGGREGATE_FIRST_INDEX = NUM_FAIL_REASONS
AGGREGATE_NEVER_WRITTEN = NUM_FAIL_REASONS + 1
AGGREGATE_FIELDS = NUM_FAIL_REASONS + 2
NO_INDEX = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ViolationAggregate:
    """Violation counts that stay exact when the ring is full, and are the same in every run.

    Attributes
    ----------
    table : torch.Tensor
        int64 ``[12, 10]``, one row a launch tag: a count for each of the 8 fail reasons (column = bit number), the
        smallest failing plan index (verify: entry; write: flat token index), and the slots found never written.
        One tensor, so that a launch carries one more argument and no more.
    """

    table: torch.Tensor

    @classmethod
    def allocate(cls, *, device: torch.device | str) -> ViolationAggregate:
        """Allocate zero counts and no first index."""
        aggregate = cls(
            table=torch.zeros((NUM_LAUNCH_TAGS, AGGREGATE_FIELDS), dtype=torch.int64, device=device),
        )
        aggregate.first_index.fill_(NO_INDEX)
        return aggregate

    @property
    def counts(self) -> torch.Tensor:
        """int64 ``[12, 8]`` view: failing entries by launch tag and fail-reason bit number."""
        return self.table[:, :NUM_FAIL_REASONS]

    @property
    def first_index(self) -> torch.Tensor:
        """int64 ``[12]`` view: smallest failing plan index by launch tag, ``2**63 - 1`` = none failed."""
        return self.table[:, AGGREGATE_FIRST_INDEX]

    @property
    def never_written(self) -> torch.Tensor:
        """int64 ``[12]`` view: entries whose record is all zero, counted only with ``zero_init_okay``."""
        return self.table[:, AGGREGATE_NEVER_WRITTEN]
