"""KVCanary on a GPU: the same records as on the CPU, passes that never wait, and violations seen a little later."""

from __future__ import annotations

import pytest
import torch

from canary_numba.capture.layers import PagedPool
from canary_numba.capture.pool import KVCanary
from canary_numba.check import check_dump

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")]

SLOTS, PAGE = 64, 4


def guard_on(device: str, layers: int, *, window: bool, keep: bool) -> KVCanary:
    generator = torch.Generator().manual_seed(1)
    shape = (SLOTS // PAGE, 2, PAGE, 8)
    k, v = ([torch.randn(shape, generator=generator).to(device) for _ in range(layers)] for _ in range(2))
    table = torch.zeros((4, 32), dtype=torch.int32)
    table[1], table[2, :20] = torch.arange(1, 33), torch.arange(33, 53)
    pool = PagedPool(k_layers=k, v_layers=v, page_size=PAGE, slot_axis=2)
    mapping = torch.cat([torch.arange(SLOTS), torch.tensor([-1])]).to(device)
    more = {"window_pool": pool, "swa_window_size": 5, "full_to_swa_index_mapping": mapping} if window else {}
    return KVCanary(pool, table.to(device), keep_source_hashes=keep, **more)  # type: ignore[arg-type]


def passes(guard: KVCanary, steps: int) -> None:
    """Prefill 10 and 5 tokens, then decode; every argument is on the device already."""
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
            torch.cuda.set_sync_debug_mode("error")
        try:
            with guard.forward(
                req_pool_indices=rows,
                prefix_lens=prefix,
                extend_seq_lens=extend,
                input_ids=positions + 7,
                positions=positions,
                out_cache_loc=slots,
            ):
                pass
        finally:
            if device.type == "cuda":
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
