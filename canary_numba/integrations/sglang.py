"""SGLang 0.5.23 runs its KV-canary on this package's kernels: plan, write, verify and scatter.

SGLang's modules take the launchers from each other by ``from ... import``, so each holds a name of its own for them.
:func:`install` replaces every such name, in the modules that define the launchers and in all that have imported them:
``sglang.kernels.ops.kv_canary.*``, ``sglang.srt.kv_canary.endpoint``, ``sglang.srt.kv_canary.runner.kernel_launcher``
and ``sglang.srt.kv_canary.req_to_expected_token_ids_manager``. Modules that are imported later find the replacement
where they look for the original. SGLang's functions that launch a stage are wrapped, so that K and V go in one launch
(:mod:`canary_numba.integrations.sglang_stage`).
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import logging
import os
import sys
from collections.abc import Callable, Mapping
from types import ModuleType, TracebackType
from typing import Any, Final

import torch

from canary_numba import launch
from canary_numba.errors import ArgumentError, ArgumentTypeError, EngineUnavailableError, IntegrationError
from canary_numba.integrations import sglang_stage

logger = logging.getLogger("canary_numba.integrations")

VERSION: Final = "0.5.23"
SWITCH: Final = "CANARY_NUMBA_SGLANG"
"""Environment variable that :func:`plugin` obeys."""

PLAN_REQUESTS: Final = 4096
SCATTER_REQUESTS: Final = 511
"""Requests that one launch of SGLang's own kernels takes."""

_OPS = "sglang.kernels.ops.kv_canary"
_PLAN, _SCATTER = "launch_canary_plan_kernels", "launch_scatter_req_token_ids_kernel"
_HOMES = {
    _PLAN: f"{_OPS}.plan.api",
    "launch_canary_write_kernel": f"{_OPS}.write",
    "launch_canary_verify_kernel": f"{_OPS}.verify",
    _SCATTER: f"{_OPS}.scatter_req_token_ids",
}
_PLAN_INTEGERS = (
    "req_pool_indices",
    "prefix_lens",
    "extend_seq_lens",
    "full_to_swa_index_mapping",
    "req_to_verify_expected_tokens_valid_lens",
)

Launcher = Callable[..., None]


def install(*, force: bool = False) -> Installed:
    """Replace SGLang's launchers by this package's, wherever its modules hold them.

    Parameters
    ----------
    force
        Go on with another version of SGLang, if its launchers are where they were and take the same arguments.

    Returns
    -------
    Installed
        Its ``uninstall()`` puts SGLang's launchers back. Installing again returns the same object.

    Raises
    ------
    IntegrationError
        SGLang is not installed, of another version, or of one whose launchers differ. Nothing was replaced.
    EngineUnavailableError
        There is a GPU, and numba-cuda is not installed. Nothing was replaced.

    Notes
    -----
    Call it in the process whose canary it should run in, before SGLang captures CUDA graphs: a captured graph goes on
    replaying the kernels it was captured with. Creates no CUDA context.

    What SGLang refuses stays refused, in its words, its limits included: arguments that this package does not take go
    to SGLang's own launcher, which raises its error. Should it accept them, it runs, and a warning says so, once.
    """
    global _installed
    if _installed is not None:
        return _installed
    version = _version()
    if version != VERSION and not force:
        raise IntegrationError(f"SGLang: expected version {VERSION}, got {version}; force=True tries it all the same")
    if torch.cuda.is_available() and importlib.util.find_spec("numba_cuda") is None:
        raise EngineUnavailableError("engine cuda: numba-cuda is missing: pip install canary-numba[cu13] or [cu12]")
    launchers = {name: _original(name, home) for name, home in _HOMES.items()}
    pairs = {name: (theirs, _replacement(name, theirs)) for name, theirs in launchers.items()}
    pairs |= {name: (theirs, sglang_stage.gathering(theirs)) for name, theirs in _stages().items()}
    installed = Installed(pairs)
    logger.info("SGLang %s: its KV-canary runs on canary-numba (%s)", version, ", ".join(installed.bindings))
    _installed = installed
    return installed


def plugin() -> None:
    """Install if the environment asks for it: the entry point by which SGLang calls this in each of its processes.

    ``CANARY_NUMBA_SGLANG=1`` installs, ``force`` does so whatever the version; unset or ``0`` nothing happens.

    Raises
    ------
    IntegrationError, EngineUnavailableError
        As :func:`install`. SGLang logs it and serves with its own kernels.
    """
    wanted = os.environ.get(SWITCH, "0")
    if wanted not in ("", "0"):
        install(force=wanted == "force")


class Installed:
    """SGLang's launchers, replaced. A context manager that puts them back.

    Attributes
    ----------
    bindings : tuple of str
        The names that were replaced when it was installed, as ``module.name``.
    """

    def __init__(self, pairs: Mapping[str, tuple[Launcher, Launcher]]) -> None:
        self._pairs = dict(pairs)
        self.bindings = tuple(
            binding for name, (theirs, ours) in self._pairs.items() for binding in _rebind(name, theirs, ours)
        )

    def uninstall(self) -> None:
        """Put SGLang's launchers back, also in modules that were imported since. Once is enough."""
        global _installed
        for name, (theirs, ours) in self._pairs.items():
            _rebind(name, ours, theirs)
        if _installed is self:
            _installed = None

    def __enter__(self) -> Installed:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.uninstall()


_installed: Installed | None = None


def _version() -> str:
    try:
        return str(importlib.import_module("sglang.version").__version__)
    except ImportError as error:
        raise IntegrationError(f"SGLang {VERSION} is not installed ({error})") from error


def _original(name: str, home: str) -> Launcher:
    """Find one of SGLang's launchers, and make sure that it takes what ours does."""
    try:
        theirs: Launcher = getattr(importlib.import_module(home), name)
    except (ImportError, AttributeError) as error:
        raise IntegrationError(f"SGLang: expected {name} in {home}, got none ({error})") from error
    own = inspect.signature(getattr(launch, name)).parameters.values()
    expected = [parameter.name for parameter in own if parameter.default is inspect.Parameter.empty]
    got = list(inspect.signature(theirs).parameters)
    if sorted(got) != sorted(expected):
        raise IntegrationError(f"SGLang's {name}: expected the arguments {', '.join(expected)}, got {', '.join(got)}")
    return theirs


def _stages() -> dict[str, Launcher]:
    """SGLang's functions that launch a stage; none where its runtime is not there."""
    try:
        home = importlib.import_module(sglang_stage.STAGES_HOME)
    except ImportError as error:
        logger.debug("SGLang's runtime is not importable (%s): each half is launched on its own", error)
        return {}
    return {name: getattr(home, name) for name in sglang_stage.STAGES if hasattr(home, name)}


def _rebind(name: str, old: Launcher, new: Launcher) -> list[str]:
    """Let every name for ``old`` in SGLang's modules stand for ``new``; return these names."""
    changed = []
    for module_name, module in list(sys.modules.items()):
        ours_to_change = isinstance(module, ModuleType) and module_name.partition(".")[0] == "sglang"
        if ours_to_change and vars(module).get(name) is old:
            setattr(module, name, new)
            changed.append(f"{module_name}.{name}")
    return changed


def _replacement(name: str, theirs: Launcher) -> Launcher:
    ours: Launcher = getattr(launch, name)
    warned = False

    def together(arguments: dict[str, Any]) -> bool:
        return _run(name, ours, arguments) is None

    def alone(arguments: dict[str, Any]) -> None:
        nonlocal warned
        refusal = _run(name, ours, arguments)
        if refusal is None:
            return
        theirs(**arguments)
        if not warned:
            warned = True
            logger.warning("%s: SGLang's own kernel ran, and will for launches like this one: %s", name, refusal)

    @functools.wraps(theirs)
    def launcher(**arguments: Any) -> None:
        held_back = "context" in arguments and sglang_stage.hold(
            sglang_stage.Held(name, arguments, together=together, alone=alone)
        )
        if not held_back:
            alone(arguments)

    return launcher


def _run(name: str, ours: Launcher, arguments: dict[str, Any]) -> str | None:
    """Launch ours; return why not, if it was not launched."""
    if _over_limit(name, arguments):
        return "more requests than SGLang takes"
    try:
        ours(**(_widened(arguments) if name == _PLAN else arguments))
    except (ArgumentError, ArgumentTypeError) as error:
        return str(error)
    return None


def _over_limit(name: str, arguments: Mapping[str, Any]) -> bool:
    if name not in (_PLAN, _SCATTER):
        return False
    rows = arguments.get("req_pool_indices")
    if not isinstance(rows, torch.Tensor) or rows.ndim != 1:
        return False
    if name == _PLAN:
        # SGLang plans on the CPU without a limit.
        return rows.is_cuda and rows.shape[0] > PLAN_REQUESTS
    return rows.shape[0] > SCATTER_REQUESTS


def _widened(arguments: dict[str, Any]) -> dict[str, Any]:
    """Turn the int32 tensors among a plan's integers into int64."""
    narrow = {
        name: tensor.to(torch.int64)
        for name in _PLAN_INTEGERS
        if isinstance(tensor := arguments.get(name), torch.Tensor) and tensor.dtype == torch.int32
    }
    return {**arguments, **narrow} if narrow else arguments
