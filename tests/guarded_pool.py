"""A small pool under guard, in any layout, and its first passes: rows 1 and 2 prefill 10 and 5 tokens, then decode."""

from __future__ import annotations

from typing import Any

import torch

from canary_numba.capture.layers import PagedPool
from canary_numba.capture.pool import KVCanary

SLOTS, PAGE, HEADS, DIM = 64, 4, 2, 8


def interleaved(layers: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """K and V of a layer side by side in one storage: rows with gaps."""
    both = [torch.randn((SLOTS, 2, HEADS, DIM)) for _ in range(layers)]
    return [pool[:, 0] for pool in both], [pool[:, 1] for pool in both]


def layers_of(layout: str, layers: int) -> dict[str, Any]:
    if layout == "interleaved slots":
        k, v = interleaved(layers)
        return {"k_layers": k, "v_layers": v}
    if layout == "interleaved pages":
        both = [torch.randn((SLOTS // PAGE, PAGE, 2, HEADS, DIM)) for _ in range(layers)]
        return {"k_layers": [p[:, :, 0] for p in both], "v_layers": [p[:, :, 1] for p in both], "page_size": PAGE}
    shape, more = {
        "slots": ((SLOTS, HEADS, DIM), {}),
        "pages": ((SLOTS // PAGE, PAGE, HEADS, DIM), {"page_size": PAGE}),
        "heads first": ((SLOTS // PAGE, HEADS, PAGE, DIM), {"page_size": PAGE, "slot_axis": 2}),
    }[layout]
    return {
        "k_layers": [torch.randn(shape) for _ in range(layers)],
        "v_layers": [torch.randn(shape) for _ in range(layers)],
        **more,
    }


LAYOUTS = ["slots", "pages", "heads first", "interleaved slots", "interleaved pages"]


def table() -> torch.Tensor:
    rows = torch.zeros((4, 32), dtype=torch.int32)
    rows[1] = torch.arange(1, 33)
    rows[2, :20] = torch.arange(33, 53)
    return rows


def canary(layout: str = "slots", layers: int = 1, **more: Any) -> KVCanary:
    return KVCanary(PagedPool(**layers_of(layout, layers)), table(), **more)


def first_pass(guard: KVCanary, **more: Any) -> Any:
    """Rows 1 and 2 prefill 10 and 5 tokens."""
    rows = guard.req_to_token
    return guard.forward(
        req_pool_indices=[1, 2],
        prefix_lens=[0, 0],
        extend_seq_lens=[10, 5],
        input_ids=torch.arange(15),
        positions=[*range(10), *range(5)],
        out_cache_loc=torch.cat([rows[1, :10], rows[2, :5]]),
        **more,
    )


def decode(guard: KVCanary, step: int, **more: Any) -> Any:
    rows = guard.req_to_token
    return guard.forward(
        req_pool_indices=[1, 2],
        prefix_lens=[10 + step, 5 + step],
        extend_seq_lens=[1, 1],
        input_ids=[7, 8],
        positions=[10 + step, 5 + step],
        out_cache_loc=torch.stack([rows[1, 10 + step], rows[2, 5 + step]]),
        **more,
    )
