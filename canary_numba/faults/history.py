"""Synthetic clean histories: a seeded server runs for a while, and its state is the dump.

Nothing in such a dump is wrong: every check passes, and a diagnosis has nothing to say.
"""

from __future__ import annotations

import numpy as np
import torch

from canary_numba.dump.model import (
    Allocator,
    Counters,
    Dump,
    Finished,
    KvIndices,
    LiveLog,
    Radix,
    Requests,
)
from canary_numba.faults.options import HistoryOptions, draw_options
from canary_numba.faults.pages import slots_of
from canary_numba.faults.server import Server
from canary_numba.layout import NUM_LAUNCH_TAGS, VIOLATION_FIELDS, RealKvHashMode

RING_ROWS = 64


def simulate(seed: int, *, options: HistoryOptions | None = None) -> Dump:
    """Run a simulated server and dump its state.

    Parameters
    ----------
    seed
        Every seed gives one history, always the same.
    options
        What kind of server; None draws that from ``seed``, too.

    Returns
    -------
    Dump
        A clean one: records chain from their requests' first slots, K/V bytes match them, the free list holds exactly
        the slots that no live request and no prefix-cache page refers to.
    """
    options = options or draw_options(seed)
    server = Server(seed, options)
    for _ in range(options.steps):
        server.step()
    if options.in_flight:
        server.plan()
    server.writes.flush()
    return dump_of(server)


def dump_of(server: Server) -> Dump:
    """The state of ``server`` as a dump."""
    options = server.options
    mapping = None if server.window is None else torch.from_numpy(server.window.mapping.copy())
    return Dump(
        hash_mode=RealKvHashMode[options.hash_mode.upper()],
        groups=tuple(memory.group(mapping if kind == "SWA" else None) for kind, memory in server.memory.items()),
        requests=_requests(server),
        radix=_radix(server) if options.prefix_cache else None,
        allocator=_allocator(server),
        violation_log=LiveLog(ring=torch.zeros((RING_ROWS, VIOLATION_FIELDS), dtype=torch.int64), write_index=0),
        finished=_finished(server),
        events=tuple(server.events),
        counters=_counters(server),
        producer={"engine": "canary-numba simulation"},
        context={"step": server.now, "tp_rank": 0, "tp_size": 1},
    )


def _longs(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


def _requests(server: Server) -> Requests:
    live, options = server.live, server.options
    table = server.table.copy()
    rows = [request.row for request in live]
    row_ids = None
    if options.compact_rows:
        kept = [0, *sorted(rows)]
        table = table[kept]
        rows = [kept.index(row) for row in rows]
        row_ids = _longs(kept)
    expected = valid = None
    if options.tokens:
        pool = np.zeros((table.shape[0], server.width), dtype=np.int32)
        for row, request in zip(rows, live, strict=True):
            pool[row, : request.known] = request.tokens[: request.known]
        expected = torch.from_numpy(pool)
        valid = _longs([request.known for request in live])
    lengths = [request.cached + request.planned for request in live]
    entries = [table[row, :length] for row, length in zip(rows, lengths, strict=True)]
    return Requests(
        rids=tuple(request.rid for request in live),
        req_pool_indices=_longs(rows),
        prefix_lens=_longs([request.cached for request in live]),
        extend_seq_lens=_longs([request.planned for request in live]),
        req_to_token=torch.from_numpy(table),
        expected_tokens=expected,
        expected_tokens_valid_lens=valid,
        row_ids=row_ids,
        committed_lens=_longs([request.cached for request in live]),
        allocated_lens=_longs([len(request.pages) * options.page_size for request in live]),
        extra_keys=tuple(request.extra_key for request in live),
        kv_indices=KvIndices(
            indptr=_longs(np.cumsum([0, *lengths]).tolist()),
            indices=_longs(np.concatenate([*entries, np.empty(0, dtype=np.int32)]).tolist()),
        ),
    )


def _radix(server: Server) -> Radix:
    size = server.options.page_size
    slots: list[int] = []
    positions: list[int] = []
    prevs: list[int] = []
    for node in server.cache.nodes():
        assert node.parent is not None
        own = list(slots_of(node.page, size))
        before = slots_of(node.parent.page, size)[-1] if node.depth else -1
        slots += own
        positions += range(node.depth * size, node.depth * size + size)
        prevs += [before, *own[:-1]]
    return Radix(slot_indices=_longs(slots), positions=_longs(positions), prev_slot_indices=_longs(prevs))


def _allocator(server: Server) -> Allocator:
    size = server.options.page_size
    window = server.window
    return Allocator(
        page_size=size,
        size=server.free.num_pages * size,
        free_slots=_longs(server.free.slots()),
        swa_size=None if window is None else window.free.num_pages * size,
        swa_free_slots=None if window is None else _longs(window.free.slots()),
    )


def _finished(server: Server) -> Finished:
    done = list(server.finished)
    tokens = [token for request in done for token in request.tokens]
    return Finished(
        rids=tuple(request.rid for request in done),
        indptr=_longs(np.cumsum([0, *(len(request.tokens) for request in done)]).tolist()),
        tokens=torch.tensor(tokens, dtype=torch.int32),
    )


def _counters(server: Server) -> Counters:
    kernel_run = torch.zeros(NUM_LAUNCH_TAGS, dtype=torch.int64)
    slot_run = torch.zeros(NUM_LAUNCH_TAGS, dtype=torch.int64)
    for memory in server.memory.values():
        for tag, (launches, slots) in memory.counters().items():
            kernel_run[tag], slot_run[tag] = launches, slots
    return Counters(kernel_run=kernel_run, slot_run=slot_run)
