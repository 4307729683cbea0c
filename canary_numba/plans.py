"""The two plans: which slots a launch verifies, and which ones it writes.

Field names, dtypes and shapes are those of SGLang 0.5.23's dataclasses of the same name; launchers read them by
attribute, so either may be passed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from canary_numba.errors import ArgumentError

_INT64_BYTES = 8
_INT32_BYTES = 4


def _require_positive(name: str, value: int) -> None:
    if value <= 0:
        raise ArgumentError(f"{name}: expected a positive capacity, got {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyPlan:
    """Slots to verify, one entry each; entries at and past ``verify_num_valid`` are ignored.

    Attributes
    ----------
    verify_slot_indices : torch.Tensor
        int64 ``[capacity]``, slot in the canary buffer.
    verify_expected_tokens : torch.Tensor
        int64 ``[capacity]``, token id that the record should hold, -1 for "unknown, do not compare".
    verify_expected_positions : torch.Tensor
        int64 ``[capacity]``, position in the request that the record should hold.
    verify_prev_slot_indices : torch.Tensor
        int64 ``[capacity]``, slot of the predecessor; negative = first of its chain, 0 = predecessor not available.
    verify_num_valid : torch.Tensor
        int32 ``[1]``, number of entries in use.
    enable : torch.Tensor
        int32 ``[1]``, 0 after a plan that did not fit: the launch then only counts itself.
    """

    verify_slot_indices: torch.Tensor
    verify_expected_tokens: torch.Tensor
    verify_expected_positions: torch.Tensor
    verify_prev_slot_indices: torch.Tensor
    verify_num_valid: torch.Tensor
    enable: torch.Tensor

    @staticmethod
    def allocation_bytes(verify_capacity: int) -> int:
        """Bytes that a plan of ``verify_capacity`` entries occupies."""
        return 4 * verify_capacity * _INT64_BYTES + 2 * _INT32_BYTES

    @classmethod
    def allocate(cls, *, verify_capacity: int, device: torch.device | str) -> VerifyPlan:
        """Allocate an uninitialised, enabled plan.

        Raises
        ------
        ArgumentError
            ``verify_capacity`` is not positive.
        """
        _require_positive("verify_capacity", verify_capacity)
        entries = [torch.empty(verify_capacity, dtype=torch.int64, device=device) for _ in range(4)]
        return cls(
            verify_slot_indices=entries[0],
            verify_expected_tokens=entries[1],
            verify_expected_positions=entries[2],
            verify_prev_slot_indices=entries[3],
            verify_num_valid=torch.zeros(1, dtype=torch.int32, device=device),
            enable=torch.ones(1, dtype=torch.int32, device=device),
        )

    def zero_for_testing_(self) -> VerifyPlan:
        """Fill every field with its neutral value in place (expected tokens -1, the rest 0) and return the plan."""
        for tensor in (
            self.verify_slot_indices,
            self.verify_expected_positions,
            self.verify_prev_slot_indices,
            self.verify_num_valid,
            self.enable,
        ):
            tensor.zero_()
        self.verify_expected_tokens.fill_(-1)
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePlan:
    """Requests to write, each a range of the flat token arrays.

    Attributes
    ----------
    write_offsets : torch.Tensor
        int64 ``[capacity + 1]``, request r writes flat entries ``write_offsets[r]`` up to ``write_offsets[r + 1]``.
    write_seed_slot_indices : torch.Tensor
        int64 ``[capacity]``, slot of the last cached token of each request; negative = the request starts a chain.
    write_num_valid_reqs : torch.Tensor
        int32 ``[1]``, number of requests in use.
    """

    write_offsets: torch.Tensor
    write_seed_slot_indices: torch.Tensor
    write_num_valid_reqs: torch.Tensor

    @staticmethod
    def allocation_bytes(write_req_capacity: int) -> int:
        """Bytes that a plan for ``write_req_capacity`` requests occupies."""
        return (2 * write_req_capacity + 1) * _INT64_BYTES + _INT32_BYTES

    @classmethod
    def allocate(cls, *, write_req_capacity: int, device: torch.device | str) -> WritePlan:
        """Allocate an uninitialised plan.

        Raises
        ------
        ArgumentError
            ``write_req_capacity`` is not positive.
        """
        _require_positive("write_req_capacity", write_req_capacity)
        return cls(
            write_offsets=torch.empty(write_req_capacity + 1, dtype=torch.int64, device=device),
            write_seed_slot_indices=torch.empty(write_req_capacity, dtype=torch.int64, device=device),
            write_num_valid_reqs=torch.zeros(1, dtype=torch.int32, device=device),
        )

    def zero_for_testing_(self) -> WritePlan:
        """Zero every field in place and return the plan."""
        self.write_offsets.zero_()
        self.write_seed_slot_indices.zero_()
        self.write_num_valid_reqs.zero_()
        return self
