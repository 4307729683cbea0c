"""What all launches of a guard report into: a violation ring and counters, on the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from canary_numba.layout import NUM_LAUNCH_TAGS, CanaryLaunchTag
from canary_numba.violations import Violation, decode_row


@dataclass(frozen=True, kw_only=True)
class SharedLog:
    """Ring and counters that all stages of all pools report into.

    Attributes
    ----------
    ring, write_index, chain_position_assert : torch.Tensor
        As in :class:`~canary_numba.context.VerifyOrWriteContext`.
    kernel_run, slot_run : torch.Tensor
        int64 ``[12]``, by launch tag.
    passes, plans_too_large : torch.Tensor
        int64 ``[1]``, passes that ended, and plans whose entries did not fit, so that nothing was verified.
    """

    ring: torch.Tensor
    write_index: torch.Tensor
    chain_position_assert: torch.Tensor
    kernel_run: torch.Tensor
    slot_run: torch.Tensor
    passes: torch.Tensor
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
            passes=torch.zeros(1, dtype=torch.int64, device=device),
            plans_too_large=torch.zeros(1, dtype=torch.int64, device=device),
        )

    def counters(self, tag: CanaryLaunchTag) -> tuple[torch.Tensor, torch.Tensor]:
        """Views ``[1]`` of the kernel and slot run counters of ``tag``."""
        return self.kernel_run[tag : tag + 1], self.slot_run[tag : tag + 1]

    def violations(self) -> tuple[Violation, ...]:
        """Decode what the ring holds, in order of tag, slot and position. Waits for the device."""
        kept = min(int(self.write_index), self.ring.shape[0])
        rows = map(decode_row, self.ring[:kept].tolist())
        return tuple(sorted(rows, key=lambda violation: violation.order))
