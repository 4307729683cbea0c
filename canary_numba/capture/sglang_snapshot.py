"""SGLang's ``CanaryManager`` and what surrounds it -> a dump."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from canary_numba.capture.copies import describe_memory, to_host
from canary_numba.capture.sglang_state import (
    KV_BYTES,
    LiveRequests,
    named_sources,
    read_allocator,
    read_groups,
    read_radix,
    sub_pool,
)
from canary_numba.capture.snapshot import finished_requests, utc_now
from canary_numba.dump.model import Counters, Dump, LiveLog
from canary_numba.errors import ArgumentError
from canary_numba.layout import RealKvHashMode


def snapshot(
    canary_manager: Any,
    radix_cache: Any = None,
    forward_batch: Any = None,
    *,
    reqs: Iterable[Any] | None = None,
    allocator: Any = None,
    finished: Mapping[str, Sequence[int]] | None = None,
    row_ids: bool = True,
    kv_bytes: str = "suspect",
    heads: bool = True,
    computed: bool = True,
    context: Mapping[str, Any] | None = None,
    engine: str = "auto",
) -> Dump:
    """Copy the canary, the tables and the bookkeeping of a live SGLang process into a dump.

    Parameters
    ----------
    canary_manager
        SGLang's ``CanaryManager`` (``model_runner.canary_manager``), or an object with its attributes ``config``,
        ``_buffer_groups``, ``_device_state``, ``_req_to_token_pool``, ``_swa_window_size`` and, where there is one,
        ``_swa_allocator``, ``_sweep_orchestrator`` and ``_outer_step_counter``.
    radix_cache
        The prefix cache; default the one that the manager sweeps.
    forward_batch
        The ``ForwardBatch`` whose requests are live.
    reqs
        All live ``Req`` objects, in place of ``forward_batch``, which holds only those of one pass. Between passes.
    allocator
        The slot allocator; default the prefix cache's, else the manager's.
    finished
        Token ids of requests that ended lately, by name.
    row_ids
        Keep only the table rows in use, with their numbers; else the whole table.
    kv_bytes
        ``"none"``; ``"suspect"``: the hash of each source at each slot that the dump refers to, made now, so that
        changed bytes still show, and the bytes of slots under suspicion (named by the violation ring, or changed) and
        of their neighbours; ``"all"``: all bytes, as they lie in memory.
    heads
        Whether to copy the HEAD records.
    computed
        Whether the batch's pass is over, so that its new tokens count as cached.
    context
        Further facts.
    engine
        Who hashes: ``"auto"``, or as for the launchers.

    Returns
    -------
    Dump
        On the host. ``context`` holds ``step`` and ``step_after``, the manager's step before and after the copy, and
        ``torn``: whether these differ or canary kernels ran in between. Then records can be newer than tables.

    Raises
    ------
    ArgumentError
        ``kv_bytes`` is unknown.
    AttributeError
        The manager is not what SGLang 0.5.23 has.

    Notes
    -----
    Waits for the device's current stream; call it from the thread that launches passes, outside of graph capture.
    """
    if kv_bytes not in KV_BYTES:
        raise ArgumentError(f"kv_bytes: expected one of {', '.join(KV_BYTES)}, got {kv_bytes!r}")
    state = canary_manager._device_state
    if radix_cache is None:
        radix_cache = getattr(getattr(canary_manager, "_sweep_orchestrator", None), "_radix_cache", None)
    if allocator is None:
        allocator = getattr(radix_cache, "token_to_kv_pool_allocator", getattr(canary_manager, "_swa_allocator", None))
    before = _stamp(canary_manager)
    table = canary_manager._req_to_token_pool.req_to_token
    live = _live(reqs, forward_batch, computed)
    radix = read_radix(radix_cache)
    pools = allocator.get_kvcache() if allocator is not None else None
    referenced = [] if live is None else [live.slots(table)]
    referenced += [] if radix is None else [radix.slot_indices]
    slots = torch.unique(torch.cat([*referenced, torch.empty(0, dtype=torch.int64)]))
    log = state.violation_log
    violation_log = LiveLog(ring=to_host(log.violation_ring), write_index=int(log.violation_write_index))
    rows = violation_log.ring[: min(max(violation_log.write_index, 0), violation_log.ring.shape[0])]
    groups = read_groups(
        canary_manager, pools, referenced=slots, ring=rows, kv_bytes=kv_bytes, heads=heads, engine=engine
    )
    after = _stamp(canary_manager)
    return Dump(
        hash_mode=RealKvHashMode(int(canary_manager.config.real_kv_hash_mode)),
        groups=groups,
        requests=None if live is None else live.to_dump(table, row_ids),
        radix=radix,
        allocator=read_allocator(allocator),
        violation_log=violation_log,
        finished=finished_requests(finished) if finished else None,
        counters=Counters(kernel_run=to_host(state.kernel_run_counters), slot_run=to_host(state.slot_run_counters)),
        producer={"engine": "sglang", "engine_version": _version(), "writer": "canary_numba.capture.sglang"},
        context={
            "step": before[0],
            "step_after": after[0],
            "torn": before != after,
            "time": utc_now(),
            **_memory(canary_manager, pools),
            **(context or {}),
        },
    )


def _live(reqs: Iterable[Any] | None, forward_batch: Any, computed: bool) -> LiveRequests | None:
    if reqs is not None:
        return LiveRequests.of_reqs(reqs)
    return None if forward_batch is None else LiveRequests.of_batch(forward_batch, computed=computed)


def _stamp(manager: Any) -> tuple[int, int]:
    """The step the host is in, and the launches that the device has done: what shows that something went on."""
    return int(getattr(manager, "_outer_step_counter", 0)), int(manager._device_state.kernel_run_counters.sum())


def _memory(manager: Any, pools: Any) -> dict[str, list[str]]:
    facts = {}
    for group in manager._buffer_groups:
        for half in ("K", "V"):
            lines = describe_memory(named_sources(group, half, sub_pool(pools, group.kind.name)))
            if lines:
                facts[f"memory {half} {group.kind.name}"] = lines
    return facts


def _version() -> str:
    try:
        return importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
