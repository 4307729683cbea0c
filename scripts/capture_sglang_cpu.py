"""Drive SGLang 0.5.23's own pools, prefix cache and canary on the CPU, and capture dumps from them; opt-in, not in CI.

Needs an environment of its own: `torch==2.14.1`, `torchvision==0.29.1`, `transformers==5.19.0`, `sglang==0.5.23` with
`--no-deps`, the small packages that its imports name, and this project. Run it with a folder as argument; the dumps
`sglang_clean.pt` and `sglang_double_allocation.pt` in tests/data come from it.

SGLang's CanaryManager needs a device with streams, so what it holds is put together here from SGLang's own parts. Every
record, table entry, free list and tree node of the dumps is written by SGLang's code.
"""

from __future__ import annotations

import os
import random
from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any

# Read when SGLang launches its kernels: V records are written as well.
os.environ["SGLANG_KV_CANARY_ENABLE_MHA_V"] = "1"

import click
import torch
from sglang.kernels.ops.kv_canary.consts import RealKvHashMode
from sglang.kernels.ops.kv_canary.verify import CanaryLaunchTag, VerifyPlan
from sglang.kernels.ops.kv_canary.write import WritePlan
from sglang.srt.kv_canary.config import CanaryConfig, CanaryMode
from sglang.srt.kv_canary.endpoint import build_endpoints_from_group
from sglang.srt.kv_canary.expected_inputs import ExpectedInputs
from sglang.srt.kv_canary.plan_input import PlanInput
from sglang.srt.kv_canary.pool_patcher.api import attach_canary_buffers
from sglang.srt.kv_canary.runner.kernel_launcher import invoke_plan, launch_endpoints_per_forward
from sglang.srt.kv_canary.state import CanaryDeviceState
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from canary_numba.capture.sglang import snapshot
from canary_numba.dump import save_dump

CPU = torch.device("cpu")
SLOTS, ROWS, WIDTH, HEADS, HEAD_DIM, LAYERS, VOCABULARY = 96, 4, 48, 2, 8, 2, 1000
HEAD = (CanaryLaunchTag.HEAD_K_FULL, CanaryLaunchTag.HEAD_V_FULL)
TAIL = (CanaryLaunchTag.TAIL_K_FULL, CanaryLaunchTag.TAIL_V_FULL)


class Request:
    """A request: its tokens, its table row, and how many of its tokens are cached."""

    def __init__(self, rid: str, tokens: list[int], row: int) -> None:
        self.rid, self.tokens, self.row, self.cached = rid, tokens, row, 0


class Server:
    """Pools, prefix cache and canary of SGLang, and a loop that stands in for its scheduler and model."""

    def __init__(self) -> None:
        self.rng = random.Random(0)
        torch.manual_seed(0)
        self.pool = MHATokenToKVPool(
            size=SLOTS,
            page_size=1,
            dtype=torch.bfloat16,
            head_num=HEADS,
            head_dim=HEAD_DIM,
            layer_num=LAYERS,
            device="cpu",
            enable_memory_saver=False,
        )
        self.allocator = TokenToKVPoolAllocator(SLOTS, torch.bfloat16, "cpu", self.pool, need_sort=False)
        self.rows = ReqToTokenPool(size=ROWS, max_context_len=WIDTH, device="cpu", enable_memory_saver=False)
        self.radix = UnifiedRadixCache(
            CacheInitParams(
                disable=False,
                req_to_token_pool=self.rows,
                token_to_kv_pool_allocator=self.allocator,
                page_size=1,
                tree_components=(ComponentType.FULL,),
            )
        )
        self.finished: dict[str, list[int]] = {}
        self.manager = self._manager()
        self.endpoints = build_endpoints_from_group(
            group=self.manager._buffer_groups[0], device_state=self.manager._device_state
        )

    def _manager(self) -> SimpleNamespace:
        config = CanaryConfig(
            mode=CanaryMode.LOG,
            ring_capacity=64,
            sweep_interval=0,
            real_kv_hash_mode=RealKvHashMode.ALL,
            enable_write_input_assert=False,
            enable_verify_token_assert=False,
            stats_print_every_n_steps=0,
        )
        groups = attach_canary_buffers(pool=self.pool, config=config, device=CPU, kv_token_id_vs_position_offset=0)
        return SimpleNamespace(
            config=config,
            _buffer_groups=groups,
            _device_state=CanaryDeviceState.allocate(config=config, device=CPU, num_tags=len(CanaryLaunchTag)),
            _req_to_token_pool=self.rows,
            _swa_window_size=0,
            _swa_allocator=None,
            _outer_step_counter=0,
        )

    def admit(self, rid: str, prompt: list[int]) -> Request:
        """Give a request a table row, and the cached slots that its prompt starts with."""
        request = Request(rid, prompt, self.rows.free_slots.pop(0))
        match = self.radix.match_prefix(MatchPrefixParams(key=RadixKey(array("q", prompt[:-1]))))
        request.cached = match.device_prefix_len
        shared = self.radix.path_device_indices(match.last_device_node)[: request.cached]
        self.rows.write((request.row, slice(0, request.cached)), shared.to(torch.int32))
        return request

    def step(self, mode: ForwardMode, requests: list[Request]) -> SimpleNamespace:
        """Allocate slots for the tokens that are not cached, and run a pass over them; return its batch."""
        spans = [(request.cached, len(request.tokens)) for request in requests]
        slots = self.allocator.alloc(sum(end - start for start, end in spans))
        start = 0
        for request, (cached, end) in zip(requests, spans, strict=True):
            new = slots[start : start + end - cached]
            self.rows.write((request.row, slice(cached, end)), new.to(torch.int32))
            start += end - cached
        batch = SimpleNamespace(
            forward_mode=mode,
            spec_info=None,
            batch_size=len(requests),
            rids=[request.rid for request in requests],
            req_pool_indices=torch.tensor([request.row for request in requests]),
            seq_lens=torch.tensor([end for _, end in spans]),
            extend_prefix_lens=torch.tensor([cached for cached, _ in spans]),
            extend_seq_lens=torch.tensor([end - cached for cached, end in spans]),
            input_ids=torch.tensor([t for r, (a, b) in zip(requests, spans, strict=True) for t in r.tokens[a:b]]),
            positions=torch.tensor([p for a, b in spans for p in range(a, b)]),
            out_cache_loc=slots,
            req_all_ids_flat=torch.tensor([token for request in requests for token in request.tokens]),
            req_all_ids_lens=torch.tensor([len(request.tokens) for request in requests]),
        )
        self._pass(batch)
        for request, (_, end) in zip(requests, spans, strict=True):
            request.cached = end
        self.manager._outer_step_counter += 1
        return batch

    def _pass(self, batch: SimpleNamespace) -> None:
        group, state = self.manager._buffer_groups[0], self.manager._device_state
        verify_plan = VerifyPlan.allocate(verify_capacity=3 * SLOTS, device=CPU)
        write_plan = WritePlan.allocate(write_req_capacity=ROWS, device=CPU)
        plan_input = PlanInput.allocate(bs_capacity=ROWS, device=CPU)
        plan_input.fill_from_forward_batch(forward_batch=batch)
        invoke_plan(
            plan_input=plan_input,
            verify_plan=verify_plan,
            write_plan=write_plan,
            group=group,
            req_to_token=self.rows.req_to_token,
            swa_window_size=0,
            req_to_verify_expected_tokens=None,
        )
        tokens = len(batch.positions)
        expected = ExpectedInputs.allocate(capacity=tokens, device=CPU).slice(tokens)
        for tags in (HEAD, TAIL):
            if tags is TAIL:
                for buffer in (*self.pool.k_buffer, *self.pool.v_buffer):
                    buffer[batch.out_cache_loc] = torch.randn((tokens, HEADS, HEAD_DIM)).to(buffer.dtype)
            launch_endpoints_per_forward(
                endpoints=self.endpoints,
                group=group,
                tag_filter=tags.__contains__,
                verify_plan=verify_plan,
                write_plan=write_plan,
                forward_batch=batch,
                expected_inputs=expected,
                violation_log=state.violation_log,
                real_kv_hash_mode=self.manager.config.real_kv_hash_mode,
                enable_write_input_assert=False,
                enable_verify_token_assert=False,
            )

    def finish(self, request: Request) -> None:
        """Hand a request's slots to the prefix cache, and give its row back."""
        slots = self.rows.req_to_token[request.row, : request.cached].to(torch.int64)
        tokens = request.tokens[: request.cached]
        self.radix.insert(InsertParams(key=RadixKey(array("q", tokens)), value=slots.clone()))
        self.rows.free_slots.append(request.row)
        self.finished[request.rid] = tokens

    def save(self, batch: SimpleNamespace, path: Path) -> None:
        """Capture a dump after a pass."""
        facts = {"kv_bytes": "all", "finished": self.finished, "context": {"model": "random K and V"}}
        save_dump(snapshot(self.manager, self.radix, batch, **facts), path, force=True)
        click.echo(f"{path}: {int(self.manager._device_state.violation_log.violation_write_index)} live violations")

    def tokens(self, count: int) -> list[int]:
        """Make up token ids."""
        return [self.rng.randrange(VOCABULARY) for _ in range(count)]


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
def main(folder: Path) -> None:
    """Serve a few requests, capture a dump, let the allocator hand out a slot that is in use, and capture another."""
    server = Server()
    system = server.tokens(8)
    first = server.admit("finished", system + server.tokens(6))
    server.step(ForwardMode.EXTEND, [first])
    server.finish(first)
    live: list[Any] = [
        server.admit("request-a", system + server.tokens(9)),
        server.admit("request-b", server.tokens(7)),
    ]
    server.step(ForwardMode.EXTEND, live)
    batch = decode(server, live, 5)
    server.save(batch, folder / "sglang_clean.pt")

    in_use = server.rows.req_to_token[live[0].row, live[0].cached - 4].to(torch.int64)
    server.allocator.free_pages = torch.cat(
        [server.allocator.free_pages[:1], in_use[None], server.allocator.free_pages[1:]]
    )
    batch = decode(server, live, 3)
    server.save(batch, folder / "sglang_double_allocation.pt")


def decode(server: Server, live: list[Request], steps: int) -> Any:
    """Generate a token a step for each request; return the last batch."""
    batch = None
    for _ in range(steps):
        for request in live:
            request.tokens += server.tokens(1)
        batch = server.step(ForwardMode.DECODE, live)
    return batch


if __name__ == "__main__":
    main()
