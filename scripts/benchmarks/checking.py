"""Comparing what the GPU left with what the CPU engine or another kernel leaves, bit for bit, inside the benchmark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any

import torch

from benchmarks.build import Workload
from canary_numba import (
    VerifyOrWriteContext,
    launch_canary_plan_kernels,
    launch_canary_verify_kernel,
    launch_canary_write_kernel,
)


def to_cpu(value: Any) -> Any:
    """Copy tensors, and dataclasses, tuples and dicts of them, to the CPU."""
    if isinstance(value, torch.Tensor):
        return value.to("cpu", copy=True)
    if isinstance(value, tuple):
        return tuple(to_cpu(item) for item in value)
    if isinstance(value, dict):
        return {key: to_cpu(item) for key, item in value.items()}
    if hasattr(value, "__dataclass_fields__"):
        return replace(value, **{field.name: to_cpu(getattr(value, field.name)) for field in fields(value)})
    return value


def _require(equal: bool, what: str) -> None:
    if not equal:
        raise AssertionError(f"{what} differs between cuda and cpu")


def sorted_rows(context: VerifyOrWriteContext) -> list[list[int]]:
    """Return the rows of the context's ring in an order that does not depend on who came first."""
    kept = min(int(context.violation_write_index), context.violation_ring.shape[0])
    return sorted(context.violation_ring[:kept].tolist())


@contextmanager
def _damaged(load: Workload) -> Iterator[None]:
    """Damage a few records; afterwards mend them and empty the ring."""
    buf = load.context.canary_buf
    slots = load.verify_plan.verify_slot_indices[:: max(1, load.case.verified // 50)]
    saved = buf[slots].clone()
    buf[slots, 3] ^= 1
    buf[slots, 25] ^= 4
    try:
        yield
    finally:
        buf[slots] = saved
        load.log.violation_write_index.zero_()


def check_verify(load: Workload, prepared: Callable[[], None]) -> str:
    """Damage a few records, verify on both, compare the rows; then mend them."""
    _require(int(load.log.violation_write_index) == 0, "a clean cache: the number of rows")
    with _damaged(load):
        cpu_context, cpu_plan = to_cpu(load.context), to_cpu(load.verify_plan)
        launch_canary_verify_kernel(context=cpu_context, plan=cpu_plan, check_verify_expected_token=False)
        prepared()
        _require(sorted_rows(load.context) == sorted_rows(cpu_context), "the rows of a damaged cache")
        rows = int(load.log.violation_write_index)
    return f"{rows} rows"


def check_write(load: Workload, prepared: Callable[[], None]) -> str:
    """Write on both from the same records, compare the buffers."""
    buf = load.context.canary_buf
    before = to_cpu(load.context)
    written = load.write_arguments["out_cache_loc"].cpu()
    before.canary_buf[written] = 0
    launch_canary_write_kernel(context=before, plan=to_cpu(load.write_plan), **to_cpu(load.write_arguments))
    buf[load.write_arguments["out_cache_loc"]] = 0
    prepared()
    _require(torch.equal(buf.cpu(), before.canary_buf), "the buffer")
    return "equal"


def check_plan(load: Workload, prepared: Callable[[], None]) -> str:
    """Plan on both, compare every array."""
    cpu = to_cpu(load.plan_arguments)
    for plan in (cpu["verify_plan_out"], cpu["write_plan_out"]):
        plan.zero_for_testing_()
    launch_canary_plan_kernels(**cpu)
    for out in ("verify_plan_out", "write_plan_out"):
        for field in fields(cpu[out]):
            got = getattr(load.plan_arguments[out], field.name).cpu()
            _require(torch.equal(got, getattr(cpu[out], field.name)), f"{out}.{field.name}")
    return "equal"


def _outputs(load: Workload, work: Callable[[], None]) -> list[Any]:
    """What one run of ``work`` leaves, starting from blank outputs."""
    if load.case.work == "verify":
        with _damaged(load):
            work()
            return [sorted_rows(load.context)]
    if load.case.work == "write":
        load.context.canary_buf[load.write_arguments["out_cache_loc"]] = 0
        work()
        return [load.context.canary_buf.clone()]
    plans = (load.verify_plan, load.write_plan)
    for plan in plans:
        plan.zero_for_testing_()
    work()
    return [getattr(plan, field.name).clone() for plan in plans for field in fields(plan)]


def same_outputs(load: Workload, ours: Callable[[], None], peer: Callable[[], None]) -> bool:
    """Whether two kernels leave the same records, ring rows or plans; the workload is left as it was."""
    pairs = zip(_outputs(load, ours), _outputs(load, peer), strict=True)
    return all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in pairs)
