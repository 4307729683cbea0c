"""Fixtures of all tests: the shared data, and the engines that can run here."""

from __future__ import annotations

import os

from numba_cache import fresh_numba_cache

# All read when numba is imported. Tests launch small grids and host arrays on purpose.
os.environ.setdefault("NUMBA_CACHE_DIR", fresh_numba_cache())
os.environ.setdefault("NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS", "0")
os.environ.setdefault("NUMBA_CUDA_WARN_ON_IMPLICIT_COPY", "0")

from pathlib import Path

import hypothesis
import pytest
from golden import find_shared
from harness import engine_params

from canary_numba.engines import simulator_enabled

# The simulator runs a CUDA thread as a Python thread: seconds for what takes an engine milliseconds.
_EXAMPLES = 8 if simulator_enabled() else 60
hypothesis.settings.register_profile("default", deadline=None, max_examples=_EXAMPLES)
hypothesis.settings.register_profile("ci", deadline=None, max_examples=_EXAMPLES, derandomize=True, print_blob=True)
# A long search: pytest tests/property --hypothesis-profile=thorough
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=2000)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "default")

if simulator_enabled():
    # Compiled engines and the simulator cannot share a process: there, only tests/simulator runs.
    collect_ignore = [path.name for path in Path(__file__).parent.iterdir() if path.name != "simulator"]


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of golden data and example dumps; skips where it is missing, but fails in CI."""
    path = find_shared()
    if path is None:
        message = "shared data not found: set CANARY_SHARED, or put it at ../shared or .carry/shared"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return path


# Session-wide, so that Hypothesis tests may use it.
@pytest.fixture(scope="session", params=engine_params())
def engine(request: pytest.FixtureRequest) -> str:
    """Name of an engine; a test that takes it runs once for each engine available here."""
    return request.param
