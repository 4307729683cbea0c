"""Kernels that measure what memory gives: a sweep that only reads, and a gather of single 32-byte sectors."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch

from canary_numba.engines.cuda.device import cuda, load_pair
from canary_numba.engines.cuda.launcher import PreparedLaunch

_PAIRS = 8
_THREADS = 256
_STEP = np.uint64(2 * _PAIRS * _THREADS)
_LANE_STEP = np.uint64(2 * _THREADS)
_TWO = np.uint64(2)


@cuda.jit
def _read_kernel(data, sink):
    at = np.uint64(cuda.blockIdx.x) * _STEP + np.uint64(cuda.threadIdx.x) * _TWO
    end = np.uint64(data.shape[0])
    step = np.uint64(cuda.gridDim.x) * _STEP
    acc = np.uint64(0)
    while at < end:
        for i in range(_PAIRS):
            first, second = load_pair(data, at + np.uint64(i) * _LANE_STEP)
            acc ^= first ^ second
        at += step
    if acc == np.uint64(1):
        sink[0] = acc


@cuda.jit
def _gather_kernel(data, order, sink):
    i = np.int64(cuda.grid(1))
    step = np.int64(cuda.gridsize(1))
    acc = np.uint64(0)
    while i < order.shape[0]:
        first, second = load_pair(data, np.uint64(order[i]) << _TWO)
        acc ^= first ^ second
        i += step
    if acc == np.uint64(1):
        sink[0] = acc


@lru_cache(maxsize=4)
def _sink(device: torch.device) -> torch.Tensor:
    return torch.empty(1, dtype=torch.int64, device=device).view(torch.uint64)


@lru_cache(maxsize=8)
def _prepared(kernel: object, *arguments: object) -> PreparedLaunch:
    words = arguments[0].view(torch.uint64).view(-1)
    blocks = 132 * 32
    return PreparedLaunch(kernel, blocks, _THREADS, words.device, [words, *arguments[1:], _sink(words.device)])


def read_sweep(data: torch.Tensor) -> None:
    """Read every word of ``data`` (int64, a multiple of 32 KiB long) once."""
    _prepared(_read_kernel, data)()


def gather_sectors(data: torch.Tensor, order: torch.Tensor) -> None:
    """Read 16 bytes of each 32-byte sector listed in ``order`` (int64)."""
    _prepared(_gather_kernel, data, order)()
