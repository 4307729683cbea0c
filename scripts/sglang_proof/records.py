"""Random writes, and verifies of what was written and then damaged, through SGLang's own test helpers."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from sglang.kernels.ops.kv_canary.consts import RealKvHashMode
from sglang.kernels.ops.kv_canary.verify import CanaryLaunchTag
from sglang.test.kernels.kv_canary import _canary_helpers as helpers
from sglang.test.kernels.kv_canary import _fixtures, _hand_oracle
from sglang.test.kernels.kv_canary._differential import run_verify_diff, run_write_diff
from sglang.test.kernels.kv_canary._fuzz_driver import run_fuzz_combo
from sglang.test.kernels.kv_canary._invariants import VerifyInvariants, WriteInvariants


@dataclass(frozen=True)
class Case:
    """A pool whose requests write some tokens, and what is damaged before they are verified."""

    buffer: torch.Tensor
    offsets: list[int]
    seeds: list[int]
    tokens: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    expected_tokens: torch.Tensor
    expected_positions: torch.Tensor
    enable_assert: bool
    gapless: bool
    real_kv_sources: tuple[Any, ...]
    real_kv_hash_mode: RealKvHashMode
    kind: CanaryLaunchTag
    damage: float
    check_tokens: bool
    seed: int


def draw_sources(rng: random.Random, num_slots: int, device: torch.device) -> tuple[Any, ...]:
    """Draw up to 4 sources of random bytes: paged or not, rows with padding and gaps, read in part or whole."""
    sources = []
    # A GPU's kernels are compiled for each layout, which takes seconds.
    layout = random.Random(rng.randrange(6 if device.type == "cuda" else 2**31))
    for _ in range(layout.randint(0, 4)):
        width = 16 * layout.randint(1, 5)
        source = _fixtures.make_real_kv_source(
            num_slots=num_slots,
            num_bytes_per_token=width,
            page_size=layout.choice([1, 2, 4]),
            read_bytes=layout.choice([16, width]),
            pad_dim1=layout.choice([0, 16]),
            row_gap=layout.choice([0, 32]),
            device=device,
        )
        source.tensor.copy_(torch.randint(0, 256, source.tensor.shape, dtype=torch.uint8))
        sources.append(source)
    return tuple(sources)


def draw(rng: random.Random, device: torch.device) -> Case:
    """Draw requests that share no slot, with int32 or int64 tokens, skipped slots, gaps and wrong expectations."""
    num_slots = rng.choice([32, 61])
    torch.manual_seed(rng.randrange(2**31))
    buffer = torch.randint(0, 256, (num_slots, rng.choice([32, 40])), dtype=torch.uint8)
    free = rng.sample(range(1, num_slots), k=num_slots - 1)
    gapless = rng.random() < 0.5
    dtype = rng.choice([torch.int32, torch.int64])
    limit = 2**31 - 1 if dtype == torch.int32 else 2**63 - 1
    offsets, seeds, positions, slots = [0], [], [], []
    for _ in range(rng.randint(1, 5)):
        seed = rng.choice([-1, free.pop()])
        start = rng.randint(0, 1000)
        if seed >= 0:
            buffer.view(torch.int64)[seed, 1] = start - 1
        taken = [free.pop() for _ in range(min(rng.randint(0, 6), max(0, len(free) - 6)))]
        skip = 0.0 if gapless else 0.15
        slots += [-1 if rng.random() < skip else slot for slot in taken]
        positions += [start + i + (rng.random() < skip) for i in range(len(taken))]
        offsets.append(len(slots))
        seeds.append(seed)
    tokens = [rng.randint(0, limit) for _ in slots]
    wrong = rng.choice([0.0, 0.2])

    def ints(values: list[int], as_dtype: torch.dtype = dtype) -> torch.Tensor:
        return torch.tensor(values, dtype=as_dtype, device=device)

    return Case(
        buffer=buffer.to(device),
        offsets=offsets,
        seeds=seeds,
        tokens=ints(tokens),
        positions=ints(positions),
        slots=ints(slots),
        expected_tokens=ints([t ^ (rng.random() < wrong) for t in tokens], torch.int64),
        expected_positions=ints([p + (rng.random() < wrong) for p in positions], torch.int64),
        enable_assert=rng.random() < 0.5,
        gapless=gapless,
        real_kv_sources=draw_sources(rng, num_slots, device),
        real_kv_hash_mode=rng.choice(list(RealKvHashMode)),
        kind=rng.choice(list(CanaryLaunchTag)),
        damage=rng.choice([0.0, 0.05, 0.4]),
        check_tokens=rng.random() < 0.5,
        seed=rng.randrange(2**31),
    )


def same_log(ours: Any, theirs: Any, counts: Counter[str]) -> None:
    """Compare counters and violation rows, these as a set: on a GPU threads append them in any order."""
    for name in ("write_index", "slot_run_counter", "kernel_run_counter"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name)), f"{name} differs"
    rows = int(theirs.write_index)
    assert rows <= theirs.ring.shape[0], "the ring is too small for the case"
    assert sorted(ours.ring.tolist()) == sorted(theirs.ring.tolist()), "violation rows differ"
    counts["violation rows"] += rows


def run(case: Case, device: torch.device, counts: Counter[str]) -> None:
    """Write and verify the case with ours and with SGLang's reference; compare, and check SGLang's invariants."""
    sources = (case.real_kv_sources, _fixtures.clone_real_kv_sources(case.real_kv_sources))
    buffers = (case.buffer.clone(), case.buffer.clone())
    plans = helpers.make_write_plan_pair(
        write_offsets=case.offsets, seed_slot_indices=case.seeds, num_valid_reqs=len(case.seeds), device=device
    )
    flat = {"input_ids": case.tokens, "positions": case.positions, "out_cache_loc": case.slots}
    expected = {"expected_input_tokens": case.expected_tokens, "expected_input_positions": case.expected_positions}
    ours, theirs = run_write_diff(
        buf_pair=buffers,
        plan_pair=plans,
        **flat,
        **expected,
        enable_write_verify_inputs=case.enable_assert,
        real_kv_sources_pair=sources,
        real_kv_hash_mode=case.real_kv_hash_mode,
        kernel_kind=case.kind,
        device=device,
        assert_equal=False,
    )
    helpers.assert_canary_buf_equal(buf_a=buffers[0], buf_b=buffers[1])
    same_log(ours, theirs, counts)
    before = helpers.FakeViolationLog.allocate(device=device)
    if case.gapless:
        WriteInvariants.assert_all(
            canary_buf_before=case.buffer,
            canary_buf_after=buffers[0],
            plan=plans[0],
            **flat,
            **expected,
            enable_write_verify_inputs=case.enable_assert,
            log_before=before,
            log_after=ours,
        )
    counts["writes"] += 1
    counts["slots written"] += int(ours.slot_run_counter)
    _verify(case, buffers, sources, before, device, counts)


def _verify(case: Case, buffers: Any, sources: Any, before: Any, device: torch.device, counts: Counter[str]) -> None:
    """Damage both copies in the same places, and verify what was written."""
    rng = random.Random(case.seed)
    slots, positions, tokens = case.slots.tolist(), case.positions.tolist(), case.tokens.tolist()
    entries = []
    for seed, start, end in zip(case.seeds, case.offsets, case.offsets[1:], strict=False):
        previous = seed
        for i in range(start, end):
            if slots[i] >= 0:
                entries.append((slots[i], positions[i], previous, rng.choice([-1, tokens[i]])))
                previous = slots[i]
    # Slot 0, the padding slot, is skipped, whatever it holds.
    entries.append((0, 3, -1, 5))
    damaged = lambda value: value + 1 if rng.random() < case.damage else value  # noqa: E731
    plan = helpers.make_verify_plan_pair(
        slot_indices=[entry[0] for entry in entries],
        positions=[damaged(entry[1]) for entry in entries],
        prev_slot_indices=[0 if rng.random() < case.damage else entry[2] for entry in entries],
        expected_input_ids=[damaged(entry[3]) if entry[3] < 2**62 else entry[3] for entry in entries],
        capacity=len(entries) + rng.randint(0, 3),
        device=device,
    )
    tensors = [buffers, *zip(*[[source.tensor for source in side] for side in sources], strict=True)]
    for pair in tensors:
        if rng.random() < case.damage:
            row, column = rng.randrange(pair[0].shape[0]), rng.randrange(32 if pair is buffers else pair[0].shape[1])
            for tensor in pair:
                tensor[row, column] ^= 1
    untouched = buffers[0].clone()
    ours, theirs = run_verify_diff(
        buf_pair=buffers,
        plan_pair=plan,
        real_kv_sources_pair=sources,
        real_kv_hash_mode=case.real_kv_hash_mode,
        kernel_kind=case.kind,
        device=device,
        assert_equal=False,
        check_verify_expected_token=case.check_tokens,
    )
    same_log(ours, theirs, counts)
    VerifyInvariants.assert_all(
        canary_buf_before=untouched,
        canary_buf_after=buffers[0],
        log_before=before,
        log_after=ours,
        plan=plan[0],
        kernel_kind=case.kind,
    )
    counts["verifies"] += 1
    counts["slots verified"] += len(entries)


def fuzz(seed: int, rounds: int, device: torch.device, counts: Counter[str]) -> None:
    """Run random writes and verifies."""
    run_fuzz_combo(
        seed,
        draw_fn=lambda rng: draw(rng, device),
        run_one_fn=lambda case: run(case, device, counts),
        summarize_fn=repr,
        n_iter=rounds,
    )


def hand_oracle(seed: int, rounds: int, device: torch.device, counts: Counter[str]) -> None:
    """Compare the K/V fingerprint that a write stores with SGLang's fold in plain Python."""
    rng = random.Random(seed)
    folds = {RealKvHashMode.PARTIAL: _hand_oracle._hand_fold_partial, RealKvHashMode.ALL: _hand_oracle._hand_fold_all}
    for _ in range(rounds):
        mode, fold = rng.choice(list(folds.items()))
        source = _fixtures.make_real_kv_source(num_slots=8, num_bytes_per_token=16 * rng.randint(1, 6), device=device)
        source.tensor.copy_(torch.randint(0, 256, source.tensor.shape, dtype=torch.uint8))
        slot = rng.randrange(1, 8)
        buffers = helpers.make_canary_buf_pair(num_slots=8, device=device)
        one = torch.tensor([slot], dtype=torch.int64, device=device)
        run_write_diff(
            buf_pair=buffers,
            plan_pair=helpers.make_write_plan_pair(
                write_offsets=[0, 1], seed_slot_indices=[-1], num_valid_reqs=1, device=device
            ),
            input_ids=one,
            positions=one,
            out_cache_loc=one,
            expected_input_tokens=one,
            expected_input_positions=one,
            real_kv_sources_pair=((source,), (source,)),
            real_kv_hash_mode=mode,
            device=device,
        )
        stored = helpers.read_slot_fields(canary_buf=buffers[0], slot_idx=slot)[3]
        assert stored == helpers.to_signed_int64(fold(bytes(source.tensor[slot].tolist()))), "K/V fingerprint differs"
        counts["fingerprints by hand"] += 1
