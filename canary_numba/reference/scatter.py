"""Filling the expected-token pool in torch: request by request, so that of a row given twice the later one stays."""

from __future__ import annotations

import torch


def scatter(
    *, flat_in: torch.Tensor, offsets: torch.Tensor, req_pool_indices: torch.Tensor, pool_out: torch.Tensor
) -> None:
    """Run :func:`canary_numba.launch.launch_scatter_req_token_ids_kernel` in torch."""
    rows, width = pool_out.shape
    bounds = offsets.tolist()
    for request, row in enumerate(req_pool_indices.tolist()):
        if not 0 <= row < rows:
            continue
        start = bounds[request]
        # Only what flat_in holds: a range may begin before it or end past it.
        begin = max(start, 0)
        end = min(bounds[request + 1], start + width, flat_in.shape[0])
        if begin < end:
            pool_out[row, begin - start : end - start] = flat_in[begin:end].to(torch.int32)
