"""A launch as the launchers and the prepared launches see it: what to run, on which device, with which arguments.

Each function below gathers the arguments of one launcher of :mod:`canary_numba.launch`, which says what they are, into
a :class:`Work`: the form in which they are checked and in which every engine takes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch

from canary_numba import checks
from canary_numba.engines import engine_for
from canary_numba.tensor_checks import device_of


class Work(NamedTuple):
    """One launch.

    Attributes
    ----------
    name : str
        The engines' function.
    device : torch.device
        Where its tensors are.
    check : callable
        Raises for arguments that are wrong.
    arguments : Mapping of str to Any
        Keyword arguments of both.
    """

    name: str
    device: torch.device
    check: Callable[..., None]
    arguments: Mapping[str, Any]

    def run(self, engine: str) -> None:
        """Check and launch; on CUDA only launch, if one like it was launched before."""
        function = getattr(engine_for(engine, self.device), self.name)
        repeat = getattr(function, "repeat", None)
        if repeat is not None and repeat(self.arguments):
            return
        self.check(**self.arguments)
        function(**self.arguments)

    def prepare(self, engine: str) -> list[Callable[[], None]]:
        """Check, and return what launches when called, as often as it is called."""
        self.check(**self.arguments)
        function = getattr(engine_for(engine, self.device), self.name)
        prepare = getattr(function, "prepare", None)
        if prepare is None:
            return [partial(function, **self.arguments)]
        prepared: list[Callable[[], None]] = prepare(**self.arguments)
        return prepared


def _of_contexts(context: Any) -> tuple[tuple[Any, ...], torch.device]:
    contexts = checks.batch_of(context)
    return contexts, device_of("canary_buf", contexts[0].canary_buf)


def verify_work(*, context: Any, real_kv_hashes: Any, **arguments: Any) -> Work:
    """Of :func:`~canary_numba.launch.launch_canary_verify_kernel`."""
    contexts, device = _of_contexts(context)
    if real_kv_hashes is None:
        real_kv_hashes = (None,) * len(contexts)
    elif isinstance(real_kv_hashes, torch.Tensor):
        real_kv_hashes = (real_kv_hashes,)
    arguments |= {"contexts": contexts, "real_kv_hashes": tuple(real_kv_hashes)}
    return Work("verify", device, checks.check_verify, arguments)


def write_work(*, context: Any, **arguments: Any) -> Work:
    """Of :func:`~canary_numba.launch.launch_canary_write_kernel`."""
    contexts, device = _of_contexts(context)
    arguments["contexts"] = contexts
    return Work("write", device, checks.check_write, arguments)


def plan_work(**arguments: Any) -> Work:
    """Of :func:`~canary_numba.launch.launch_canary_plan_kernels`."""
    device = device_of("req_pool_indices", arguments["req_pool_indices"])
    return Work("plan", device, checks.check_plan_inputs, arguments)


def scatter_work(**arguments: Any) -> Work:
    """Of :func:`~canary_numba.launch.launch_scatter_req_token_ids_kernel`."""
    return Work("scatter", device_of("pool_out", arguments["pool_out"]), checks.check_scatter_inputs, arguments)


def hash_work(**arguments: Any) -> Work:
    """Of :func:`~canary_numba.launch.launch_real_kv_hash_kernel`."""
    device = device_of("hashes_out", arguments["hashes_out"])
    return Work("hash_real_kv", device, checks.check_hash_inputs, arguments)
