"""Writing on CUDA: the launch of the write kernel, whose inputs a server replaces in every step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import torch

from canary_numba.engines.cuda.batch import BatchArguments, Layout, Operand, in_batches, operand_of
from canary_numba.engines.cuda.chain import FEW
from canary_numba.engines.cuda.device import WARP, multiprocessors
from canary_numba.engines.cuda.fold_shapes import NARROW_TILE_WORDS, block_threads
from canary_numba.engines.cuda.launcher import PreparedLaunch
from canary_numba.engines.cuda.ring import table_of
from canary_numba.engines.cuda.write_kernel import FLAG_ASSERT_INPUT, make_write_kernel

FLAT = itemgetter("input_ids", "positions", "out_cache_loc", "expected_input_tokens", "expected_input_positions")
"""Takes of the arguments the inputs that a server allocates anew for each step, in the kernel's order."""
_FIRST_FLAT = 6


def _bound(flat: Sequence[torch.Tensor | None]) -> list[Any]:
    """What the kernel gets for the tensors of :data:`FLAT`; where none is expected, tokens and positions stand in."""
    return [*flat[:3], *(flat[i] if flat[3 + i] is None else flat[3 + i] for i in range(2))]


def _blocks(layout: Layout, requests: int, tokens: int, device: torch.device) -> int:
    # No more requests than this have more than a few tokens; of the others a warp takes 32.
    chains = min(requests, tokens // (FEW + 1) + -(-requests // WARP))
    # A block a chain as far as they go: two chains on one multiprocessor would share its issue slots.
    blocks = max(1, min(chains, multiprocessors(device) * 4))
    if not layout.shapes:
        return blocks
    # A warp for each chain and for each 32 tokens to fold, as far as they go; two at least, one of each kind.
    threads = block_threads(layout.shapes)
    wanted = max(2, chains + -(-tokens // WARP))
    return max(blocks, min(-(-wanted * WARP // threads), multiprocessors(device) * 1024 // threads))


class WriteLaunch(PreparedLaunch):
    """A write launch whose flat inputs may be replaced."""

    def __init__(self, batch: list[Operand], arguments: Mapping[str, Any]) -> None:
        layout, context, plan = batch[0].layout, batch[0].context, arguments["plan"]
        device = context.canary_buf.device
        self._layout, self._requests = layout, plan.write_seed_slot_indices.shape[0]
        flat = _bound(FLAT(arguments))
        self._tokens = flat[0].shape[0]
        own = BatchArguments.of(batch)
        packed = [
            own.records,
            np.uint64(layout.stride),
            np.int64(layout.num_slots),
            plan.write_offsets,
            plan.write_seed_slot_indices,
            plan.write_num_valid_reqs,
            *flat,
            *own.sources,
            context.enable_chain_position_assert,
            own.kinds,
            np.int64(FLAG_ASSERT_INPUT if arguments["enable_write_input_assert"] else 0),
            context.violation_ring,
            context.violation_write_index,
            own.slot_runs,
            own.kernel_runs,
            table_of(arguments["aggregate_violations"], device),
        ]
        kernel = make_write_kernel(layout.shapes, layout.paired, len(batch))
        grid = (len(batch), _blocks(layout, self._requests, self._tokens, device))
        super().__init__(kernel, grid, block_threads(layout.shapes), device, packed)

    def replace_flat(self, flat: Sequence[torch.Tensor | None]) -> None:
        """Write these from the next call on: the tensors of :data:`FLAT`, of the same dtypes, of any one length."""
        bound = _bound(flat)
        for i, tensor in enumerate(bound):
            self.rebind(_FIRST_FLAT + i, tensor)
        tokens = bound[0].shape[0]
        if tokens != self._tokens:
            self._tokens = tokens
            self.grid = (self.grid[0], _blocks(self._layout, self._requests, tokens, self._device))


def prepare_write(*, contexts: Sequence[Any], **arguments: Any) -> list[WriteLaunch]:
    """Prepare the launches for the arguments of :func:`canary_numba.launch.launch_canary_write_kernel`."""
    operands = [operand_of(context, widest=NARROW_TILE_WORDS) for context in contexts]
    return [WriteLaunch(batch, arguments) for batch in in_batches(operands, writing=True)]
