"""The CPU engine: against the torch reference, and with one thread against all."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numba

from benchmarks.build import Workload, build
from benchmarks.cases import Case
from canary_numba import launch_canary_verify_kernel, launch_canary_write_kernel

MODES = {"none": (), "partial": (1024,), "all": (1024,)}


@dataclass(frozen=True)
class CpuRow:
    """Microseconds a token: the torch reference, the CPU engine with one thread and with all."""

    work: str
    mode: str
    reference_us: float
    one_thread_us: float
    all_threads_us: float


def _case(work: str, mode: str, requests: int, length: int) -> Case:
    lengths = {"prefix": length} if work == "verify" else {"extend": length}
    return Case(name=f"{work} {mode}", work=work, requests=requests, row_bytes=MODES[mode], mode=mode, **lengths)


def _launch(load: Workload, engine: str) -> Callable[[], Any]:
    if load.case.work == "verify":
        return lambda: launch_canary_verify_kernel(
            context=load.context, plan=load.verify_plan, check_verify_expected_token=False, engine=engine
        )
    return lambda: launch_canary_write_kernel(
        context=load.context, plan=load.write_plan, **load.write_arguments, engine=engine
    )


def _seconds(work: Callable[[], Any], repeats: int) -> float:
    samples = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        samples.append(time.perf_counter() - start)
    return statistics.median(samples)


def bench_cpu(requests: int = 64, length: int = 1024) -> Iterator[CpuRow]:
    """Time verify and write in every mode; the reference on fewer tokens, since it takes a millisecond for each."""
    threads = numba.get_num_threads()
    tokens = requests * length
    for work in ("verify", "write"):
        for mode in MODES:
            small = build(_case(work, mode, 2, 64), "cpu")
            reference = _seconds(_launch(small, "reference"), 3) / (2 * 64)
            engine = _launch(build(_case(work, mode, requests, length), "cpu"), "cpu")
            engine()
            fast = _seconds(engine, 5) / tokens
            numba.set_num_threads(1)
            slow = _seconds(engine, 5) / tokens
            numba.set_num_threads(threads)
            yield CpuRow(work, mode, reference * 1e6, slow * 1e6, fast * 1e6)
