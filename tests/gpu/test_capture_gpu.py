"""KVCanary on a GPU: the same as on the CPU, passes that never wait or lie in a CUDA graph, late news of violations."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from canary_numba.capture.layers import PagedPool
from canary_numba.capture.pool import KVCanary
from canary_numba.check import check_dump
from canary_numba.errors import ArgumentError

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")]

SLOTS, PAGE = 64, 4


def guard_on(device: str, layers: int, *, window: bool, keep: bool) -> KVCanary:
    generator = torch.Generator().manual_seed(1)
    shape = (SLOTS // PAGE, 2, PAGE, 8)
    k, v = ([torch.randn(shape, generator=generator).to(device) for _ in range(layers)] for _ in range(2))
    table = torch.zeros((4, 32), dtype=torch.int32)
    table[1], table[2, :31] = torch.arange(1, 33), torch.arange(33, 64)
    pool = PagedPool(k_layers=k, v_layers=v, page_size=PAGE, slot_axis=2)
    mapping = torch.cat([torch.arange(SLOTS), torch.tensor([-1])]).to(device)
    more = {"window_pool": pool, "swa_window_size": 5, "full_to_swa_index_mapping": mapping} if window else {}
    tokens = torch.zeros((4, 40), dtype=torch.int32, device=device)
    more |= {"req_to_expected_tokens": tokens, "keep_source_hashes": keep}
    return KVCanary(pool, table.to(device), **more)  # type: ignore[arg-type]


def passes(guard: KVCanary, steps: int) -> None:
    """Prefill 10 and 5 tokens, then decode; every argument is on the device already. Token p has the id p + 7."""
    device = guard.req_to_token.device
    rows = torch.tensor([1, 2], device=device)
    for step in range(steps):
        prefix = torch.tensor([0, 0] if step == 0 else [9 + step, 4 + step], device=device)
        extend = torch.tensor([10, 5] if step == 0 else [1, 1], device=device)
        spans = [(0, 10), (0, 5)] if step == 0 else [(9 + step, 10 + step), (4 + step, 5 + step)]
        positions = torch.cat([torch.arange(a, b, device=device) for a, b in spans])
        table = guard.req_to_token
        slots = torch.cat([table[row, a:b] for row, (a, b) in zip((1, 2), spans, strict=True)])
        if device.type == "cuda" and step > 1:
            with warnings.catch_warnings():
                # torch announces that this mode is a prototype.
                warnings.simplefilter("ignore")
                torch.cuda.set_sync_debug_mode("error")
        try:
            with guard.forward(
                req_pool_indices=rows,
                prefix_lens=prefix,
                extend_seq_lens=extend,
                input_ids=positions + 7,
                positions=positions,
                out_cache_loc=slots,
                expected_input_ids=positions + 7,
                expected_positions=positions,
                token_ids=[torch.arange(7, 7 + end, device=device) for _, end in spans],
            ):
                pass
        finally:
            if device.type == "cuda" and step > 1:
                torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize(("layers", "keep"), [(1, False), (3, False), (1, True)])
@pytest.mark.parametrize("window", [False, True])
def test_records_are_those_of_the_cpu_and_no_pass_waits(layers: int, keep: bool, window: bool) -> None:
    here, there = (guard_on(device, layers, window=window, keep=keep) for device in ("cpu", "cuda"))
    for guard in (here, there):
        passes(guard, 5)
        assert guard.verify() == 0
        assert guard.check().ok
    for ours, theirs in zip(here.groups, there.groups, strict=True):
        for key, stage in ours.stages.items():
            assert torch.equal(stage.records[1:], theirs.stages[key].records[1:].cpu())
    there.groups[0].sources["K"][0].tensor[2] += 1
    assert there.verify() > 0
    dump = there.snapshot()
    assert check_dump(dump, engine="cpu").num_violations > 0


def test_a_violation_is_known_after_a_while_without_waiting() -> None:
    guard = guard_on("cuda", 1, window=False, keep=False)
    passes(guard, 2)
    guard.groups[0].sources["K"][0].tensor[2] += 1
    guard.plan([1, 2], [11, 6], [0, 0])
    guard.before_forward([], [], [])
    guard.after_forward()
    guard.poll()
    torch.cuda.synchronize()
    assert guard.poll() > 0


def counters(guard: KVCanary) -> list[list[int]]:
    log = guard.log
    return [t.tolist() for t in (log.write_index, log.kernel_run, log.slot_run, log.passes, log.plans_too_large)]


def test_wrong_tokens_are_seen_as_on_the_cpu() -> None:
    here, there = (guard_on(device, 1, window=True, keep=False) for device in ("cpu", "cuda"))
    for guard in (here, there):
        passes(guard, 2)
        device = guard.req_to_token.device
        told = [torch.tensor([*range(7, 12), 99], device=device), torch.tensor([7, 8, 9, 9], device=device)]
        guard.plan([1, 2], [11, 6], [1, 1], token_ids=told)
        guard.before_forward([18, 13], [11, 6], [12, 39], expected_input_ids=[18, 14], expected_positions=[10, 6])
        guard.after_forward()
    assert here.poll() > 0
    assert [violation.order for violation in there.violations()] == [violation.order for violation in here.violations()]
    assert there.violations() == here.violations()
    assert counters(there) == counters(here)


def decode_inputs(step: int, device: torch.device) -> dict[str, torch.Tensor]:
    """Everything that a decode step after ``passes(guard, 2)`` is told, on the device."""
    lens = torch.tensor([11 + step, 6 + step], device=device)
    return {
        "req_pool_indices": torch.tensor([1, 2], device=device),
        "prefix_lens": lens,
        "extend_seq_lens": torch.ones_like(lens),
        "token_lens": lens.clone(),
        "input_ids": lens + 7,
        "positions": lens.to(torch.int32),
        "out_cache_loc": torch.tensor([12 + step, 39 + step], device=device),
        "expected_input_ids": lens + 7,
        "expected_positions": lens.clone(),
    }


def run_pass(guard: KVCanary, inputs: dict[str, torch.Tensor]) -> None:
    """One pass by the three calls, whose order and arguments a CUDA graph can hold."""
    plan = ("req_pool_indices", "prefix_lens", "extend_seq_lens", "token_lens")
    guard.plan(**{name: inputs[name] for name in plan})
    guard.before_forward(**{name: tensor for name, tensor in inputs.items() if name not in plan})
    guard.after_forward()


@pytest.mark.parametrize(("layers", "keep"), [(1, False), (3, False), (1, True)])
@pytest.mark.parametrize("window", [False, True])
def test_a_replayed_graph_does_what_eager_passes_do(layers: int, keep: bool, window: bool) -> None:
    eager, replayed = (guard_on("cuda", layers, window=window, keep=keep) for _ in range(2))
    for guard in (eager, replayed):
        # They also load every kernel: a graph cannot.
        passes(guard, 2)
        assert guard.step.token_table is not None
        guard.step.token_table[1:3, :33] = torch.arange(7, 40)
        torch.cuda.synchronize()
    inputs = decode_inputs(0, eager.req_to_token.device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.Stream()):  # type: ignore[no-untyped-call]
        run_pass(replayed, inputs)
    before = counters(replayed)
    assert before == counters(eager)
    for step in range(20):
        fresh: dict[str, Any] = decode_inputs(step, eager.req_to_token.device)
        if step == 7:
            # Each kind of violation from here on: bytes, a cached token, the input.
            for guard in (eager, replayed):
                guard.groups[0].sources["K"][0].tensor[2] += 1
                assert guard.step.token_table is not None
                guard.step.token_table[1, 3] = 99
            fresh["expected_input_ids"][0] += 1
        for name, tensor in inputs.items():
            tensor.copy_(fresh[name])
        graph.replay()
        run_pass(eager, fresh)
        if step == 6:
            assert counters(replayed)[0] == [0]
    assert counters(replayed) == counters(eager) != before
    assert replayed.violations() == eager.violations()
    assert {"verify_real_kv_hash", "verify_token", "write_token"} <= {
        reason for violation in eager.violations() for reason in violation.reasons
    }
    for ours, theirs in zip(eager.groups, replayed.groups, strict=True):
        for key, stage in ours.stages.items():
            assert torch.equal(stage.records[1:], theirs.stages[key].records[1:])
    health = replayed.check()
    assert (health.ok, health.passes) == (True, 22)
    requests = replayed.snapshot().requests
    assert requests is not None
    assert requests.prefix_lens.tolist() == [31, 26]


def test_news_of_replayed_passes_comes_by_report(caplog: pytest.LogCaptureFixture) -> None:
    guard = guard_on("cuda", 1, window=False, keep=False)
    passes(guard, 2)
    inputs = decode_inputs(0, guard.req_to_token.device)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # type: ignore[no-untyped-call]
        run_pass(guard, inputs)
    guard.groups[0].sources["K"][0].tensor[2] += 1
    graph.replay()
    for _ in range(2):
        guard.report()
        known = guard.passes
        torch.cuda.synchronize()
    assert "verify_real_kv_hash" in caplog.text
    assert known == 3


def test_what_a_graph_cannot_hold_is_refused() -> None:
    guard = guard_on("cuda", 1, window=False, keep=False)
    passes(guard, 2)
    inputs = decode_inputs(0, guard.req_to_token.device)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # type: ignore[no-untyped-call]
        with pytest.raises(ArgumentError, match="forward: record plan"), guard.forward(**inputs):
            pass
        with pytest.raises(ArgumentError, match="prefix_lens: a CUDA graph reads it again at each replay"):
            guard.plan(inputs["req_pool_indices"], [11, 6], inputs["extend_seq_lens"])
        with pytest.raises(ArgumentError, match="token_ids: not while a CUDA graph is recorded"):
            guard.plan(*[inputs["prefix_lens"]] * 3, token_ids=[[1], [2]])
        run_pass(guard, inputs)
    graph.replay()
    assert guard.check().passes == 3
