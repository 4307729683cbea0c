"""Serving sessions on SGLang's runtime: its CanaryManager, pools, allocators, prefix cache, with either's kernels."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from capture_sglang_cpu import CPU, HEAD_DIM, HEADS, ROWS, SLOTS, Server, decode
from sglang.kernels.ops.kv_canary.consts import RealKvHashMode
from sglang.srt.kv_canary import req_to_expected_token_ids_manager as token_pool
from sglang.srt.kv_canary.capacities import CanaryLaunchCapacities
from sglang.srt.kv_canary.config import CanaryConfig, CanaryMode
from sglang.srt.kv_canary.perturb.config import PerturbConfig
from sglang.srt.kv_canary.pool_patcher.api import attach_canary_buffers
from sglang.srt.kv_canary.runner import canary_manager, future_tensor
from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.utils import phase_checker
from sglang.test.kernels.kv_canary.scatter_req_token_ids_reference import scatter_req_token_ids_torch_reference

from canary_numba.integrations.sglang import install

BUFFERS = ("k_head", "k_tail", "v_head", "v_tail")
WINDOW = 6


class Oracle:
    """Knows what each pass computes, and is wrong about a token now and then."""

    def fill_expected_inputs(self, *, forward_batch: Any, expected_inputs_out: Any) -> None:
        count = forward_batch.positions.shape[0]
        wrong = (forward_batch.input_ids % 17 == 0).to(torch.int64)
        expected_inputs_out.tokens[:count].copy_(forward_batch.input_ids + wrong)
        expected_inputs_out.positions[:count].copy_(forward_batch.positions)


class ManagedServer(Server):
    """The server of `capture_sglang_cpu.py` with SGLang's own CanaryManager, every check switched on.

    ``trace`` holds the state of the canary after each pass.
    """

    window = 0

    def __init__(self, mode: RealKvHashMode, dtype: torch.dtype) -> None:
        self.mode, self.dtype = mode, dtype
        self.trace: list[dict[str, Any]] = []
        super().__init__()
        self.manager.attach_radix_cache(self.radix)
        self.manager.mark_init_finished()

    def _manager(self) -> Any:
        config = CanaryConfig(
            mode=CanaryMode.LOG,
            ring_capacity=4096,
            sweep_interval=2,
            real_kv_hash_mode=self.mode,
            enable_write_input_assert=True,
            enable_verify_token_assert=True,
            stats_print_every_n_steps=0,
        )
        never = dict.fromkeys(
            ("req_to_token_prob", "real_kv_used_prob", "real_kv_unused_cache_prob", "real_kv_post_forward_prob"), 0.0
        )
        return canary_manager.CanaryManager(
            config=config,
            perturb_config=PerturbConfig(**never, target_group_kind=None, warmup_steps=0),
            buffer_groups=attach_canary_buffers(
                pool=self.pool, config=config, device=CPU, kv_token_id_vs_position_offset=0
            ),
            device=CPU,
            req_to_token_pool=self.rows,
            launch_capacities=CanaryLaunchCapacities(
                per_forward_verify_capacity=3 * SLOTS,
                per_forward_write_req_capacity=ROWS,
                per_forward_write_entry_capacity=SLOTS,
            ),
            swa_window_size=self.window,
            token_oracle_manager=Oracle(),
        )

    def stores(self, slots: torch.Tensor) -> list[tuple[Any, torch.Tensor]]:
        """List the pools that a pass stores K and V in, with the slots of its tokens there."""
        return [(self.pool, slots)]

    def _pass(self, batch: SimpleNamespace) -> None:
        for name in ("input_ids", "positions", "out_cache_loc"):
            setattr(batch, name, getattr(batch, name).to(self.dtype))
        outside = self.manager.with_ops_outside_graph(single_forward_indices=[0], maybe_inaccurate_forward_batch=batch)
        with outside, self.manager.with_active_single_forward_manager(0):
            before = self.manager.pre_ops_maybe_inside_graph(batch)
            for pool, slots in self.stores(batch.out_cache_loc.to(torch.int64)):
                for buffer in (*pool.k_buffer, *pool.v_buffer):
                    buffer[slots] = torch.randn((len(slots), HEADS, HEAD_DIM)).to(buffer.dtype)
            self.manager.post_ops_maybe_inside_graph(batch, before)
        state, groups = self.manager._device_state, self.manager._buffer_groups
        self.trace.append(
            {
                **{f"{name} {group.kind.name}": getattr(group, name).tolist() for group in groups for name in BUFFERS},
                "violations": int(state.violation_log.violation_write_index),
                "rows": sorted(state.violation_log.violation_ring.tolist()),
                "launches": state.kernel_run_counters.tolist(),
                "slots": state.slot_run_counters.tolist(),
            }
        )


class WindowServer(ManagedServer):
    """The same with a sliding-window pool beside the full one: SGLang's hybrid pool and its allocator."""

    window = WINDOW

    def _manager(self) -> Any:
        self.pool = SWAKVPool(
            size=SLOTS,
            size_swa=SLOTS // 2,
            page_size=1,
            dtype=torch.bfloat16,
            head_num=HEADS,
            head_dim=HEAD_DIM,
            swa_attention_layer_ids=[0],
            full_attention_layer_ids=[1],
            device="cpu",
        )
        self.allocator = SWATokenToKVPoolAllocator(
            SLOTS, SLOTS // 2, 1, torch.bfloat16, "cpu", self.pool, need_sort=False
        )
        return super()._manager()

    def stores(self, slots: torch.Tensor) -> list[tuple[Any, torch.Tensor]]:
        windowed = self.allocator.translate_loc_from_full_to_swa(slots).to(torch.int64)
        return [(self.pool.full_kv_pool, slots), (self.pool.swa_kv_pool, windowed)]

    def step(self, mode: ForwardMode, requests: list[Any]) -> Any:
        """Run a pass, and evict what left the window, as SGLang's scheduler does."""
        batch = super().step(mode, requests)
        for request in requests:
            start, end = request.evicted, max(0, request.cached - WINDOW)
            if end > start:
                self.allocator.free_swa(self.rows.req_to_token[request.row, start:end].to(torch.int64))
                request.evicted = end
        return batch

    def admit(self, rid: str, prompt: list[int]) -> Any:
        request = super().admit(rid, prompt)
        request.evicted = 0
        return request


@contextlib.contextmanager
def without_a_device() -> Iterator[None]:
    """Replace what SGLang's runtime asks of a GPU: a stream for copies, pinned memory, Triton to follow its phases."""

    def copied(tensors: Any, *, d2h_stream: Any) -> Any:
        assert d2h_stream is None
        host = _cloned(tensors)
        return SimpleNamespace(wait=lambda: host)

    def advance(checker: Any, *, expect_phase: int, next_phase: int, caller_name: str) -> None:
        assert int(checker._phase) == expect_phase, f"{caller_name} in phase {int(checker._phase)}"
        checker._phase.fill_(int(next_phase))

    zeros = torch.zeros
    with (
        mock.patch.object(phase_checker.SimplePhaseChecker, "update", advance),
        mock.patch.object(canary_manager, "create_device_stream", return_value=None),
        mock.patch.object(future_tensor.FutureTensors, "device_to_host", copied),
        mock.patch.object(torch, "zeros", lambda *size, pin_memory=False, **more: zeros(*size, **more)),
    ):
        yield


def _cloned(tensors: Any) -> Any:
    if isinstance(tensors, torch.Tensor):
        return tensors.clone()
    return {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in tensors.items()}


def serve(mode: RealKvHashMode, dtype: torch.dtype) -> list[dict[str, Any]]:
    """Serve requests that share a prefix, then damage the pool, the table and the free list while they run."""
    server = ManagedServer(mode, dtype)
    system = server.tokens(8)
    first = server.admit("finished", system + server.tokens(6))
    server.step(ForwardMode.EXTEND, [first])
    server.finish(first)
    live: list[Any] = [
        server.admit("a", system + server.tokens(9)),
        server.admit("b", server.tokens(7)),
    ]
    server.step(ForwardMode.EXTEND, live)
    decode(server, live, 5)
    slots = server.rows.req_to_token
    server.pool.k_buffer[0][int(slots[live[0].row, 3])] += 1
    decode(server, live, 2)
    slots[live[1].row, 4] = slots[live[0].row, 10]
    decode(server, live, 2)
    free = server.allocator.free_pages
    in_use = slots[live[0].row, live[0].cached - 4].to(torch.int64)
    server.allocator.free_pages = torch.cat([free[:1], in_use[None], free[1:]])
    decode(server, live, 4)
    server.finish(live.pop())
    live.append(server.admit("c", system + server.tokens(4)))
    server.step(ForwardMode.EXTEND, live)
    decode(server, live, 4)
    return server.trace


def serve_window(mode: RealKvHashMode, dtype: torch.dtype) -> list[dict[str, Any]]:
    """Serve two requests past the window, then damage the window pool and the mapping to its slots."""
    server = WindowServer(mode, dtype)
    live: list[Any] = [server.admit("a", server.tokens(9)), server.admit("b", server.tokens(4))]
    server.step(ForwardMode.EXTEND, live)
    decode(server, live, 6)
    newest = server.rows.req_to_token[live[0].row, live[0].cached - 2].to(torch.int64)
    mapping = server.pool.full_to_swa_index_mapping
    server.pool.swa_kv_pool.v_buffer[0][int(mapping[newest])] += 1
    decode(server, live, 2)
    other = server.rows.req_to_token[live[1].row, live[1].cached - 1].to(torch.int64)
    mapping[other] = mapping[server.rows.req_to_token[live[0].row, live[0].cached - 1].to(torch.int64)]
    decode(server, live, 3)
    return server.trace


def compare_sessions(counts: Counter[str]) -> None:
    """Serve with SGLang's kernels and with ours, in every hash mode, and compare the canary's state after each pass."""
    scatter = "launch_scatter_req_token_ids_kernel"
    for mode, dtype, session in itertools.product(RealKvHashMode, (torch.int64, torch.int32), (serve, serve_window)):
        with without_a_device():
            # SGLang scatters through Triton, which needs a GPU: its reference stands in.
            with mock.patch.object(token_pool, scatter, scatter_req_token_ids_torch_reference):
                expected = session(mode, dtype)
            with install():
                got = session(mode, dtype)
        for number, (ours, theirs) in enumerate(zip(got, expected, strict=True)):
            for name, value in theirs.items():
                assert ours[name] == value, f"{session.__name__} in mode {mode.name}, pass {number}: {name} differs"
        last = expected[-1]
        assert last["violations"] > 0, "the session shows no violation"
        counts["sessions"] += 1
        counts["session passes"] += len(got)
        counts["session launches"] += sum(last["launches"])
        counts["session slots"] += sum(last["slots"])
        counts["session violations"] += last["violations"]
