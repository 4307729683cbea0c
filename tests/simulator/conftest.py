"""These tests run under ``NUMBA_ENABLE_CUDASIM=1`` only: see scripts/test-simulator."""

from __future__ import annotations

from pathlib import Path

import pytest

from canary_numba.engines import simulator_enabled

HERE = Path(__file__).parent
collect_ignore_glob = [] if simulator_enabled() else ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.simulator)


@pytest.fixture(scope="session")
def engine() -> str:
    """The engine of all tests here."""
    return "simulator"
