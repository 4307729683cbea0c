"""Hypothesis strategies for the tables, lengths and pools that plan and scatter read."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import torch
from hypothesis.strategies import DrawFn, SearchStrategy
from strategies import int32s, int64_tensor, int64s


@st.composite
def tables(draw: DrawFn, cells: SearchStrategy[int]) -> torch.Tensor:
    """An int32 table, possibly empty, possibly with rows further apart than its width."""
    rows, width, gap = draw(st.integers(0, 4)), draw(st.integers(0, 5)), draw(st.sampled_from([0, 0, 3]))
    count = rows * (width + gap)
    numbers = draw(st.lists(cells, min_size=count, max_size=count))
    return torch.tensor(numbers, dtype=torch.int32).view(rows, width + gap)[:, :width]


@st.composite
def plan_cases(draw: DrawFn) -> dict[str, Any]:
    """Arguments of a plan launch, ``write_req_capacity`` among them."""
    bs = draw(st.integers(0, 4))
    table = draw(tables(st.integers(-2, 8) | int32s))

    def per_request(likely: SearchStrategy[int]) -> torch.Tensor:
        return int64_tensor(draw(st.lists(likely | likely | likely | int64s, min_size=bs, max_size=bs)))

    rows, width = table.shape
    mapping = None
    if draw(st.booleans()):
        mapping = int64_tensor(draw(st.lists(st.integers(-1, 9) | int64s, max_size=10)))
    pool = draw(st.none() | tables(int32s))
    return {
        "req_pool_indices": per_request(st.integers(-1, rows)),
        "prefix_lens": per_request(st.integers(-1, width + 2)),
        "extend_seq_lens": per_request(st.integers(-1, 4)),
        "req_to_token": table,
        "swa_window_size": 0 if mapping is None else draw(st.sampled_from([0, 1, 2, 3, 2**40, 2**63 - 1])),
        "full_to_swa_index_mapping": mapping,
        "verify_capacity": draw(st.just(40) | st.integers(1, 12)),
        "req_to_verify_expected_tokens": pool,
        "req_to_verify_expected_tokens_valid_lens": None if pool is None else per_request(st.integers(-1, 7)),
        "kv_token_id_vs_position_offset": draw(st.integers(0, 1)),
        "write_req_capacity": bs + draw(st.integers(0 if bs else 1, 2)),
    }


@st.composite
def scatter_cases(draw: DrawFn) -> dict[str, torch.Tensor]:
    """Arguments of a scatter launch; no row twice, since which of two requests stays is not promised."""
    pool = draw(tables(int32s))
    bs = draw(st.integers(0, 4))
    flat = draw(st.lists(int64s, max_size=12))
    rows = draw(st.lists(st.integers(-1, pool.shape[0]) | int64s, min_size=bs, max_size=bs, unique=True))
    offsets = sorted(draw(st.lists(st.integers(-2, len(flat) + 2), min_size=bs + 1, max_size=bs + 1)))
    for index in draw(st.lists(st.integers(0, bs), max_size=1)):
        offsets[index] = draw(int64s)
    return {
        "flat_in": int64_tensor(flat),
        "offsets": int64_tensor(offsets),
        "req_pool_indices": int64_tensor(rows),
        "pool_out": pool,
    }
