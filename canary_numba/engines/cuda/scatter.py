"""The scatter kernel: a block copies one request's token ids into its pool row, over a grid-stride loop.

Bytes moved per token: 8 read, 4 written, both coalesced.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from canary_numba.engines.cuda.device import BLOCK_THREADS, cuda, multiprocessors
from canary_numba.engines.cuda.launcher import PreparedLaunch


@cuda.jit
def scatter_req_token_ids_kernel(
    flat_in: Any, offsets: Any, rows: Any, pool: Any, pool_stride: Any, pool_rows: Any, pool_width: Any
) -> None:
    """Copy ``flat_in[offsets[r] + j]`` to row ``rows[r]``, column j of the flat ``pool``, for j < ``pool_width``."""
    request = np.int64(cuda.blockIdx.x)
    while request < rows.shape[0]:
        row = rows[request]
        begin = offsets[request]
        # The difference of garbage offsets may wrap around: an empty range must be told by comparing them.
        if 0 <= row < pool_rows and begin < offsets[request + 1]:
            length = min(offsets[request + 1] - begin, pool_width)
            j = np.int64(cuda.threadIdx.x)
            while j < length:
                source = begin + j
                if 0 <= source < flat_in.shape[0]:
                    pool[row * pool_stride + j] = np.int32(flat_in[source])
                j += np.int64(cuda.blockDim.x)
        request += np.int64(cuda.gridDim.x)


def flat_table(table: torch.Tensor) -> tuple[torch.Tensor, np.int64, np.int64, np.int64]:
    """An int32 ``[rows, width]`` table as (flat elements, row stride, rows, width), sharing its memory."""
    rows, width = table.shape
    stride = table.stride(0) if rows > 1 else width
    total = (rows - 1) * stride + width if rows and width else 0
    flat = table.as_strided((total,), (1,), table.storage_offset())
    return flat, np.int64(stride), np.int64(rows), np.int64(width)


def scatter(
    *, flat_in: torch.Tensor, offsets: torch.Tensor, req_pool_indices: torch.Tensor, pool_out: torch.Tensor
) -> None:
    """Run :func:`canary_numba.launch.launch_scatter_req_token_ids_kernel` on CUDA."""
    device = pool_out.device
    blocks = max(1, min(req_pool_indices.shape[0], multiprocessors(device) * 16))
    arguments = [flat_in, offsets, req_pool_indices, *flat_table(pool_out)]
    PreparedLaunch(scatter_req_token_ids_kernel, blocks, BLOCK_THREADS, device, arguments)()
