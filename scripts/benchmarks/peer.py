"""SGLang's own kernels on the same workloads, where they can be had."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.build import Workload
from benchmarks.cases import Case
from benchmarks.sglang_wheel import OPERATIONS, make_importable

MAX_PLANNED_REQUESTS = 4096
LAUNCHERS = {
    "verify": ("verify", "launch_canary_verify_kernel"),
    "write": ("write", "launch_canary_write_kernel"),
    "plan": ("plan.api", "launch_canary_plan_kernels"),
}
# What compiles the CUDA part of each launcher, and with which arguments the cases need it.
_COMPILERS: dict[str, tuple[str, str, tuple[bool, ...]]] = {
    "verify": ("verify", "_jit_canary_verify_module", (False,)),
    "write": ("write", "_jit_canary_write_module", ()),
    "plan": ("plan.entries_kernel", "_jit_plan_entries_module", (False, False)),
}


def takes(case: Case) -> bool:
    """Whether SGLang's kernels take a case: plans of up to 4,096 requests, rows that 16-byte loads cover."""
    if case.work in ("plan", "step") and case.requests > MAX_PLANNED_REQUESTS:
        return False
    return case.mode == "none" or all(width % 16 == 0 for width in case.row_bytes)


@dataclass(frozen=True)
class Peers:
    """SGLang's launchers by kind of work; ``about`` says what they are, or why some or all are missing."""

    launchers: dict[str, Callable[..., None]]
    about: str

    def prepare(self, load: Workload) -> Callable[[], None] | None:
        """What runs SGLang's kernel on a workload; its launchers take this project's dataclasses as they are."""
        launch = self.launchers.get(load.case.work)
        if launch is None or not takes(load.case):
            return None
        if load.case.work == "verify":
            return lambda: launch(context=load.context, plan=load.verify_plan, check_verify_expected_token=False)
        if load.case.work == "write":
            return lambda: launch(context=load.context, plan=load.write_plan, **load.write_arguments)
        return lambda: launch(**load.plan_arguments)


def first_line(error: BaseException) -> str:
    """An error as one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _imported(part: str, name: str) -> Any:
    return getattr(importlib.import_module(f"{OPERATIONS}.{part}"), name)


def _compile_all(works: Iterable[str]) -> dict[str, str]:
    """Compile the CUDA part of the launchers side by side; return why it failed, by kind of work."""
    with ThreadPoolExecutor() as pool:
        jobs: dict[str, Future[Any]] = {}
        for work in works:
            part, name, arguments = _COMPILERS[work]
            jobs[work] = pool.submit(_imported(part, name), *arguments)
    errors = {work: job.exception() for work, job in jobs.items()}
    return {work: first_line(error) for work, error in errors.items() if error is not None}


def find_peers(folder: Path | None = None) -> Peers:
    """Import SGLang's launchers; where there is none, say why.

    With ``folder``, the unzipped wheel, they come from its files, and their CUDA parts are compiled here; those that
    cannot be are left out. Otherwise they come from an installed ``sglang``, which compiles at the first launch.
    """
    if folder is not None:
        make_importable(folder)
    try:
        launchers = {work: _imported(*where) for work, where in LAUNCHERS.items()}
        version = importlib.import_module("sglang.version").__version__
    except (ImportError, AttributeError) as error:
        return Peers({}, f"not importable: {error}")
    if folder is None:
        return Peers(launchers, f"{version}, measured here")
    start = time.perf_counter()
    failed = _compile_all(launchers)
    about = [f"{version} from {folder}, compiled in {time.perf_counter() - start:.1f} s, measured here"]
    about += [f"{work} left out, {why}" for work, why in failed.items()]
    return Peers({work: launch for work, launch in launchers.items() if work not in failed}, "; ".join(about))
