"""Compare this project with SGLang 0.5.23's own torch reference on random inputs; opt-in, not part of CI.

Needs the files of `pip install --no-deps --target FOLDER sglang==0.5.23` and `triton`; run with `FOLDER` as argument.
SGLang's package initialisers import a whole server, so only the reference modules are loaded, from their files.
"""

from __future__ import annotations

import importlib
import random
from pathlib import Path
from typing import Any

import click
import torch
from benchmarks.sglang_wheel import OPERATIONS, make_importable

from canary_numba import launch
from canary_numba.context import RealKvSource, ViolationLog
from canary_numba.layout import CanaryLaunchTag, RealKvHashMode
from canary_numba.plans import VerifyPlan, WritePlan


def load_sglang(folder: Path) -> dict[str, Any]:
    """Import SGLang's reference launchers and dataclasses."""
    make_importable(folder)
    parts = ("verify_ref", "write_ref", "plan_ref", "verify", "write")
    return {part: importlib.import_module(f"{OPERATIONS}.{part}") for part in parts}


def _scenario(rng: random.Random) -> dict[str, Any]:
    """A pool with one source, a table, lengths, and token arrays whose requests share no slot they write."""
    bs, width = rng.randint(1, 6), rng.randint(4, 24)
    slots = torch.randperm(bs * width, generator=torch.Generator().manual_seed(rng.randrange(2**31))) + 1
    table = torch.zeros((bs + 1, width), dtype=torch.int32)
    table[1:] = slots.view(bs, width).to(torch.int32)
    prefix = torch.tensor([rng.randint(0, width - 1) for _ in range(bs)])
    extend = torch.tensor([rng.randint(0, width - int(p)) for p in prefix])
    rows = torch.arange(1, bs + 1)
    flat = [(r, p) for r in range(bs) for p in range(int(prefix[r]), int(prefix[r] + extend[r]))]
    positions = torch.tensor([p + (rng.random() < 0.1) for _, p in flat], dtype=torch.int64)
    located = torch.tensor([int(table[r + 1, p]) for r, p in flat], dtype=torch.int64)
    located[torch.rand(len(flat)) < 0.1] = -1
    return {
        "rows": rows,
        "prefix": prefix,
        "extend": extend,
        "table": table,
        "tokens": torch.randint(-(2**63), 2**63 - 1, (len(flat),)),
        "positions": positions,
        "slots": located,
        "buf": torch.randint(0, 256, (bs * width + 1, 32), dtype=torch.uint8),
        "memory": torch.randint(0, 256, (bs * width + 1, 48), dtype=torch.uint8),
        "mode": rng.choice(list(RealKvHashMode)),
        "pool": torch.randint(0, 9, (bs + 1, width), dtype=torch.int32),
        "valid": torch.tensor([rng.randint(0, width) for _ in range(bs)]),
        "offset": rng.randint(0, 1),
        "check": rng.random() < 0.5,
        "capacity": rng.choice([bs * width, rng.randint(1, bs * width)]),
    }


def _run(scenario: dict[str, Any], plan: Any, write: Any, verify: Any, classes: dict[str, Any]) -> dict[str, Any]:
    """Plan, write and verify a copy of the scenario; return everything that was left."""
    own = {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in scenario.items()}
    log = ViolationLog.allocate(ring_capacity=512, device="cpu")
    log.enable_chain_position_assert.fill_(1)
    source = classes["source"](tensor=own["memory"], page_size=1, num_bytes_per_token=48, read_bytes=32)
    context = log.context(
        canary_buf=own["buf"],
        kernel_kind=CanaryLaunchTag.TAIL_K_FULL,
        real_kv_sources=(source,),
        real_kv_hash_mode=own["mode"],
    )
    bs = own["rows"].shape[0]
    verify_plan = classes["verify_plan"].allocate(verify_capacity=own["capacity"], device=torch.device("cpu"))
    write_plan = classes["write_plan"].allocate(write_req_capacity=bs, device=torch.device("cpu"))
    verify_plan.zero_for_testing_()
    plan(
        verify_plan_out=verify_plan,
        write_plan_out=write_plan,
        req_pool_indices=own["rows"],
        prefix_lens=own["prefix"],
        extend_seq_lens=own["extend"],
        req_to_token=own["table"],
        swa_window_size=0,
        full_to_swa_index_mapping=None,
        verify_capacity=own["capacity"],
        req_to_verify_expected_tokens=own["pool"],
        req_to_verify_expected_tokens_valid_lens=own["valid"],
        kv_token_id_vs_position_offset=own["offset"],
    )
    write(
        context=context,
        plan=write_plan,
        input_ids=own["tokens"],
        positions=own["positions"],
        out_cache_loc=own["slots"],
        enable_write_input_assert=False,
        expected_input_tokens=None,
        expected_input_positions=None,
    )
    verify(context=context, plan=verify_plan, check_verify_expected_token=own["check"])
    return {
        "buffer": own["buf"].tolist(),
        "rows": sorted(log.rows().tolist()),
        "index": int(log.violation_write_index),
        "counters": (int(log.slot_run_counter), int(log.kernel_run_counter)),
        "slots": verify_plan.verify_slot_indices.tolist(),
        "tokens": verify_plan.verify_expected_tokens.tolist(),
        "prevs": verify_plan.verify_prev_slot_indices.tolist(),
        "valid": (int(verify_plan.verify_num_valid), int(verify_plan.enable)),
        "offsets": write_plan.write_offsets.tolist(),
        "seeds": write_plan.write_seed_slot_indices.tolist(),
    }


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--rounds", default=300, show_default=True, help="Random scenarios.")
@click.option("--seed", default=0, show_default=True, help="Seed of the first.")
def main(folder: Path, rounds: int, seed: int) -> None:
    """Run random scenarios through SGLang's reference in FOLDER and through ours; exit 1 on a difference."""
    theirs = load_sglang(folder)
    classes = {
        "source": theirs["verify"].RealKvSource,
        "verify_plan": theirs["verify"].VerifyPlan,
        "write_plan": theirs["write"].WritePlan,
    }
    ours = {"source": RealKvSource, "verify_plan": VerifyPlan, "write_plan": WritePlan}
    rows = 0
    for i in range(rounds):
        torch.manual_seed(seed + i)
        scenario = _scenario(random.Random(seed + i))
        expected = _run(
            scenario,
            theirs["plan_ref"].launch_canary_plan_kernels_torch_reference,
            theirs["write_ref"].launch_canary_write_kernel_torch_reference,
            theirs["verify_ref"].launch_canary_verify_kernel_torch_reference,
            classes,
        )
        rows += len(expected["rows"])
        for engine in ("cpu", "reference"):
            for dataclasses in (ours, classes):
                got = _run(
                    scenario,
                    lambda engine=engine, **k: launch.launch_canary_plan_kernels(**k, engine=engine),
                    lambda engine=engine, **k: launch.launch_canary_write_kernel(**k, engine=engine),
                    lambda engine=engine, **k: launch.launch_canary_verify_kernel(**k, engine=engine),
                    dataclasses,
                )
                for key, value in expected.items():
                    if got[key] != value:
                        raise click.ClickException(f"seed {seed + i}, engine {engine}: {key} differs")
    click.echo(f"{rounds} scenarios, {rows} violation rows: equal on cpu and reference, with either's dataclasses")


if __name__ == "__main__":
    main()
