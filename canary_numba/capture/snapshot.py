"""The state of a ``KVCanary`` -> a dump."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from canary_numba import __version__
from canary_numba.capture.arguments import Ints, as_int64
from canary_numba.capture.copies import SourceCopier, describe_memory, to_host, used_rows
from canary_numba.dump.model import Allocator, Counters, Dump, Event, Finished, Group, Half, LiveLog, Radix, Requests
from canary_numba.errors import ArgumentError

if TYPE_CHECKING:
    from canary_numba.capture.pool import KVCanary
    from canary_numba.capture.pool_group import PoolGroup
    from canary_numba.capture.step import Step


def take_snapshot(
    canary: KVCanary,
    *,
    in_pass: bool = False,
    req_pool_indices: Ints | None = None,
    prefix_lens: Ints | None = None,
    rids: Sequence[str] | None = None,
    expected_tokens: Sequence[Ints] | None = None,
    free_slots: Ints | None = None,
    swa_free_slots: Ints | None = None,
    page_size: int = 1,
    radix: Radix | None = None,
    finished: Mapping[str, Sequence[int]] | None = None,
    events: Iterable[Event] = (),
    context: Mapping[str, Any] | None = None,
    kv_bytes: bool = True,
) -> Dump:
    """Copy what a :class:`~canary_numba.capture.pool.KVCanary` knows, and what its engine adds, into a dump.

    Parameters
    ----------
    canary
        The guard.
    in_pass
        Whether a pass is under way: its new tokens are then computed, not cached.
    req_pool_indices, prefix_lens
        int ``[bs]``, the live requests and their cached tokens; default those of the last pass.
    rids
        Their names.
    expected_tokens
        The token ids that each of them should hold, from position 0 on; turns the token check on. Default: those that
        the guard was told of for the last pass.
    free_slots, swa_free_slots
        int ``[k]``, the free lists.
    page_size
        Slots that the allocator hands out together.
    radix
        What the prefix cache holds; :func:`radix_of_paths` makes it from lists of slots.
    finished
        Token ids of requests that ended lately, by name: lets the writer of a slot be named.
    events
        What was done to slots lately.
    context
        Further facts: scalars and lists of scalars.
    kv_bytes
        Whether to copy the K/V bytes. Without them a report cannot say how they changed.

    Returns
    -------
    Dump
        On the host, sharing nothing with the engine. Of the table it holds the rows of the live requests.

    Raises
    ------
    ArgumentError
        Lists that should go together differ in length.

    Notes
    -----
    Waits for the device.
    """
    step = canary.step
    if (req_pool_indices is None) != (prefix_lens is None):
        raise ArgumentError("req_pool_indices, prefix_lens: expected both or neither")
    if req_pool_indices is None or prefix_lens is None:
        rows, prefix, extend = (
            to_host(tensor[: step.bs]) for tensor in (step.req_pool_indices, step.prefix_lens, step.extend_seq_lens)
        )
        extend = extend if in_pass else torch.zeros_like(extend)
        expected_tokens = _told_tokens(step) if expected_tokens is None else expected_tokens
    else:
        rows, prefix = (to_host(as_int64("prefix_lens", values)) for values in (req_pool_indices, prefix_lens))
        extend = torch.zeros_like(prefix)
    memory = {
        f"memory {half} {group.kind}": lines
        for group in canary.groups
        for half, sources in group.sources.items()
        if (lines := describe_memory(sources))
    }
    allocator = None
    if free_slots is not None:
        allocator = Allocator(
            page_size=page_size,
            size=canary.groups[0].num_slots - 1,
            free_slots=to_host(as_int64("free_slots", free_slots)),
            swa_size=None if swa_free_slots is None else canary.groups[-1].num_slots - 1,
            swa_free_slots=None if swa_free_slots is None else to_host(as_int64("swa_free_slots", swa_free_slots)),
        )
    return Dump(
        hash_mode=canary.hash_mode,
        groups=tuple(_group(group, kv_bytes) for group in canary.groups),
        requests=_requests(canary.req_to_token, rows, prefix, extend, rids, expected_tokens),
        radix=radix,
        allocator=allocator,
        violation_log=LiveLog(ring=to_host(canary.log.ring), write_index=int(canary.log.write_index)),
        finished=None if finished is None else finished_requests(finished),
        events=tuple(events),
        counters=Counters(kernel_run=to_host(canary.log.kernel_run), slot_run=to_host(canary.log.slot_run)),
        producer={"engine": "canary_numba.capture.pool", "engine_version": __version__},
        context={"step": int(canary.log.passes), "time": utc_now(), **memory, **(context or {})},
    )


def utc_now() -> str:
    """The time in ISO 8601."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def radix_of_paths(paths: Iterable[Sequence[int] | torch.Tensor]) -> Radix:
    """Describe a prefix cache by its cached prompts: the slots of each, from position 0 on. Shared ones count once."""
    entries: dict[tuple[int, int, int], None] = {}
    for path in paths:
        slots = [int(slot) for slot in path]
        entries.update(dict.fromkeys(zip(slots, range(len(slots)), [-1, *slots], strict=False)))
    columns = torch.tensor(list(entries), dtype=torch.int64).reshape(-1, 3)
    return Radix(
        slot_indices=columns[:, 0].contiguous(),
        positions=columns[:, 1].contiguous(),
        prev_slot_indices=columns[:, 2].contiguous(),
    )


def finished_requests(tokens: Mapping[str, Sequence[int]]) -> Finished:
    """Pack the token ids of finished requests, by name."""
    lengths = [len(ids) for ids in tokens.values()]
    return Finished(
        rids=tuple(tokens),
        indptr=torch.tensor([0, *lengths], dtype=torch.int64).cumsum(0),
        tokens=torch.tensor([token for ids in tokens.values() for token in ids], dtype=torch.int32),
    )


def token_rows(rows: torch.Tensor, tokens: Sequence[Ints], *, num_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Lay out each request's token ids in its table row: int32 ``[num_rows, longest]`` and int64 ``[bs]`` lengths.

    Raises
    ------
    ArgumentError
        There are more or fewer token lists than requests.
    """
    if len(tokens) != rows.shape[0]:
        raise ArgumentError(f"expected_tokens: expected {rows.shape[0]} lists, one for each request, got {len(tokens)}")
    lengths = [len(ids) for ids in tokens]
    pool = torch.full((num_rows, max(lengths, default=0)), -1, dtype=torch.int32)
    for row, ids in zip(rows.tolist(), tokens, strict=True):
        if 0 <= row < num_rows:
            pool[row, : len(ids)] = torch.as_tensor(ids, dtype=torch.int32)
    return pool, torch.tensor(lengths, dtype=torch.int64)


def _requests(
    table: torch.Tensor,
    rows: torch.Tensor,
    prefix: torch.Tensor,
    extend: torch.Tensor,
    rids: Sequence[str] | None,
    expected_tokens: Sequence[Ints] | None,
) -> Requests:
    used = used_rows(table, rows)
    names = tuple(rids) if rids is not None else tuple(f"row {row}" for row in rows.tolist())
    for name, length in (("prefix_lens", prefix.shape[0]), ("rids", len(names))):
        if length != rows.shape[0]:
            raise ArgumentError(f"{name}: expected {rows.shape[0]} entries, one for each request, got {length}")
    tokens = lengths = None
    if expected_tokens is not None:
        tokens, lengths = token_rows(used.req_pool_indices, expected_tokens, num_rows=used.table.shape[0])
    return Requests(
        rids=names,
        req_pool_indices=used.req_pool_indices,
        prefix_lens=prefix,
        extend_seq_lens=extend,
        req_to_token=used.table,
        expected_tokens=tokens,
        expected_tokens_valid_lens=lengths,
        row_ids=used.row_ids,
    )


def _told_tokens(step: Step) -> list[torch.Tensor] | None:
    """Token ids of the requests of the last pass, as far as the guard was told of them; None if of none."""
    if step.token_table is None:
        return None
    bs, table = step.bs, step.token_table
    rows, lens = to_host(step.req_pool_indices[:bs]), to_host(step.token_lens[:bs]).clamp(0, table.shape[1])
    lens[(rows < 0) | (rows >= table.shape[0])] = 0
    if not lens.any():
        return None
    return [to_host(table[row, :length]) for row, length in zip(rows.tolist(), lens.tolist(), strict=True)]


def _group(group: PoolGroup, kv_bytes: bool) -> Group:
    copier = SourceCopier(source for sources in group.sources.values() for source in sources)
    halves = {}
    for half, sources in group.sources.items():
        head, tail = group.stages["HEAD", half], group.stages["TAIL", half]
        halves[half] = Half(
            head=to_host(head.records),
            tail=to_host(tail.records),
            sources=tuple(map(copier, sources)) if kv_bytes else (),
            source_hashes=None if tail.source_hashes is None else to_host(tail.source_hashes),
        )
    return Group(
        kind=group.kind,
        halves=halves,
        swa_window_size=group.window,
        full_to_swa_index_mapping=None if group.mapping is None else to_host(group.mapping),
        kv_token_id_vs_position_offset=group.offset,
    )
