"""Launches prepared once and repeated many times: what a serving loop or a CUDA graph calls.

Building one of these checks the arguments, compiles and loads the kernel and packs the arguments; a call only queues
it. Tensors are bound by address: refill them in place between calls. Engines other than CUDA just launch anew.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from canary_numba import checks, launch
from canary_numba.engines import resolve_engine


def _on_cuda(engine: str, device: torch.device) -> bool:
    return resolve_engine(engine, device) in ("cuda", "simulator")


class PreparedVerify:
    """A verify launch with its arguments bound; takes those of ``launch_canary_verify_kernel``.

    Raises
    ------
    ArgumentError, ArgumentTypeError, EngineUnavailableError
        As that launcher does, when built; a call raises none of them.

    Notes
    -----
    A call queues one kernel on torch's current stream and may be captured into a CUDA graph.
    """

    def __init__(
        self,
        *,
        context: Any,
        plan: Any,
        check_verify_expected_token: bool,
        engine: str = "auto",
        aggregate_violations: Any = None,
        zero_init_okay: bool = False,
        real_kv_hashes: torch.Tensor | None = None,
    ) -> None:
        arguments = {
            "context": context,
            "plan": plan,
            "check_verify_expected_token": check_verify_expected_token,
            "aggregate_violations": aggregate_violations,
            "zero_init_okay": zero_init_okay,
            "real_kv_hashes": real_kv_hashes,
        }
        checks.check_verify(
            context=context, plan=plan, aggregate_violations=aggregate_violations, real_kv_hashes=real_kv_hashes
        )
        self._call: Callable[[], None]
        if _on_cuda(engine, context.canary_buf.device):
            from canary_numba.engines.cuda.verify import prepare_verify

            self._call = prepare_verify(**arguments)
        else:
            self._call = partial(launch.launch_canary_verify_kernel, **arguments, engine=engine)

    def __call__(self) -> None:
        """Queue the launch."""
        self._call()


class PreparedWrite:
    """A write launch with its arguments bound; takes those of ``launch_canary_write_kernel``.

    Raises and notes as :class:`PreparedVerify`.
    """

    def __init__(
        self,
        *,
        context: Any,
        plan: Any,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        out_cache_loc: torch.Tensor,
        enable_write_input_assert: bool,
        expected_input_tokens: torch.Tensor | None,
        expected_input_positions: torch.Tensor | None,
        engine: str = "auto",
        aggregate_violations: Any = None,
    ) -> None:
        flat: dict[str, Any] = {
            "input_ids": input_ids,
            "positions": positions,
            "out_cache_loc": out_cache_loc,
            "expected_input_tokens": expected_input_tokens,
            "expected_input_positions": expected_input_positions,
        }
        bound = {"context": context, "plan": plan, "aggregate_violations": aggregate_violations}
        checks.check_write(enable_write_input_assert=enable_write_input_assert, **bound, **flat)
        self._call: Callable[[], None]
        if _on_cuda(engine, context.canary_buf.device):
            from canary_numba.engines.cuda.write import prepare_write

            self._call = prepare_write(**bound, **flat)
        else:
            self._call = partial(
                launch.launch_canary_write_kernel,
                **bound,
                **flat,
                enable_write_input_assert=enable_write_input_assert,
                engine=engine,
            )

    def __call__(self) -> None:
        """Queue the launch."""
        self._call()


class PreparedPlan:
    """The plan launches with their arguments bound; takes those of ``launch_canary_plan_kernels``.

    Raises and notes as :class:`PreparedVerify`; a call queues two kernels.
    """

    def __init__(self, *, engine: str = "auto", **arguments: Any) -> None:
        checks.check_plan_inputs(**arguments)
        self._call: Callable[[], None]
        if _on_cuda(engine, arguments["req_pool_indices"].device):
            from canary_numba.engines.cuda.plan import prepare_plan

            self._call = prepare_plan(**{name: arg for name, arg in arguments.items() if name != "verify_capacity"})
        else:
            self._call = partial(launch.launch_canary_plan_kernels, **arguments, engine=engine)

    def __call__(self) -> None:
        """Queue the launches."""
        self._call()
