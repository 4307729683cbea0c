"""KV-cache canaries in Numba: kernels that plan, write and verify them, and tools that explain a corrupted cache.

Importing this package loads neither torch nor numba; the first use of a public name loads what that name needs. So the
command line answers ``--help`` at once.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from canary_numba.context import RealKvSource, VerifyOrWriteContext, ViolationAggregate, ViolationLog
    from canary_numba.errors import CanaryError
    from canary_numba.launch import (
        launch_canary_plan_kernels,
        launch_canary_verify_kernel,
        launch_canary_write_kernel,
        launch_real_kv_hash_kernel,
        launch_scatter_req_token_ids_kernel,
    )
    from canary_numba.layout import CANARY_CHAIN_ANCHOR, CanaryLaunchTag, FailReason, RealKvHashMode
    from canary_numba.mixing import splitmix64, splitmix64_mix3
    from canary_numba.plans import VerifyPlan, WritePlan
    from canary_numba.reference import (
        compute_slot_hash,
        launch_canary_plan_kernels_torch_reference,
        launch_canary_verify_kernel_torch_reference,
        launch_canary_write_kernel_torch_reference,
    )

__version__ = "0.1.0"

_MODULE_OF = {
    "CANARY_CHAIN_ANCHOR": "layout",
    "CanaryError": "errors",
    "CanaryLaunchTag": "layout",
    "FailReason": "layout",
    "RealKvHashMode": "layout",
    "RealKvSource": "context",
    "VerifyOrWriteContext": "context",
    "VerifyPlan": "plans",
    "ViolationAggregate": "context",
    "ViolationLog": "context",
    "WritePlan": "plans",
    "compute_slot_hash": "reference",
    "launch_canary_plan_kernels": "launch",
    "launch_canary_plan_kernels_torch_reference": "reference",
    "launch_canary_verify_kernel": "launch",
    "launch_canary_verify_kernel_torch_reference": "reference",
    "launch_canary_write_kernel": "launch",
    "launch_canary_write_kernel_torch_reference": "reference",
    "launch_real_kv_hash_kernel": "launch",
    "launch_scatter_req_token_ids_kernel": "launch",
    "splitmix64": "mixing",
    "splitmix64_mix3": "mixing",
}

__all__ = [
    "CANARY_CHAIN_ANCHOR",
    "CanaryError",
    "CanaryLaunchTag",
    "FailReason",
    "RealKvHashMode",
    "RealKvSource",
    "VerifyOrWriteContext",
    "VerifyPlan",
    "ViolationAggregate",
    "ViolationLog",
    "WritePlan",
    "__version__",
    "compute_slot_hash",
    "launch_canary_plan_kernels",
    "launch_canary_plan_kernels_torch_reference",
    "launch_canary_verify_kernel",
    "launch_canary_verify_kernel_torch_reference",
    "launch_canary_write_kernel",
    "launch_canary_write_kernel_torch_reference",
    "launch_real_kv_hash_kernel",
    "launch_scatter_req_token_ids_kernel",
    "splitmix64",
    "splitmix64_mix3",
]


def __getattr__(name: str) -> Any:
    try:
        module = _MODULE_OF[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    return getattr(import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    return __all__
