"""Which engine checks a dump, on which device, and why not the GPU."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from canary_numba.engines import ENGINES, simulator_enabled
from canary_numba.errors import ArgumentError, EngineUnavailableError


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineChoice:
    """The engine that runs, on which device, and, where CUDA was wanted and could not be had, why."""

    name: str
    device: torch.device
    description: str
    note: str | None = None


def choose_engine(engine: str) -> EngineChoice:
    """Decide where a dump is checked: ``auto`` takes CUDA where it works, else the CPU, and says why.

    Raises
    ------
    ArgumentError
        No such engine.
    EngineUnavailableError
        ``cuda`` or ``simulator`` was asked for and cannot run.
    """
    if engine not in ENGINES:
        raise ArgumentError(f"engine: expected one of {', '.join(ENGINES)}, got {engine!r}")
    cpu = torch.device("cpu")
    if engine == "simulator" and not simulator_enabled():
        raise EngineUnavailableError("engine simulator: start the process with NUMBA_ENABLE_CUDASIM=1")
    if engine in ("cpu", "reference", "simulator"):
        return EngineChoice(name=engine, device=cpu, description="CPU")
    reason = _why_no_cuda()
    if reason is None:
        device = torch.device("cuda", torch.cuda.current_device())
        return EngineChoice(name="cuda", device=device, description=torch.cuda.get_device_name(device))
    if engine == "cuda":
        raise EngineUnavailableError(f"engine cuda: {reason}. Use --engine cpu")
    return EngineChoice(name="cpu", device=cpu, description="CPU", note=reason)


def _why_no_cuda() -> str | None:
    # Importing numba.cuda takes most of a second: not where torch already knows that there is no GPU.
    if not torch.cuda.is_available():
        if torch.version.cuda is None:
            return f"torch {torch.__version__} is a CPU build"
        return "torch finds no NVIDIA driver or no GPU"
    try:
        from canary_numba.engines.cuda.device import why_unavailable
    except ImportError as error:
        return f"numba-cuda is not installed ({error}): pip install canary-numba[cu13] or [cu12]"
    return why_unavailable()
