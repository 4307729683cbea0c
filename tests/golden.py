"""The shared data: where it is, and the golden files in it as launch arguments."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from canary_numba.context import RealKvSource, VerifyOrWriteContext
from canary_numba.layout import CanaryLaunchTag, RealKvHashMode
from canary_numba.plans import VerifyPlan, WritePlan

Golden = dict[str, Any]

VERIFY_ENTRIES = (
    "verify_slot_indices",
    "verify_expected_tokens",
    "verify_expected_positions",
    "verify_prev_slot_indices",
)
VERIFY_PLAN_FIELDS = (*VERIFY_ENTRIES, "verify_num_valid", "enable")
WRITE_PLAN_FIELDS = ("write_offsets", "write_seed_slot_indices", "write_num_valid_reqs")


def find_shared() -> Path | None:
    """The shared data: folder ``CANARY_SHARED``, else ``shared`` beside the repository or in its ``.carry``."""
    repo = Path(__file__).resolve().parent.parent
    if os.environ.get("CANARY_SHARED"):
        candidates = [Path(os.environ["CANARY_SHARED"])]
    else:
        candidates = [repo.parent / "shared", repo / ".carry" / "shared"]
    return next((path for path in candidates if (path / "golden").is_dir()), None)


def golden_names(prefix: str) -> list[str]:
    """Names of the golden files that start with ``prefix``; none where the shared data is missing."""
    shared = find_shared()
    return [] if shared is None else sorted(path.stem for path in (shared / "golden").glob(f"{prefix}*.pt"))


def load(shared: Path, name: str) -> Golden:
    return torch.load(shared / "golden" / f"{name}.pt", weights_only=True)


def sources_of(golden: Golden, prefix: str = "") -> tuple[RealKvSource, ...]:
    """The real-KV sources; ``prefix`` picks a step's tensor in a pipeline."""
    return tuple(
        RealKvSource(
            tensor=golden[f"{prefix}src{i}_tensor"],
            page_size=golden[f"src{i}_page_size"],
            num_bytes_per_token=golden[f"src{i}_num_bytes_per_token"],
            read_bytes=golden[f"src{i}_read_bytes"],
        )
        for i in range(golden["num_sources"])
    )


def context_of(golden: Golden) -> VerifyOrWriteContext:
    return VerifyOrWriteContext(
        canary_buf=golden["in_canary_buf"],
        kernel_kind=CanaryLaunchTag(golden["kernel_kind"]),
        violation_ring=golden["in_violation_ring"],
        violation_write_index=golden["in_violation_write_index"],
        slot_run_counter=golden["in_slot_run_counter"],
        kernel_run_counter=golden["in_kernel_run_counter"],
        real_kv_sources=sources_of(golden),
        real_kv_hash_mode=RealKvHashMode(golden["real_kv_hash_mode"]),
        enable_chain_position_assert=golden["in_enable_chain_position_assert"],
    )


def verify_plan_of(golden: Golden) -> VerifyPlan:
    return VerifyPlan(**{name: golden[f"in_{name}"] for name in VERIFY_PLAN_FIELDS})


def write_plan_of(golden: Golden) -> WritePlan:
    return WritePlan(**{name: golden[f"in_{name}"] for name in WRITE_PLAN_FIELDS})


def write_inputs_of(golden: Golden) -> dict[str, Any]:
    return {
        "input_ids": golden["in_input_ids"],
        "positions": golden["in_positions"],
        "out_cache_loc": golden["in_out_cache_loc"],
        "enable_write_input_assert": bool(golden["enable_write_input_assert"]),
        "expected_input_tokens": golden.get("in_expected_input_tokens"),
        "expected_input_positions": golden.get("in_expected_input_positions"),
    }


def plan_inputs_of(golden: Golden) -> dict[str, Any]:
    return {
        "req_pool_indices": golden["in_req_pool_indices"],
        "prefix_lens": golden["in_prefix_lens"],
        "extend_seq_lens": golden["in_extend_seq_lens"],
        "req_to_token": golden["in_req_to_token"],
        "swa_window_size": golden["swa_window_size"],
        "full_to_swa_index_mapping": golden.get("in_full_to_swa_index_mapping"),
        "verify_capacity": golden["verify_capacity"],
        "req_to_verify_expected_tokens": golden.get("in_req_to_verify_expected_tokens"),
        "req_to_verify_expected_tokens_valid_lens": golden.get("in_req_to_verify_expected_tokens_valid_lens"),
        "kv_token_id_vs_position_offset": golden["kv_token_id_vs_position_offset"],
    }
