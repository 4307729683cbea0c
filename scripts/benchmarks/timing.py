"""Timing on the GPU: device events, a flushed cache, medians; and the ceilings that the medians are held against."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

FLUSH_BYTES = 256 << 20


@dataclass(frozen=True)
class Timing:
    """Median and spread (10th to 90th percentile) in microseconds."""

    median_us: float
    low_us: float
    high_us: float


def _summary(samples: list[float]) -> Timing:
    ordered = sorted(samples)
    last = len(ordered) - 1
    return Timing(statistics.median(ordered), ordered[last // 10], ordered[last - last // 10])


def time_device(work: Callable[[], object], repeats: int = 30, warmups: int = 3, idle: bool = False) -> Timing:
    """Time ``work`` on the device with a cold L2: a buffer larger than it is rewritten before every run.

    ``idle``: start from an idle device, so that what the host takes to launch counts as far as the device waits for
    it. Otherwise the host gets 0.1 ms of head start.
    """
    flush = torch.empty(FLUSH_BYTES // 8, dtype=torch.int64, device="cuda")
    for _ in range(warmups):
        work()
    samples = []
    for i in range(repeats):
        flush.fill_(i)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        if idle:
            torch.cuda.synchronize()
        else:
            # Time the queue spends idle before the launch would count otherwise.
            torch.cuda._sleep(200_000)
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        samples.append(start.elapsed_time(end) * 1000)
    return _summary(samples)


def repeats_within(work: Callable[[], object], seconds: float, most: int = 30) -> int:
    """How often ``work`` runs within a time, from one run of it: 3 at least, ``most`` at most."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return max(3, min(most, int(seconds / (time.perf_counter() - start))))


class Captured:
    """What ``work`` queues, captured into a CUDA graph after one run of it on the capturing stream; a call replays it.

    Keeps ``work`` alive, since the graph refers to its tensors.
    """

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            work()
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, stream=stream):
            work()

    def __call__(self) -> None:
        """Queue the graph."""
        self._graph.replay()


def time_host(work: Callable[[], object], repeats: int = 200) -> Timing:
    """Time what a call costs the host, the device kept idle by synchronising between calls."""
    samples = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        samples.append((time.perf_counter() - start) * 1e6)
    return _summary(samples)


@dataclass(frozen=True)
class Ceilings:
    """Rates of this GPU in this run, bytes per second: a read-only sweep, a copy (both ways), a gather of sectors."""

    read: float
    copy: float
    gather: float


def measure_ceilings() -> Ceilings:
    """Measure the three with kernels that do nothing else."""
    from benchmarks.probes import gather_sectors, read_sweep

    size = 4 << 30
    source = torch.randint(-(2**62), 2**62, (size // 8,), device="cuda")
    read = time_device(lambda: read_sweep(source), 10)
    target = torch.empty_like(source)
    copy = time_device(partial(target.copy_, source), 10)
    sectors = 16 << 20
    order = torch.randperm(source.numel() // 4, device="cuda")[:sectors]
    gather = time_device(lambda: gather_sectors(source, order), 10)
    return Ceilings(
        size / read.median_us * 1e6, 2 * size / copy.median_us * 1e6, sectors * (32 + 8) / gather.median_us * 1e6
    )
