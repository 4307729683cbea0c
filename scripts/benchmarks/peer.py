"""SGLang's own kernels on the same workloads, where they can be had."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.build import Workload


@dataclass(frozen=True)
class Peers:
    """SGLang's launchers by kind of work; empty with the reason in ``missing``."""

    launchers: dict[str, Callable[..., None]]
    missing: str = ""

    def prepare(self, load: Workload) -> Callable[[], None] | None:
        """What runs SGLang's kernel on a workload; its launchers take this project's dataclasses as they are."""
        launch = self.launchers.get(load.case.work)
        if launch is None:
            return None
        if load.case.work == "verify":
            return lambda: launch(context=load.context, plan=load.verify_plan, check_verify_expected_token=False)
        if load.case.work == "write":
            return lambda: launch(context=load.context, plan=load.write_plan, **load.write_arguments)
        return lambda: launch(**load.plan_arguments)


def find_peers() -> Peers:
    """Import SGLang's launchers; its kernels compile when they are first launched, with the CUDA toolkit's nvcc."""
    try:
        from sglang.kernels.ops.kv_canary.plan.api import launch_canary_plan_kernels
        from sglang.kernels.ops.kv_canary.verify import launch_canary_verify_kernel
        from sglang.kernels.ops.kv_canary.write import launch_canary_write_kernel
    except ImportError as error:
        return Peers({}, f"not importable: {error}")
    launchers = {
        "verify": launch_canary_verify_kernel,
        "write": launch_canary_write_kernel,
        "plan": launch_canary_plan_kernels,
    }
    return Peers(launchers)
