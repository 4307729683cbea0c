"""The requests and the new tokens of the pass under way, in tensors whose addresses never change.

Prepared launches and CUDA graphs bind addresses, so each pass is copied into the same tensors: rows past the batch are
padding rows, tokens past those of the pass have slot -1, which writes nothing.
"""

from __future__ import annotations

from typing import Any

import torch

from canary_numba.capture.arguments import PassRequests, PassTokens, check_requests, check_tokens
from canary_numba.errors import ArgumentError
from canary_numba.launch import launch_scatter_req_token_ids_kernel
from canary_numba.layout import REQ_POOL_IDX_PADDING
from canary_numba.tensor_checks import require_rows

NO_SLOT = -1


class Step:
    """What a pass is about.

    Parameters
    ----------
    max_requests, max_new_tokens
        Room for one pass.
    device
        Where its tensors are.
    token_table
        int32 ``[rows, w]``, token ids of each request row, or None; bound by address.
    num_rows
        Rows that requests may have.
    engine
        Who fills the table.

    Attributes
    ----------
    req_pool_indices, prefix_lens, extend_seq_lens, token_lens : torch.Tensor
        int64 ``[max_requests]``; ``token_lens``: how many tokens of each request's row in the table are known.
    input_ids, positions, out_cache_loc, expected_input_ids, expected_positions : torch.Tensor
        int64 ``[max_new_tokens]``.
    expects_input : bool
        Whether the pass says what its new tokens should be.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        There is no room, or the table does not fit.
    """

    def __init__(
        self,
        *,
        max_requests: int,
        max_new_tokens: int,
        device: torch.device,
        token_table: torch.Tensor | None,
        num_rows: int,
        engine: str,
    ) -> None:
        if min(max_requests, max_new_tokens) < 1:
            raise ArgumentError(
                f"max_requests, max_new_tokens: expected at least 1, got {max_requests} and {max_new_tokens}"
            )
        if token_table is not None:
            require_rows("req_to_expected_tokens", token_table, device)
            if token_table.shape[0] < num_rows:
                raise ArgumentError(
                    f"req_to_expected_tokens: expected a row for each of the {num_rows} rows of req_to_token, "
                    f"got {token_table.shape[0]}"
                )

        def ints(length: int) -> Any:
            return torch.zeros(length, dtype=torch.int64, device=device)

        self.token_table, self._engine = token_table, engine
        self.req_pool_indices, self.prefix_lens = ints(max_requests), ints(max_requests)
        self.extend_seq_lens, self.token_lens = ints(max_requests), ints(max_requests)
        self.input_ids, self.positions, self.out_cache_loc = (ints(max_new_tokens) for _ in range(3))
        self.expected_input_ids, self.expected_positions = ints(max_new_tokens), ints(max_new_tokens)
        self.out_cache_loc.fill_(NO_SLOT)
        self.expects_input = False
        # On the device: a replayed CUDA graph changes it as well.
        self._bs = ints(1)

    @property
    def bs(self) -> int:
        """Requests of the pass. Waits for the device."""
        return int(self._bs)

    def check_requests(self, **given: Any) -> PassRequests:
        """Check the requests of a pass and take nothing over; arguments and errors as of :func:`check_requests`."""
        room, device = self.req_pool_indices.shape[0], self.req_pool_indices.device
        return check_requests(**given, has_token_table=self.token_table is not None, room=room, device=device)

    def check_tokens(self, **given: Any) -> PassTokens:
        """Check the new tokens of a pass and take nothing over; arguments and errors as of :func:`check_tokens`."""
        return check_tokens(**given, room=self.input_ids.shape[0], device=self.input_ids.device)

    def load_requests(self, requests: PassRequests) -> None:
        """Take over the requests of a pass."""
        _fill(self.req_pool_indices, requests.req_pool_indices, rest=REQ_POOL_IDX_PADDING)
        _fill(self.prefix_lens, requests.prefix_lens)
        _fill(self.extend_seq_lens, requests.extend_seq_lens)
        bs = requests.req_pool_indices.shape[0]
        self._bs.fill_(bs)
        if self.token_table is None:
            return
        lens = requests.token_lens
        if requests.token_ids is not None:
            launch_scatter_req_token_ids_kernel(
                flat_in=requests.token_ids.flat,
                offsets=requests.token_ids.offsets,
                req_pool_indices=self.req_pool_indices[:bs],
                pool_out=self.token_table,
                engine=self._engine,
            )
            lens = requests.token_ids.offsets.diff()
        _fill(self.token_lens, self.token_lens[:0] if lens is None else lens)

    def load_tokens(self, tokens: PassTokens) -> None:
        """Take over the new tokens of a pass, request by request."""
        _fill(self.input_ids, tokens.input_ids)
        _fill(self.positions, tokens.positions)
        _fill(self.out_cache_loc, tokens.out_cache_loc, rest=NO_SLOT)
        self.expects_input = tokens.expected_input_ids is not None
        if tokens.expected_input_ids is not None and tokens.expected_positions is not None:
            _fill(self.expected_input_ids, tokens.expected_input_ids)
            _fill(self.expected_positions, tokens.expected_positions)

    def settle(self) -> None:
        """Count the new tokens as cached: what a finished pass leaves behind."""
        self.prefix_lens += self.extend_seq_lens
        self.extend_seq_lens.zero_()


def _fill(own: torch.Tensor, values: torch.Tensor, *, rest: int = 0) -> None:
    count = values.shape[0]
    own[:count].copy_(values, non_blocking=True)
    own[count:].fill_(rest)
