"""The simulated server's pools: K/V bytes and records, stamped by the project's own write kernel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from canary_numba.context import RealKvSource, ViolationLog
from canary_numba.dump.model import Group, Half, Source
from canary_numba.faults.options import HistoryOptions
from canary_numba.faults.slot_bytes import random_content, write_slots
from canary_numba.launch import launch_canary_write_kernel
from canary_numba.layout import CANARY_SLOT_BYTES, CanaryLaunchTag, RealKvHashMode
from canary_numba.plans import WritePlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one step writes: flat int64 ``[n]`` arrays, request r's part being ``offsets[r]`` to ``offsets[r + 1]``.

    ``seeds``: int64 ``[requests]``, slot that each chain goes on from, -1 = it begins.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    offsets: torch.Tensor
    seeds: torch.Tensor


class PoolMemory:
    """Record buffers and K/V sources of one pool."""

    def __init__(self, kind: str, num_slots: int, options: HistoryOptions, rng: np.random.Generator) -> None:
        self.kind = kind
        self.options = options
        self.rng = rng
        self.mode = RealKvHashMode[options.hash_mode.upper()]
        self.in_use = [half for half in "KV" if half in options.halves]
        self.present = ["K", *("V" for _ in options.halves[1:])]
        stages = ["HEAD", "TAIL"] if options.head else ["TAIL"]
        self.buffers = {
            (half, stage): torch.zeros((num_slots, CANARY_SLOT_BYTES), dtype=torch.uint8)
            for half in self.present
            for stage in stages
        }
        self.sources = self._sources(num_slots)
        self.logs = {
            key: ViolationLog.allocate(ring_capacity=8, device="cpu") for key in self.buffers if key[0] in self.in_use
        }

    def _sources(self, num_slots: int) -> dict[str, tuple[Source, ...]]:
        options = self.options
        dtype = getattr(torch, options.dtype)
        page = options.page_size if options.paged_sources else 1
        width = page * options.values_per_token
        token_bytes = options.values_per_token * dtype.itemsize
        read = token_bytes if options.whole_token_read else token_bytes - dtype.itemsize
        found: dict[str, list[Source]] = {half: [] for half in self.present}
        for layer in range(options.layers):
            shared = torch.zeros((num_slots // page, len(self.present), width), dtype=dtype)
            for i, half in enumerate(self.present):
                tensor = (
                    shared[:, i] if options.interleaved else shared[:, i].clone(memory_format=torch.contiguous_format)
                )
                found[half].append(
                    Source(
                        name=f"layer{layer}.{half.lower()}",
                        tensor=tensor,
                        page_size=page,
                        num_bytes_per_token=token_bytes,
                        read_bytes=read,
                    )
                )
        return {half: tuple(sources) for half, sources in found.items()}

    def stamp(self, batch: Batch) -> None:
        """Fill the slots of a step with new K/V bytes, and write their records."""
        plan = WritePlan(
            write_offsets=batch.offsets,
            write_seed_slot_indices=batch.seeds,
            write_num_valid_reqs=torch.tensor([batch.seeds.shape[0]], dtype=torch.int32),
        )
        for half in self.in_use:
            for source in self.sources[half]:
                content = random_content(
                    self.rng, source.tensor.dtype, batch.slots.shape[0], source.num_bytes_per_token
                )
                write_slots(source, batch.slots, content)
        for (half, stage), log in self.logs.items():
            launch_canary_write_kernel(
                context=log.context(
                    canary_buf=self.buffers[half, stage],
                    kernel_kind=CanaryLaunchTag.of(stage, half, self.kind),
                    real_kv_sources=self._real(half) if stage == "TAIL" else (),
                    real_kv_hash_mode=self.mode if stage == "TAIL" else RealKvHashMode.NONE,
                ),
                plan=plan,
                input_ids=batch.tokens,
                positions=batch.positions,
                out_cache_loc=batch.slots,
                enable_write_input_assert=False,
                expected_input_tokens=None,
                expected_input_positions=None,
                engine="cpu",
            )

    def _real(self, half: str) -> tuple[RealKvSource, ...]:
        return tuple(
            RealKvSource(
                tensor=source.tensor,
                page_size=source.page_size,
                num_bytes_per_token=source.num_bytes_per_token,
                read_bytes=source.read_bytes,
            )
            for source in self.sources[half]
        )

    def counters(self) -> dict[CanaryLaunchTag, tuple[int, int]]:
        """Launches and slots processed, by tag."""
        return {
            CanaryLaunchTag.of(stage, half, self.kind): (int(log.kernel_run_counter), int(log.slot_run_counter))
            for (half, stage), log in self.logs.items()
        }

    def group(self, mapping: torch.Tensor | None) -> Group:
        """The pool as a dump holds it."""
        halves = {
            half: Half(
                head=self.buffers.get((half, "HEAD")),
                tail=self.buffers[half, "TAIL"],
                sources=self.sources[half] if half in self.in_use else (),
            )
            for half in self.present
        }
        return Group(
            kind=self.kind,
            halves=halves,
            swa_window_size=self.options.window if self.kind == "SWA" else 0,
            full_to_swa_index_mapping=mapping,
            kv_token_id_vs_position_offset=self.options.offset,
        )
