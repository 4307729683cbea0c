"""Launches prepared once and repeated many times: what a serving loop or a CUDA graph calls.

Building one of these checks the arguments, compiles and loads the kernel and packs the arguments; a call only queues
it. Tensors are bound by address: refill them in place between calls. Engines other than CUDA just launch anew.
"""

from __future__ import annotations

from typing import Any

import torch

from canary_numba.work import plan_work, verify_work, write_work


class PreparedVerify:
    """A verify launch with its arguments bound; takes those of ``launch_canary_verify_kernel``.

    Raises
    ------
    ArgumentError, ArgumentTypeError, EngineUnavailableError
        As that launcher does, when built; a call raises none of them.

    Notes
    -----
    A call queues one kernel for each two contexts of one layout on torch's current stream, and may be captured into a
    CUDA graph.
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
        real_kv_hashes: Any = None,
    ) -> None:
        work = verify_work(
            context=context,
            plan=plan,
            check_verify_expected_token=check_verify_expected_token,
            aggregate_violations=aggregate_violations,
            zero_init_okay=zero_init_okay,
            real_kv_hashes=real_kv_hashes,
        )
        self._launches = work.prepare(engine)

    def __call__(self) -> None:
        """Queue the launch."""
        for launch in self._launches:
            launch()


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
        work = write_work(
            context=context,
            plan=plan,
            input_ids=input_ids,
            positions=positions,
            out_cache_loc=out_cache_loc,
            enable_write_input_assert=enable_write_input_assert,
            expected_input_tokens=expected_input_tokens,
            expected_input_positions=expected_input_positions,
            aggregate_violations=aggregate_violations,
        )
        self._launches = work.prepare(engine)

    def __call__(self) -> None:
        """Queue the launch."""
        for launch in self._launches:
            launch()


class PreparedPlan:
    """The plan launches with their arguments bound; takes those of ``launch_canary_plan_kernels``.

    Raises and notes as :class:`PreparedVerify`; a call queues two kernels.
    """

    def __init__(self, *, engine: str = "auto", **arguments: Any) -> None:
        self._launches = plan_work(**arguments).prepare(engine)

    def __call__(self) -> None:
        """Queue the launches."""
        for launch in self._launches:
            launch()
