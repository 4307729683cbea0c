"""Random plans and scatters: SGLang's fixtures, its differential test, its invariants and its fuzz driver."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

import torch
from sglang.kernels.ops.kv_canary import scatter_req_token_ids
from sglang.test.kernels.kv_canary import _fixtures
from sglang.test.kernels.kv_canary._differential import run_plan_diff
from sglang.test.kernels.kv_canary._fuzz_driver import run_fuzz_combo
from sglang.test.kernels.kv_canary._invariants import PlanInvariants
from sglang.test.kernels.kv_canary.scatter_req_token_ids_reference import scatter_req_token_ids_torch_reference


@dataclass(frozen=True)
class PlanCase:
    """Arguments of a plan, under the names that SGLang's shrinker knows."""

    req_pool_indices: torch.Tensor
    prefix_lens: torch.Tensor
    extend_seq_lens: torch.Tensor
    req_to_token: torch.Tensor
    swa_window_size: int
    full_to_swa_index_mapping: torch.Tensor | None
    verify_capacity: int
    write_req_capacity: int
    expected_tokens: torch.Tensor | None
    valid_lens: torch.Tensor | None
    offset: int


def draw_plan(rng: random.Random, device: torch.device) -> PlanCase:
    """Draw a table, lengths with padding rows, a window or none, tokens or none, and capacities that may not do."""
    rows, width, bs = rng.randint(2, 9), rng.randint(2, 40), rng.randint(0, 12)
    table = _fixtures.make_req_to_token(
        kind=rng.choice(["linear", "sparse_permuted"]), max_reqs=rows, max_seq_len=width, device=device, rng=rng
    )
    padding = _fixtures.make_padding_mask(bs=bs, kind=rng.choice(["none", "trailing", "interleaved"]), rng=rng)
    prefix = [rng.choice([0, width, rng.randint(0, width)]) for _ in range(bs)]
    window = rng.choice([0, 0, 1, rng.randint(2, width + 3)])
    mapped = window > 0 or rng.random() < 0.1
    lut_kind = rng.choice(["identity", "shift", "permutation", "with_oob"])
    entries = sum(min(p, window) if window else p for p, pad in zip(prefix, padding, strict=True) if not pad)
    capacity, request_capacity = _fixtures.derive_plan_capacity(
        kind=rng.choice(["loose", "tight_match", "under_by_one"]), total_verify=entries, extras_count=0, bs=bs
    )

    def ints(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=device)

    tokens = rng.random() < 0.6
    return PlanCase(
        req_pool_indices=ints([0 if pad else rng.randint(1, rows - 1) for pad in padding]),
        prefix_lens=ints(prefix),
        extend_seq_lens=ints([rng.choice([0, 1, rng.randint(0, 9)]) for _ in range(bs)]),
        req_to_token=table,
        swa_window_size=window,
        full_to_swa_index_mapping=_fixtures.make_lut(kind=lut_kind, pool_size=rows * width, device=device, rng=rng)
        if mapped
        else None,
        verify_capacity=capacity,
        write_req_capacity=request_capacity,
        expected_tokens=torch.arange(rows * width, dtype=torch.int32, device=device).view(rows, width)
        if tokens
        else None,
        valid_lens=ints([rng.randint(0, width) for _ in range(bs)]) if tokens else None,
        offset=rng.randint(0, 1),
    )


def run_plan(case: PlanCase, counts: Counter[str]) -> None:
    """Plan with ours and with SGLang's reference, compare, and check SGLang's invariants."""
    verify, write, reference_verify, reference_write = _fixtures.allocate_plan_pair(
        verify_capacity=case.verify_capacity, write_req_capacity=case.write_req_capacity
    )
    extras = _fixtures.empty_extras()
    run_plan_diff(
        plan_pair=((verify, write), (reference_verify, reference_write)),
        req_pool_indices=case.req_pool_indices,
        prefix_lens=case.prefix_lens,
        extend_seq_lens=case.extend_seq_lens,
        req_to_token=case.req_to_token,
        extras=extras,
        swa_window_size=case.swa_window_size,
        full_to_swa_index_mapping=case.full_to_swa_index_mapping,
        req_to_verify_expected_tokens=case.expected_tokens,
        req_to_verify_expected_tokens_valid_lens=case.valid_lens,
        kv_token_id_vs_position_offset=case.offset,
    )
    PlanInvariants.assert_all(
        verify_plan=verify,
        write_plan=write,
        req_pool_indices=case.req_pool_indices,
        prefix_lens=case.prefix_lens,
        extend_seq_lens=case.extend_seq_lens,
        swa_window_size=case.swa_window_size,
        extras_slot_indices=extras[0],
        extras_positions=extras[1],
        extras_prev_slot_indices=extras[2],
        extras_count=0,
    )
    counts["plans"] += 1
    counts["plan entries"] += int(verify.verify_num_valid) * int(verify.enable)
    counts["plans that did not fit"] += 1 - int(verify.enable)


def fuzz_plans(seed: int, rounds: int, device: torch.device, counts: Counter[str]) -> None:
    """Run random plans."""
    run_fuzz_combo(
        seed,
        draw_fn=lambda rng: draw_plan(rng, device),
        run_one_fn=lambda case: run_plan(case, counts),
        summarize_fn=repr,
        n_iter=rounds,
    )


def fuzz_scatters(seed: int, rounds: int, device: torch.device, counts: Counter[str]) -> None:
    """Scatter random token lists into a pool with ours and with SGLang's reference, and compare the pools."""
    rng = random.Random(seed)
    for _ in range(rounds):
        rows, width, bs = rng.randint(2, 20), rng.randint(1, 40), rng.randint(0, 12)
        chosen = rng.sample(range(rows), k=min(bs, rows))
        lengths = [rng.choice([0, rng.randint(0, width + 5)]) for _ in chosen]
        memory = torch.full((rows, width + rng.choice([0, 3])), -7, dtype=torch.int32, device=device)
        expected = memory.clone()
        flat = torch.randint(0, 2**31 - 1, (sum(lengths),), dtype=torch.int64).to(device)
        arguments = {
            "flat_in": flat,
            "offsets": torch.tensor([0, *lengths], dtype=torch.int64).cumsum(0).to(device),
            "req_pool_indices": torch.tensor(chosen, dtype=torch.int64, device=device),
        }
        scatter_req_token_ids.launch_scatter_req_token_ids_kernel(**arguments, pool_out=memory[:, :width])
        scatter_req_token_ids_torch_reference(**arguments, pool_out=expected[:, :width])
        assert torch.equal(memory, expected), f"scattered pools differ: {arguments}"
        counts["scatters"] += 1
        counts["scattered tokens"] += sum(lengths)
