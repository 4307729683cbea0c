"""Choosing an engine. Each engine is a module with ``verify``, ``write``, ``plan``, ``scatter`` and ``hash_real_kv``.

========== ================================================= ==============================================
name       where it runs                                     when ``auto`` takes it
========== ================================================= ==============================================
cuda       an NVIDIA GPU, through numba-cuda                 the tensors are CUDA tensors
cpu        the CPU, compiled and parallel                    the tensors are CPU tensors
reference  wherever torch runs, slow and independent         never
simulator  the CUDA kernels as Python threads, on the CPU    never; needs ``NUMBA_ENABLE_CUDASIM=1`` at start
========== ================================================= ==============================================
"""

from __future__ import annotations

import os
from importlib import import_module
from types import ModuleType

import torch

from canary_numba.errors import ArgumentError, EngineUnavailableError

ENGINES = ("auto", "cuda", "cpu", "reference", "simulator")

_MODULES = {
    "cuda": "canary_numba.engines.cuda",
    "simulator": "canary_numba.engines.cuda",
    "cpu": "canary_numba.engines.cpu",
    "reference": "canary_numba.reference.engine",
}


def simulator_enabled() -> bool:
    """Whether this process runs CUDA kernels in Numba's simulator."""
    return os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0")


def resolve_engine(engine: str, device: torch.device) -> str:
    """Name the engine that runs a launch on ``device`` tensors.

    Raises
    ------
    ArgumentError
        Unknown engine, or one that cannot take tensors of this device.
    EngineUnavailableError
        The simulator was asked for in a process that was not started for it.
    """
    if engine not in ENGINES:
        raise ArgumentError(f"engine: expected one of {', '.join(ENGINES)}, got {engine!r}")
    if engine == "auto":
        engine = "cuda" if device.type == "cuda" else "cpu"
    if engine == "cuda" and simulator_enabled():
        engine = "simulator"
    if engine == "simulator" and not simulator_enabled():
        raise EngineUnavailableError("engine simulator: start the process with NUMBA_ENABLE_CUDASIM=1")
    wanted = {"cuda": "cuda", "cpu": "cpu", "simulator": "cpu"}.get(engine, device.type)
    if device.type != wanted:
        raise ArgumentError(f"engine: {engine} needs {wanted} tensors, got tensors on {device}")
    return engine


def engine_for(engine: str, device: torch.device) -> ModuleType:
    """Return the module that runs ``engine`` on ``device`` tensors; raises as :func:`resolve_engine`."""
    return import_module(_MODULES[resolve_engine(engine, device)])
