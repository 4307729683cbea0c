"""The requests and the new tokens of the pass under way, in tensors whose addresses never change.

Prepared launches and CUDA graphs bind addresses, so each pass is copied into the same tensors: rows past the batch are
padding rows, tokens past those of the pass have slot -1, which writes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from canary_numba.errors import ArgumentError
from canary_numba.layout import REQ_POOL_IDX_PADDING

Ints = torch.Tensor | Sequence[int]
"""Integers: a tensor of any integer dtype on any device, or a sequence."""

NO_SLOT = -1


def as_int64(name: str, values: Ints) -> torch.Tensor:
    """Turn integers into an int64 ``[n]`` tensor, where they are.

    Raises
    ------
    ArgumentError
        They are not one-dimensional.
    """
    tensor: torch.Tensor = torch.as_tensor(values, dtype=torch.int64)
    if tensor.ndim != 1:
        raise ArgumentError(f"{name}: expected shape [n], got {list(tensor.shape)}")
    return tensor


class Step:
    """What a pass is about.

    Attributes
    ----------
    req_pool_indices, prefix_lens, extend_seq_lens : torch.Tensor
        int64 ``[max_requests]``.
    input_ids, positions, out_cache_loc : torch.Tensor
        int64 ``[max_new_tokens]``.
    bs : int
        Requests of the pass.
    """

    def __init__(self, *, max_requests: int, max_new_tokens: int, device: torch.device) -> None:
        if min(max_requests, max_new_tokens) < 1:
            raise ArgumentError(
                f"max_requests, max_new_tokens: expected at least 1, got {max_requests} and {max_new_tokens}"
            )

        def ints(length: int) -> Any:
            return torch.zeros(length, dtype=torch.int64, device=device)

        self.req_pool_indices, self.prefix_lens, self.extend_seq_lens = (ints(max_requests) for _ in range(3))
        self.input_ids, self.positions, self.out_cache_loc = (ints(max_new_tokens) for _ in range(3))
        self.out_cache_loc.fill_(NO_SLOT)
        self.bs = 0

    def load_requests(self, req_pool_indices: Ints, prefix_lens: Ints, extend_seq_lens: Ints) -> None:
        """Take over the requests of a pass; int ``[bs]`` each.

        Raises
        ------
        ArgumentError
            The three differ in length, or there are more requests than there is room for.
        """
        arrays = {
            "req_pool_indices": as_int64("req_pool_indices", req_pool_indices),
            "prefix_lens": as_int64("prefix_lens", prefix_lens),
            "extend_seq_lens": as_int64("extend_seq_lens", extend_seq_lens),
        }
        bs = arrays["req_pool_indices"].shape[0]
        self._fill(arrays, "requests", bs)
        self.req_pool_indices[bs:].fill_(REQ_POOL_IDX_PADDING)
        self.bs = bs

    def load_tokens(self, input_ids: Ints, positions: Ints, out_cache_loc: Ints) -> None:
        """Take over the new tokens of a pass, request by request; int ``[n]`` each.

        Raises
        ------
        ArgumentError
            The three differ in length, or there are more tokens than there is room for.
        """
        arrays = {
            "input_ids": as_int64("input_ids", input_ids),
            "positions": as_int64("positions", positions),
            "out_cache_loc": as_int64("out_cache_loc", out_cache_loc),
        }
        count = arrays["input_ids"].shape[0]
        self._fill(arrays, "tokens", count)
        self.out_cache_loc[count:].fill_(NO_SLOT)

    def settle(self) -> None:
        """Count the new tokens as cached: what a finished pass leaves behind."""
        self.prefix_lens += self.extend_seq_lens
        self.extend_seq_lens.zero_()

    def _fill(self, arrays: dict[str, torch.Tensor], what: str, count: int) -> None:
        room = getattr(self, next(iter(arrays))).shape[0]
        if count > room:
            limit = "max_requests" if what == "requests" else "max_new_tokens"
            raise ArgumentError(f"{next(iter(arrays))}: expected at most {limit}={room} {what}, got {count}")
        for name, tensor in arrays.items():
            if tensor.shape[0] != count:
                raise ArgumentError(f"{name}: expected {count} {what}, got {tensor.shape[0]}")
            own = getattr(self, name)
            own[:count].copy_(tensor, non_blocking=True)
            own[count:].zero_()
