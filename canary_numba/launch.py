"""The launchers: check the arguments, choose an engine, hand over.

Names and keyword arguments are those of SGLang 0.5.23's KV-canary operations, so these can stand in for them. What is
added has a default that changes nothing (``engine``, ``aggregate_violations``, ``zero_init_okay``, ``real_kv_hashes``),
and so has several contexts in one launch, and :func:`launch_real_kv_hash_kernel`.

On CUDA a launch is remembered by where its tensors are and how they are laid out, and one like it goes unchecked and
costs the host a fraction (:mod:`canary_numba.engines.cuda.eager`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from canary_numba.context import ViolationAggregate
from canary_numba.layout import RealKvHashMode
from canary_numba.work import hash_work, plan_work, scatter_work, verify_work, write_work


def launch_canary_verify_kernel(
    *,
    context: Any,
    plan: Any,
    check_verify_expected_token: bool,
    engine: str = "auto",
    aggregate_violations: ViolationAggregate | None = None,
    zero_init_okay: bool = False,
    real_kv_hashes: torch.Tensor | Sequence[torch.Tensor | None] | None = None,
) -> None:
    """Verify the planned slots of one canary buffer and append a ring row for each that fails.

    Parameters
    ----------
    context : VerifyOrWriteContext
        Buffer, ring, counters and sources; SGLang's dataclass works as well. A list or tuple of them is verified by
        one plan, as if launched one after the other: K and V in a single launch on CUDA, if their layouts agree.
    plan : VerifyPlan
        What to verify; SGLang's dataclass works as well.
    check_verify_expected_token
        Compare stored tokens with the plan's (where those are not -1).
    engine
        ``"auto"`` (CUDA for CUDA tensors, else CPU), ``"cuda"``, ``"cpu"``, ``"reference"`` or ``"simulator"``.
    aggregate_violations
        Exact counts to add to, beside the ring.
    zero_init_okay
        Take a record of 32 zero bytes for "never written": counted in ``aggregate_violations``, no violation.
    real_kv_hashes
        int64 ``[num_slots]``, expected real-KV hash of each slot; given, the context's sources are not read. For
        callers whose K/V bytes do not fit one launch (see :func:`launch_real_kv_hash_kernel`). With several contexts
        one for each.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An argument is wrong; nothing was launched.
    EngineUnavailableError
        The engine cannot run here.

    Notes
    -----
    Reads the buffer, writes ring, counters and aggregate. On CUDA the work is queued on torch's current stream of the
    tensors' device without synchronising.
    """
    verify_work(
        context=context,
        plan=plan,
        check_verify_expected_token=check_verify_expected_token,
        aggregate_violations=aggregate_violations,
        zero_init_okay=zero_init_okay,
        real_kv_hashes=real_kv_hashes,
    ).run(engine)


def launch_canary_write_kernel(
    *,
    context: Any,
    plan: Any,
    input_ids: torch.Tensor,
    positions: torch.Tensor,
    out_cache_loc: torch.Tensor,
    enable_write_input_assert: bool,
    expected_input_tokens: torch.Tensor | None,
    expected_input_positions: torch.Tensor | None,
    engine: str = "auto",
    aggregate_violations: ViolationAggregate | None = None,
) -> None:
    """Write the records of new tokens, each chained to its predecessor.

    Parameters
    ----------
    context : VerifyOrWriteContext
        As in :func:`launch_canary_verify_kernel`: one, or several that write the same tokens.
    plan : WritePlan
        The range of each request in the flat arrays, and the slot its chain goes on from.
    input_ids, positions, out_cache_loc
        int64 or int32 ``[num_tokens]``: token id, position and slot of each new token; a negative slot skips it.
    enable_write_input_assert
        Compare tokens and positions with the expected ones; those must then be given, else be None.
    expected_input_tokens, expected_input_positions
        int64 or int32 ``[num_tokens]``, or None.
    engine, aggregate_violations
        As in :func:`launch_canary_verify_kernel`.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An argument is wrong; nothing was launched.
    EngineUnavailableError
        The engine cannot run here.

    Notes
    -----
    Writes 32 bytes of each slot, ring, counters and aggregate. Requests of one launch must not share a slot. On CUDA
    the work is queued on torch's current stream of the tensors' device without synchronising.
    """
    write_work(
        context=context,
        plan=plan,
        input_ids=input_ids,
        positions=positions,
        out_cache_loc=out_cache_loc,
        enable_write_input_assert=enable_write_input_assert,
        expected_input_tokens=expected_input_tokens,
        expected_input_positions=expected_input_positions,
        aggregate_violations=aggregate_violations,
    ).run(engine)


def launch_canary_plan_kernels(
    *,
    verify_plan_out: Any,
    write_plan_out: Any,
    req_pool_indices: torch.Tensor,
    prefix_lens: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    req_to_token: torch.Tensor,
    swa_window_size: int,
    full_to_swa_index_mapping: torch.Tensor | None,
    verify_capacity: int,
    req_to_verify_expected_tokens: torch.Tensor | None,
    req_to_verify_expected_tokens_valid_lens: torch.Tensor | None,
    kv_token_id_vs_position_offset: int,
    engine: str = "auto",
) -> None:
    """Plan what a step verifies and writes, from the table and the lengths of its requests.

    Parameters
    ----------
    verify_plan_out, write_plan_out : VerifyPlan, WritePlan
        Filled in place. When the entries do not fit, ``enable`` becomes 0 and the verify arrays stay as they are; the
        write plan is complete all the same.
    req_pool_indices
        int64 ``[bs]``, table row of each request; row 0 is padding.
    prefix_lens, extend_seq_lens
        int64 ``[bs]``, tokens already cached and tokens to write.
    req_to_token
        int32 ``[rows, width]``, slot of each row and position.
    swa_window_size
        Tokens the window keeps, 0 = all.
    full_to_swa_index_mapping
        int64 ``[n]`` or None: given, every planned slot goes through it (negative ones unchanged).
    verify_capacity
        Length of the verify arrays.
    req_to_verify_expected_tokens, req_to_verify_expected_tokens_valid_lens
        int32 ``[rows, w]`` token ids of each row and int64 ``[bs]`` how many of them are known; both or neither.
    kv_token_id_vs_position_offset
        0, or 1 for pools (drafts) whose slot at position p holds the token of position p + 1.
    engine
        As in :func:`launch_canary_verify_kernel`.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An argument is wrong; nothing was launched.
    EngineUnavailableError
        The engine cannot run here.

    Notes
    -----
    Any ``bs``. Table, mapping and lengths may hold anything: what leads outside becomes an entry whose slot is
    ``SLOT_OUT_OF_RANGE``. On CUDA no synchronisation and no copy to the host.
    """
    plan_work(
        verify_plan_out=verify_plan_out,
        write_plan_out=write_plan_out,
        req_pool_indices=req_pool_indices,
        prefix_lens=prefix_lens,
        extend_seq_lens=extend_seq_lens,
        req_to_token=req_to_token,
        swa_window_size=swa_window_size,
        full_to_swa_index_mapping=full_to_swa_index_mapping,
        verify_capacity=verify_capacity,
        req_to_verify_expected_tokens=req_to_verify_expected_tokens,
        req_to_verify_expected_tokens_valid_lens=req_to_verify_expected_tokens_valid_lens,
        kv_token_id_vs_position_offset=kv_token_id_vs_position_offset,
    ).run(engine)


def launch_scatter_req_token_ids_kernel(
    *,
    flat_in: torch.Tensor,
    offsets: torch.Tensor,
    req_pool_indices: torch.Tensor,
    pool_out: torch.Tensor,
    engine: str = "auto",
) -> None:
    """Fill the expected-token pool: row ``req_pool_indices[r]`` receives ``flat_in[offsets[r]:offsets[r + 1]]``.

    Parameters
    ----------
    flat_in
        int64 ``[total]``, token ids of all requests, one after another.
    offsets
        int64 ``[bs + 1]``, where each request starts.
    req_pool_indices
        int64 ``[bs]``, pool row of each request; rows outside the pool are left out.
    pool_out
        int32 ``[rows, width]``, filled in place; longer sequences are cut at ``width``, other rows stay.
    engine
        As in :func:`launch_canary_verify_kernel`.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An argument is wrong; nothing was launched.
    EngineUnavailableError
        The engine cannot run here.
    """
    scatter_work(flat_in=flat_in, offsets=offsets, req_pool_indices=req_pool_indices, pool_out=pool_out).run(engine)


def launch_real_kv_hash_kernel(
    *,
    real_kv_sources: tuple[Any, ...],
    real_kv_hash_mode: RealKvHashMode,
    slot_indices: torch.Tensor,
    hashes_out: torch.Tensor,
    engine: str = "auto",
) -> None:
    """Fold the K/V bytes of the given slots into ``hashes_out``, continuing from what it holds.

    Start from zeros and call once for every group of up to 4 sources, in order: the result is the real-KV hash that a
    record of the slot carries, for any number of sources and for bytes that arrive in pieces.

    Parameters
    ----------
    real_kv_sources : tuple of RealKvSource
        1 to 4 sources.
    real_kv_hash_mode
        PARTIAL or ALL.
    slot_indices
        int64 ``[n]``, slots of the sources; one outside every source leaves its hash as it is.
    hashes_out
        int64 ``[n]``, accumulators, updated in place.
    engine
        As in :func:`launch_canary_verify_kernel`.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An argument is wrong; nothing was launched.
    EngineUnavailableError
        The engine cannot run here.
    """
    hash_work(
        real_kv_sources=real_kv_sources,
        real_kv_hash_mode=real_kv_hash_mode,
        slot_indices=slot_indices,
        hashes_out=hashes_out,
    ).run(engine)
