"""Write in torch: all requests at once, one step along their chains at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from canary_numba.context import ViolationAggregate
from canary_numba.layout import CANARY_FIELD_POSITION, CANARY_FIELDS_PER_SLOT, FailReason
from canary_numba.reference.real_kv import hashes_of_slots
from canary_numba.reference.ring import build_rows, report
from canary_numba.reference.words import CHAIN_HEAD_WORD, hash_records, read_records, records_of, slot_hash, within

_NO_TOKEN = -1


@dataclass(frozen=True, slots=True)
class _Entries:
    """The flat entries of all requests, request by request.

    Int64 ``[n]``: ``request`` and ``flat`` (index into the flat arrays) of each entry, and its values; bool ``[n]``:
    ``stored``, whether its slot is in the buffer. ``first``, ``length``: int64 ``[requests]``, each request's entries.
    """

    request: torch.Tensor
    flat: torch.Tensor
    slot: torch.Tensor
    token: torch.Tensor
    position: torch.Tensor
    stored: torch.Tensor
    first: torch.Tensor
    length: torch.Tensor


def _list_entries(
    offsets: torch.Tensor,
    num_slots: int,
    input_ids: torch.Tensor,
    positions: torch.Tensor,
    out_cache_loc: torch.Tensor,
) -> _Entries:
    bounds = offsets.clamp(0, out_cache_loc.shape[0])
    begin, length = bounds[:-1], (bounds[1:] - bounds[:-1]).clamp(min=0)
    first = length.cumsum(0) - length
    request = torch.repeat_interleave(torch.arange(length.shape[0], device=length.device), length)
    flat = begin[request] + torch.arange(request.shape[0], device=length.device) - first[request]
    slot = out_cache_loc[flat].long()
    return _Entries(
        request=request,
        flat=flat,
        slot=slot,
        token=input_ids[flat].long(),
        position=positions[flat].long(),
        stored=within(slot, num_slots),
        first=first,
        length=length,
    )


def _follow_chains(
    entries: _Entries, head_hash: torch.Tensor, head_position: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the running hash and the running position that each entry meets (int64 ``[n]`` each).

    ``head_hash``, ``head_position``: int64 ``[requests]``, what each chain starts from.
    """
    hashes, last_positions = head_hash.clone(), head_position.clone()
    running_hash, running_position = torch.zeros_like(entries.slot), torch.zeros_like(entries.slot)
    for step in range(int(entries.length.max()) if entries.length.shape[0] else 0):
        live = (entries.length > step).nonzero()[:, 0]
        at = entries.first[live] + step
        running_hash[at] = hashes[live]
        running_position[at] = last_positions[live]
        advances = entries.stored[at]
        live, at = live[advances], at[advances]
        hashes[live] = slot_hash(hashes[live], entries.token[at], entries.position[at])
        last_positions[live] = entries.position[at]
    return running_hash, running_position


def _store(records: torch.Tensor, entries: _Entries, running_hash: torch.Tensor, real_kv_hash: torch.Tensor) -> None:
    """Store the record of each stored entry; of entries that share a slot the last one stays."""
    order = torch.arange(entries.slot.shape[0], device=records.device)[entries.stored]
    last = torch.full((records.shape[0],), -1, dtype=torch.int64, device=records.device)
    last.scatter_reduce_(0, entries.slot[entries.stored], order, "amax")
    slots = (last >= 0).nonzero()[:, 0]
    fields = torch.stack([entries.token, entries.position, running_hash, real_kv_hash], dim=1)
    records[slots, :CANARY_FIELDS_PER_SLOT] = fields[last[slots]]


def _seed_rows(context: Any, entries: _Entries, seeds: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of requests whose seed slot is outside the buffer, and the entry each stands before."""
    lost = ((seeds >= context.canary_buf.shape[0]) & (entries.length > 0)).nonzero()[:, 0]
    rows = build_rows(
        context,
        slot=seeds[lost],
        position=0,
        stored_token=0,
        expected_token=_NO_TOKEN,
        stored_hash=0,
        expected_aux=CHAIN_HEAD_WORD,
        bits=int(FailReason.VERIFY_PREV_SLOT_OUT_OF_RANGE),
    )
    return rows, entries.first[lost]


def _input_rows(
    context: Any,
    entries: _Entries,
    running_hash: torch.Tensor,
    expected_tokens: torch.Tensor | None,
    expected_positions: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of entries whose input is not the expected one or whose slot is outside the buffer, and those entries."""
    token, position = entries.token, entries.position
    if expected_tokens is not None and expected_positions is not None:
        token, position = expected_tokens[entries.flat].long(), expected_positions[entries.flat].long()
    bits = (
        int(FailReason.WRITE_TOKEN_MISMATCH) * (entries.token != token)
        + int(FailReason.WRITE_POSITION_MISMATCH) * (entries.position != position)
        + int(FailReason.VERIFY_SLOT_OUT_OF_RANGE) * ~entries.stored
    )
    failing = ((bits != 0) & (entries.slot >= 0)).nonzero()[:, 0]
    rows = build_rows(
        context,
        slot=entries.slot[failing],
        position=entries.position[failing],
        stored_token=entries.token[failing],
        expected_token=token[failing],
        stored_hash=running_hash[failing],
        expected_aux=position[failing],
        bits=bits[failing],
    )
    return rows, failing


def _chain_position_rows(
    context: Any,
    entries: _Entries,
    running_hash: torch.Tensor,
    expected_position: torch.Tensor,
    checked_requests: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of entries whose position does not follow their predecessor's, and those entries."""
    checked = entries.stored & checked_requests[entries.request]
    failing = (checked & (entries.position != expected_position)).nonzero()[:, 0]
    rows = build_rows(
        context,
        slot=entries.slot[failing],
        position=entries.position[failing],
        stored_token=entries.token[failing],
        expected_token=entries.token[failing],
        stored_hash=running_hash[failing],
        expected_aux=expected_position[failing],
        bits=int(FailReason.WRITE_POSITION_MISMATCH),
    )
    return rows, failing


def write(*, contexts: Sequence[Any], **rest: Any) -> None:
    """Run :func:`canary_numba.launch.launch_canary_write_kernel` in torch."""
    for context in contexts:
        _write(context, **rest)


def _write(
    context: Any,
    *,
    plan: Any,
    input_ids: torch.Tensor,
    positions: torch.Tensor,
    out_cache_loc: torch.Tensor,
    enable_write_input_assert: bool,
    expected_input_tokens: torch.Tensor | None,
    expected_input_positions: torch.Tensor | None,
    aggregate_violations: ViolationAggregate | None,
) -> None:
    context.kernel_run_counter.add_(1)
    records = records_of(context.canary_buf)
    num_reqs = min(max(int(plan.write_num_valid_reqs), 0), plan.write_seed_slot_indices.shape[0])
    seeds = plan.write_seed_slot_indices[:num_reqs]
    entries = _list_entries(plan.write_offsets[: num_reqs + 1], records.shape[0], input_ids, positions, out_cache_loc)
    context.slot_run_counter.add_((entries.slot >= 0).sum())

    chained = within(seeds, records.shape[0])
    seed_records = read_records(records, seeds)
    head_hash = torch.where(chained, hash_records(seed_records), CHAIN_HEAD_WORD)
    running_hash, running_position = _follow_chains(entries, head_hash, seed_records[:, CANARY_FIELD_POSITION])
    _store(records, entries, running_hash, hashes_of_slots(context, entries.slot))

    asserted = chained & (int(context.enable_chain_position_assert) != 0)
    parts = (
        _seed_rows(context, entries, seeds),
        _input_rows(context, entries, running_hash, expected_input_tokens, expected_input_positions),
        _chain_position_rows(context, entries, running_hash, running_position + 1, asserted),
    )
    rows, about = (torch.cat(column) for column in zip(*parts, strict=True))
    # Stable, so that rows about one entry keep the order above: seed, input assert, chain position.
    order = torch.argsort(about, stable=True)
    report(context, rows[order], entries.flat[about[order]], aggregate_violations)
