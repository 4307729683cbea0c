"""The arguments of a pass as tensors, all of them checked before anything of the guard changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from canary_numba.errors import ArgumentError

Ints = torch.Tensor | Sequence[int]
"""Integers: a tensor of any integer dtype on any device, or a sequence."""


def recording(device: torch.device) -> bool:
    """Tell whether what is queued on ``device`` now goes into a CUDA graph instead of being run."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


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


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenIds:
    """The known token ids of the requests of a pass.

    Attributes
    ----------
    flat : torch.Tensor
        int64 ``[total]``, one request after the other.
    offsets : torch.Tensor
        int64 ``[bs + 1]``, where each request starts.
    """

    flat: torch.Tensor
    offsets: torch.Tensor

    @classmethod
    def of(cls, token_ids: Sequence[Ints], *, device: torch.device) -> TokenIds:
        """Pack the token ids of each request, from position 0 on.

        Raises
        ------
        ArgumentError
            A CUDA graph is being recorded: it would keep what these hold now.
        """
        if recording(device):
            raise ArgumentError(
                "token_ids: not while a CUDA graph is recorded; fill req_to_expected_tokens and give token_lens"
            )
        pieces = [as_int64(f"token_ids[{i}]", ids) for i, ids in enumerate(token_ids)]
        if any(piece.device != torch.device("cpu") for piece in pieces):
            pieces = [piece.to(device, non_blocking=True) for piece in pieces]
        lengths = [piece.shape[0] for piece in pieces]
        flat = torch.cat(pieces) if pieces else torch.zeros(0, dtype=torch.int64)
        offsets = torch.tensor([0, *accumulate(lengths)], dtype=torch.int64)
        return cls(flat=flat.to(device, non_blocking=True), offsets=offsets.to(device, non_blocking=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRequests:
    """The requests of a pass: int64 ``[bs]`` each; of ``token_ids`` and ``token_lens`` one at most."""

    req_pool_indices: torch.Tensor
    prefix_lens: torch.Tensor
    extend_seq_lens: torch.Tensor
    token_ids: TokenIds | None
    token_lens: torch.Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTokens:
    """The new tokens of a pass: int64 ``[n]`` each; the expected ones both or neither."""

    input_ids: torch.Tensor
    positions: torch.Tensor
    out_cache_loc: torch.Tensor
    expected_input_ids: torch.Tensor | None
    expected_positions: torch.Tensor | None


def check_requests(
    *,
    req_pool_indices: Ints,
    prefix_lens: Ints,
    extend_seq_lens: Ints,
    token_ids: Sequence[Ints] | None,
    token_lens: Ints | None,
    has_token_table: bool,
    room: int,
    device: torch.device,
) -> PassRequests:
    """Check the requests of a pass, as :meth:`KVCanary.plan` describes them; ``room``: how many it may have.

    Raises
    ------
    ArgumentError
        Lengths differ, there are more than ``room``, tokens are given twice or without a table for them, or a CUDA
        graph is recorded of what it cannot read again.
    """
    if token_ids is not None and token_lens is not None:
        raise ArgumentError("token_ids, token_lens: expected one of them or neither, got both")
    if not has_token_table and (token_ids is not None or token_lens is not None):
        raise ArgumentError(
            "token_ids, token_lens: need a table to be in, as KVCanary(req_to_expected_tokens="
            "torch.zeros_like(req_to_token)) gives one"
        )
    arrays = _arrays(
        {
            "req_pool_indices": req_pool_indices,
            "prefix_lens": prefix_lens,
            "extend_seq_lens": extend_seq_lens,
            "token_lens": token_lens,
        },
        what="requests",
        limit="max_requests",
        room=room,
        device=device,
    )
    bs = arrays["req_pool_indices"].shape[0]
    if token_ids is not None and len(token_ids) != bs:
        raise ArgumentError(f"token_ids: expected {bs} sequences, one for each request, got {len(token_ids)}")
    return PassRequests(
        req_pool_indices=arrays["req_pool_indices"],
        prefix_lens=arrays["prefix_lens"],
        extend_seq_lens=arrays["extend_seq_lens"],
        token_ids=None if token_ids is None else TokenIds.of(token_ids, device=device),
        token_lens=arrays.get("token_lens"),
    )


def check_tokens(
    *,
    input_ids: Ints,
    positions: Ints,
    out_cache_loc: Ints,
    expected_input_ids: Ints | None,
    expected_positions: Ints | None,
    room: int,
    device: torch.device,
) -> PassTokens:
    """Check the new tokens of a pass, as :meth:`KVCanary.before_forward` describes them; ``room``: how many it has.

    Raises
    ------
    ArgumentError
        Lengths differ, there are more than ``room``, or a CUDA graph is recorded of what it cannot read again.
    """
    arrays = _arrays(
        {
            "input_ids": input_ids,
            "positions": positions,
            "out_cache_loc": out_cache_loc,
            "expected_input_ids": expected_input_ids,
            "expected_positions": expected_positions,
        },
        what="tokens",
        limit="max_new_tokens",
        room=room,
        device=device,
    )
    expected_ids, expected_positions_ = arrays.get("expected_input_ids"), arrays.get("expected_positions")
    if expected_ids is not None or expected_positions_ is not None:
        # What the engine does not expect anything of is expected to be what it is.
        expected_ids = arrays["input_ids"] if expected_ids is None else expected_ids
        expected_positions_ = arrays["positions"] if expected_positions_ is None else expected_positions_
    return PassTokens(
        input_ids=arrays["input_ids"],
        positions=arrays["positions"],
        out_cache_loc=arrays["out_cache_loc"],
        expected_input_ids=expected_ids,
        expected_positions=expected_positions_,
    )


def _arrays(
    given: Mapping[str, Ints | None], *, what: str, limit: str, room: int, device: torch.device
) -> dict[str, torch.Tensor]:
    """Turn those that are given into tensors of one length, that of the first."""
    arrays = {name: as_int64(name, values) for name, values in given.items() if values is not None}
    first = next(iter(arrays))
    count = arrays[first].shape[0]
    if count > room:
        raise ArgumentError(f"{first}: expected at most {limit}={room} {what}, got {count}")
    recorded = recording(device)
    for name, tensor in arrays.items():
        if tensor.shape[0] != count:
            raise ArgumentError(f"{name}: expected {count} {what}, got {tensor.shape[0]}")
        if recorded and tensor.device != device:
            raise ArgumentError(f"{name}: a CUDA graph reads it again at each replay, so give a tensor on {device}")
    return arrays
