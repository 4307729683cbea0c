"""Planning on CUDA: two launches, for any number of requests, with nothing read back by the host.

1. *chunks*: requests are cut into at most as many chunks as a block has threads, a block each. It scans its requests'
   lengths and leaves offsets relative to the chunk, and the chunk's totals.
2. *entries*: every block scans the totals, which turns relative offsets into absolute ones, and finishes its share
   of the write plan's offsets and seeds. Then it takes tiles of verify entries, puts what their requests have in common
   in shared memory, as many requests at a time as it has threads, and looks up the slots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np
import torch

from canary_numba.engines.cuda.device import BLOCK_THREADS, SIMULATED, multiprocessors
from canary_numba.engines.cuda.launcher import PreparedLaunch
from canary_numba.engines.cuda.plan_kernels import (
    LEAST_TILE,
    MAX_CHUNKS,
    make_plan_entries_kernel,
    plan_chunks_kernel,
)
from canary_numba.engines.cuda.scatter import flat_table

_BLOCKS = 5
"""Blocks a multiprocessor, as many as it holds at once: each begins with a scan, which more would only repeat."""
FLAT = itemgetter("req_pool_indices", "prefix_lens", "extend_seq_lens", "req_to_verify_expected_tokens_valid_lens")
"""Takes of the arguments the inputs that a server allocates anew for each step."""
# Where the kernels take them, and the scratch memory.
_CHUNKS_FLAT, _CHUNKS_SCRATCH = (0, 1, 2), (6, 8)
_ENTRIES_FLAT, _ENTRIES_SCRATCH = (0, 1, 2, 14), (18, 19)


_entries_of = attrgetter(
    "verify_slot_indices", "verify_expected_tokens", "verify_expected_positions", "verify_prev_slot_indices"
)


def _capturing() -> bool:
    # A torch without CUDA, as the simulator runs on, cannot even say no.
    return not SIMULATED and torch.cuda.is_current_stream_capturing()


class PlanLaunches:
    """Both plan launches for the arguments of :func:`canary_numba.launch.launch_canary_plan_kernels`."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._device = arguments["req_pool_indices"].device
        self._bs = arguments["req_pool_indices"].shape[0]
        # A chunk is a power of two, so that a shift finds it, and so large that MAX_CHUNKS of them hold every request.
        shift = max(BLOCK_THREADS.bit_length() - 1, (max(self._bs, 1) - 1).bit_length() - (MAX_CHUNKS.bit_length() - 1))
        self._num_chunks = max(1, -(-self._bs // (1 << shift)))
        verify_plan, write_plan = arguments["verify_plan_out"], arguments["write_plan_out"]
        scratch = self._held = self._new_scratch()
        self._scratch = None if _capturing() else scratch
        self._chunks = PreparedLaunch(
            plan_chunks_kernel,
            self._num_chunks,
            BLOCK_THREADS,
            self._device,
            self._chunk_arguments(arguments, shift, *scratch),
        )
        entry_blocks = -(-verify_plan.verify_slot_indices.shape[0] // LEAST_TILE)
        request_blocks = -(-write_plan.write_offsets.shape[0] // BLOCK_THREADS)
        blocks = max(1, min(max(entry_blocks, request_blocks), multiprocessors(self._device) * _BLOCKS))
        paired = all(entries.data_ptr() % 16 == 0 for entries in _entries_of(verify_plan))
        kernel = make_plan_entries_kernel(paired)
        self._entries = PreparedLaunch(
            kernel, blocks, BLOCK_THREADS, self._device, self._entry_arguments(arguments, shift, *scratch)
        )

    def __call__(self) -> None:
        """Queue both kernels."""
        self._chunks()
        self._entries()

    def replace_flat(self, flat: Sequence[torch.Tensor | None]) -> None:
        """Plan these from the next call on: the tensors of :data:`FLAT`, of the same length."""
        # A graph has memory of its own, so that its replays and other calls do not meet in one piece.
        capturing = _capturing()
        if capturing or self._scratch is None:
            self._held = self._new_scratch()
            self._scratch = None if capturing else self._held
        for launch, flats, scratches in (
            (self._chunks, _CHUNKS_FLAT, _CHUNKS_SCRATCH),
            (self._entries, _ENTRIES_FLAT, _ENTRIES_SCRATCH),
        ):
            for index, tensor in zip((*flats, *scratches), (*flat[: len(flats)], *self._held), strict=True):
                if tensor is not None:
                    launch.rebind(index, tensor)

    def let_go(self) -> None:
        """As :meth:`PreparedLaunch.let_go`."""
        self._chunks.let_go()
        self._entries.let_go()

    def _new_scratch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """First entry of each request in its chunk, and verify and write totals of each chunk."""
        starts = torch.empty(max(self._bs, 1), dtype=torch.int64, device=self._device)
        return starts, torch.empty(2 * self._num_chunks, dtype=torch.int64, device=self._device)

    def _chunk_arguments(
        self, given: Mapping[str, Any], shift: int, starts: torch.Tensor, totals: torch.Tensor
    ) -> list[Any]:
        return [
            given["req_pool_indices"],
            given["prefix_lens"],
            given["extend_seq_lens"],
            np.int64(given["req_to_token"].shape[1]),
            np.int64(given["swa_window_size"]),
            np.int64(1 << shift),
            starts,
            given["write_plan_out"].write_offsets,
            totals,
        ]

    def _entry_arguments(
        self, given: Mapping[str, Any], shift: int, starts: torch.Tensor, totals: torch.Tensor
    ) -> list[Any]:
        verify_plan, write_plan = given["verify_plan_out"], given["write_plan_out"]
        empty = torch.empty(0, dtype=torch.int64, device=self._device)
        mapping, pool = given["full_to_swa_index_mapping"], given["req_to_verify_expected_tokens"]
        no_pool = torch.empty((0, 0), dtype=torch.int32, device=self._device)
        return [
            given["req_pool_indices"],
            given["prefix_lens"],
            given["extend_seq_lens"],
            *flat_table(given["req_to_token"]),
            np.int64(given["swa_window_size"]),
            empty if mapping is None else mapping,
            np.int64(mapping is not None),
            *flat_table(no_pool if pool is None else pool),
            empty if pool is None else given["req_to_verify_expected_tokens_valid_lens"],
            np.int64(pool is not None),
            np.int64(given["kv_token_id_vs_position_offset"]),
            np.int64(shift),
            starts,
            totals,
            *(entries.view(torch.uint64) for entries in _entries_of(verify_plan)),
            verify_plan.verify_num_valid,
            verify_plan.enable,
            write_plan.write_offsets,
            write_plan.write_seed_slot_indices,
            write_plan.write_num_valid_reqs,
        ]


def prepare_plan(**arguments: Any) -> list[PlanLaunches]:
    """Prepare the launches for the arguments of :func:`canary_numba.launch.launch_canary_plan_kernels`."""
    return [PlanLaunches(arguments)]
