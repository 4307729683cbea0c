"""Stand-ins shaped like SGLang 0.5.23's objects, around the records that a ``KVCanary`` writes."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import torch

from canary_numba.capture.layers import PagedPool
from canary_numba.capture.pool import KVCanary
from canary_numba.dump.model import Radix

SLOTS, WIDTH = 40, 24


class Kind(IntEnum):
    FULL = 0
    SWA = 1


class Mode:
    """A ``ForwardMode``: ``name`` is the only question it answers with yes."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, question: str) -> Any:
        return lambda: question == f"is_{self.name}"


class Manager:
    """A ``CanaryManager`` whose passes are those of a ``KVCanary``."""

    def __init__(self, *, layers: int = 1, window: bool = False) -> None:
        table = torch.zeros((5, WIDTH), dtype=torch.int32)
        table[2, :20], table[4, :15] = torch.arange(1, 21), torch.arange(21, 36)
        # K and V of all layers in one storage, as SGLang allocates them.
        memory = torch.randn((2, layers, SLOTS, 2, 8)).to(torch.bfloat16)
        self.pool = SimpleNamespace(k_buffer=list(memory[0]), v_buffer=list(memory[1]), start_layer=3)
        paged = PagedPool(k_layers=self.pool.k_buffer, v_layers=self.pool.v_buffer)
        more: dict[str, Any] = {}
        if window:
            more["full_to_swa_index_mapping"] = torch.cat([torch.arange(SLOTS), torch.tensor([-1])])
            more["window_pool"], more["swa_window_size"] = paged, 4
        self.canary = KVCanary(paged, table, **more)
        log = self.canary.log
        self.config = SimpleNamespace(real_kv_hash_mode=self.canary.hash_mode)
        self._buffer_groups: Any = tuple(self._group(group) for group in self.canary.groups)
        self._device_state = SimpleNamespace(
            violation_log=SimpleNamespace(violation_ring=log.ring, violation_write_index=log.write_index),
            kernel_run_counters=log.kernel_run,
            slot_run_counters=log.slot_run,
        )
        self._req_to_token_pool = SimpleNamespace(req_to_token=table)
        self._swa_window_size = 4 if window else 0
        self._swa_allocator = None
        self._outer_step_counter = 0
        self.fails = False

    def _group(self, group: Any) -> SimpleNamespace:
        records = {f"{half.lower()}_{stage.lower()}": launches.records for stage, half, launches in group.buffers()}
        return SimpleNamespace(
            kind=Kind[group.kind],
            **records,
            real_kv_sources_k=group.sources["K"],
            real_kv_sources_v=group.sources["V"],
            swa_index_lut=group.mapping,
            kv_token_id_vs_position_offset=0,
        )

    def _post_ops_outside_graph(
        self, *, single_forward_indices: Sequence[int], maybe_inaccurate_forward_batch: Any
    ) -> str:
        self._outer_step_counter += 1
        if self.fails:
            raise RuntimeError("canary violation")
        return "done"

    def end_pass(self, batch: Any) -> Any:
        """End a pass as SGLang's runner does: through the attribute, so that a hook is seen."""
        return self._post_ops_outside_graph(single_forward_indices=[0], maybe_inaccurate_forward_batch=batch)

    def serve(self, lens: Sequence[int] = (9, 6), steps: int = 2) -> SimpleNamespace:
        """Prefill rows 2 and 4, then decode; return the last batch."""
        batch = self.forward("extend", [0, 0], lens)
        for step in range(steps):
            batch = self.forward("decode_or_idle", [n + step for n in lens], [1] * len(lens))
        return batch

    def forward(self, mode: str, prefix: Sequence[int], extend: Sequence[int]) -> SimpleNamespace:
        rows, table = [2, 4], self.canary.req_to_token
        spans = [(row, start, start + count) for row, start, count in zip(rows, prefix, extend, strict=True)]
        positions = torch.tensor([p for _, start, end in spans for p in range(start, end)])
        tokens = torch.tensor([100 * row + p for row, start, end in spans for p in range(start, end)])
        slots = torch.cat([table[row, start:end] for row, start, end in spans]).long()
        with self.canary.forward(
            req_pool_indices=rows,
            prefix_lens=prefix,
            extend_seq_lens=extend,
            input_ids=tokens,
            positions=positions,
            out_cache_loc=slots,
        ):
            pass
        ends = [end for _, _, end in spans]
        return SimpleNamespace(
            forward_mode=Mode(mode),
            # One padding row, as a captured graph has.
            req_pool_indices=torch.tensor([*rows, 0]),
            rids=["a", "b"],
            positions=positions,
            seq_lens=torch.tensor([*ends, 1]),
            extend_prefix_lens=torch.tensor([*prefix, 0]),
            extend_seq_lens=torch.tensor([*extend, 0]),
            req_all_ids_flat=torch.tensor(
                [100 * row + p for row, end in zip(rows, ends, strict=True) for p in range(end)]
            ),
            req_all_ids_lens=torch.tensor(ends),
        )


class Req:
    """A live or finished ``Req``."""

    def __init__(self, rid: str, row: int | None, committed: int, *, done: bool = False) -> None:
        self.rid, self.extra_key, self._done = rid, "adapter", done
        self.origin_input_ids = [100 * (row or 0) + p for p in range(committed)]
        self.output_ids = [7]
        self.kv = SimpleNamespace(req_pool_idx=row, kv_committed_len=committed, kv_allocated_len=committed + 1)

    def finished(self) -> bool:
        return self._done


class Cache:
    """A ``UnifiedRadixCache`` that holds the first ``count`` slots of row 2."""

    def __init__(self, allocator: Any, count: int = 4) -> None:
        self.token_to_kv_pool_allocator = allocator
        self.tree_core = SimpleNamespace(walk_for_kv_canary=self._walk)
        self.count = count
        self.released: list[str] = []

    def _walk(self, *, unlocked_only: bool, swa_resident_only: bool) -> Radix:
        assert not unlocked_only
        assert not swa_resident_only
        places = torch.arange(self.count)
        return Radix(slot_indices=places + 1, positions=places, prev_slot_indices=torch.where(places == 0, -1, places))

    def on_release(self, req: Req, *, checkpointed: bool) -> bool:
        self.released.append(req.rid)
        return checkpointed


def token_allocator(pool: Any, free: Sequence[int], *, page_size: int = 1) -> SimpleNamespace:
    """An allocator whose free list holds these pages."""
    return SimpleNamespace(
        page_size=page_size,
        size=SLOTS - 1,
        get_all_free_pages=lambda: torch.tensor(free),
        get_kvcache=lambda: pool,
    )
