"""Stamp a small paged K/V pool on the CPU, damage it in two ways, and print what verifying it finds.

Run it with ``python examples/live_pool.py``; it needs no GPU and no dump.
"""

from __future__ import annotations

import torch

import canary_numba as cn
from canary_numba.context import VerifyOrWriteContext
from canary_numba.violations import decode_row

PAGE_SIZE, NUM_PAGES, BYTES_PER_TOKEN = 4, 8, 32
NAMES, LENGTHS = ("request a", "request b"), torch.tensor([6, 5])
ROWS = torch.tensor([1, 2])  # rows of the table; row 0 is padding


def plan(
    table: torch.Tensor, prefix_lens: torch.Tensor, extend_seq_lens: torch.Tensor
) -> tuple[cn.VerifyPlan, cn.WritePlan]:
    """Plan what is cached (to verify) and what is new (to write)."""
    capacity = 64
    verify_plan = cn.VerifyPlan.allocate(verify_capacity=capacity, device="cpu")
    write_plan = cn.WritePlan.allocate(write_req_capacity=len(ROWS), device="cpu")
    cn.launch_canary_plan_kernels(
        verify_plan_out=verify_plan,
        write_plan_out=write_plan,
        req_pool_indices=ROWS,
        prefix_lens=prefix_lens,
        extend_seq_lens=extend_seq_lens,
        req_to_token=table,
        swa_window_size=0,
        full_to_swa_index_mapping=None,
        verify_capacity=capacity,
        req_to_verify_expected_tokens=None,
        req_to_verify_expected_tokens_valid_lens=None,
        kv_token_id_vs_position_offset=0,
    )
    return verify_plan, write_plan


def verify(title: str, context: VerifyOrWriteContext, log: cn.ViolationLog, table: torch.Tensor) -> None:
    """Verify every cached token and print each row that the launch reports."""
    log.violation_write_index.zero_()
    verify_plan, _ = plan(table, LENGTHS, torch.zeros_like(LENGTHS))
    cn.launch_canary_verify_kernel(context=context, plan=verify_plan, check_verify_expected_token=False)
    print(f"{title}: {int(log.violation_write_index)} of {int(verify_plan.verify_num_valid)} records violated")
    for violation in sorted(map(decode_row, log.rows().tolist()), key=lambda violation: violation.order):
        owners = [
            f"{name} position {position}"
            for name, row, length in zip(NAMES, ROWS.tolist(), LENGTHS.tolist(), strict=True)
            for position in range(length)
            if int(table[row, position]) == violation.slot
        ]
        print(f"  slot {violation.slot} ({', '.join(owners)}): {', '.join(violation.reasons)}")


def main() -> None:
    """Write two requests, verify them, flip one byte of K, give one slot to both requests, and verify after each."""
    keys = torch.randint(0, 256, (NUM_PAGES, PAGE_SIZE * BYTES_PER_TOKEN), dtype=torch.uint8)
    source = cn.RealKvSource(
        tensor=keys, page_size=PAGE_SIZE, num_bytes_per_token=BYTES_PER_TOKEN, read_bytes=BYTES_PER_TOKEN
    )
    log = cn.ViolationLog.allocate(ring_capacity=16, device="cpu")
    context = log.context(
        canary_buf=torch.zeros((NUM_PAGES * PAGE_SIZE, 32), dtype=torch.uint8),
        kernel_kind=cn.CanaryLaunchTag.HEAD_K_FULL,
        real_kv_sources=(source,),
        real_kv_hash_mode=cn.RealKvHashMode.ALL,
    )
    # Pages 1 and 2 belong to request a, pages 3 and 4 to request b; slot 0 is padding, so page 0 stays free.
    table = torch.zeros((3, 2 * PAGE_SIZE), dtype=torch.int32)
    table[1] = torch.arange(1 * PAGE_SIZE, 3 * PAGE_SIZE)
    table[2] = torch.arange(3 * PAGE_SIZE, 5 * PAGE_SIZE)

    _, write_plan = plan(table, torch.zeros_like(LENGTHS), LENGTHS)
    cn.launch_canary_write_kernel(
        context=context,
        plan=write_plan,
        input_ids=torch.arange(100, 100 + int(LENGTHS.sum())),
        positions=torch.cat([torch.arange(int(length)) for length in LENGTHS]),
        out_cache_loc=torch.cat([table[row, :length] for row, length in zip(ROWS, LENGTHS, strict=True)]),
        enable_write_input_assert=False,
        expected_input_tokens=None,
        expected_input_positions=None,
    )
    verify("as written", context, log, table)

    slot = int(table[1, 2])
    keys[slot // PAGE_SIZE, slot % PAGE_SIZE * BYTES_PER_TOKEN] ^= 1
    verify("one bit of K flipped", context, log, table)

    table[2, 1] = table[1, 4]
    verify("one slot given to both requests", context, log, table)


if __name__ == "__main__":
    main()
