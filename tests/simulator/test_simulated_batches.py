"""Several contexts in one launch of the simulated kernels."""

from __future__ import annotations

import batched
import pytest


@pytest.mark.parametrize(("name", "seed"), [("two pools", 1), ("unlike neighbours", 2)])
def test_as_one_after_the_other(name: str, seed: int, engine: str) -> None:
    batched.compare(engine, batched.BATCHES[name], seed)
