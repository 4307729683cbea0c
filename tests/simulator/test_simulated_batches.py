"""Several contexts in one launch of the simulated kernels."""

from __future__ import annotations

from dataclasses import replace

import batched
import pytest

from canary_numba.engines.cuda.batch import in_batches, operand_of


@pytest.mark.parametrize(("name", "seed"), [("two pools", 1), ("unlike neighbours", 2)])
def test_as_one_after_the_other(name: str, seed: int, engine: str) -> None:
    batched.compare(engine, batched.BATCHES[name], seed)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [("one", [1]), ("both halves", [2]), ("three", [2, 1]), ("two pools", [2, 2]), ("unlike neighbours", [1, 1, 1])],
)
def test_what_goes_into_one_launch(name: str, sizes: list[int]) -> None:
    operands = [operand_of(context) for context in batched.contexts_of(batched.BATCHES[name], 0)]
    for writing in (False, True):
        assert [len(batch) for batch in in_batches(operands, writing=writing)] == sizes


def test_writers_of_the_same_records_are_launched_one_after_the_other() -> None:
    first, second = batched.contexts_of([32, 32], 0)
    operands = [operand_of(first), operand_of(replace(second, canary_buf=first.canary_buf))]
    assert [len(batch) for batch in in_batches(operands, writing=True)] == [1, 1]
    assert [len(batch) for batch in in_batches(operands)] == [2]
