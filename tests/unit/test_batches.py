"""A list of contexts is verified and written as if launched one after the other, on every engine."""

from __future__ import annotations

from typing import Any

import batched
import pytest
import torch
from refusals import verify_arguments, write_arguments

from canary_numba import launch
from canary_numba.errors import ArgumentError
from canary_numba.prepared import PreparedVerify, PreparedWrite


@pytest.mark.parametrize("name", batched.BATCHES)
def test_as_one_after_the_other(name: str, engine: str) -> None:
    for seed in range(6):
        batched.compare(engine, batched.BATCHES[name], seed)


def test_writers_of_one_buffer_go_one_after_the_other(engine: str) -> None:
    batched.compare(engine, [32, 32], 0, one_buffer=True)


def test_hashes_given_for_each(engine: str) -> None:
    verify_plan, write_plan, inputs = batched.step_of(0)
    contexts = batched.contexts_of([32, 32, 32], 0)
    for context in contexts:
        launch.launch_canary_write_kernel(context=context, plan=write_plan, engine="reference", **inputs)
    hashes = [context.canary_buf.view(torch.int64)[:, 3].clone() for context in contexts]
    slot = int(verify_plan.verify_slot_indices[17])
    hashes[1][slot] ^= 1
    device = batched.harness.device_of(engine)
    copied = batched.copies(device, contexts)
    before = int(copied[0].violation_write_index)
    launch.launch_canary_verify_kernel(
        context=copied,
        plan=batched.harness.copy_to(device, verify_plan),
        check_verify_expected_token=False,
        engine=engine,
        real_kv_hashes=[hashes[0].to(device), hashes[1].to(device), None],
    )
    rows = copied[0].violation_ring[before : int(copied[0].violation_write_index)].tolist()
    # A record names no wrong hash but the one of the second context; the seed out of range is no chain head.
    assert [row[:2] for row in rows if row[7] & 4] == [[1, slot]]


@pytest.mark.parametrize("kind", [launch.launch_canary_verify_kernel, PreparedVerify])
def test_as_many_hashes_as_contexts(kind: Any) -> None:
    arguments = verify_arguments()
    arguments["context"] = [arguments["context"]] * 2
    arguments["real_kv_hashes"] = torch.zeros(arguments["context"][0].canary_buf.shape[0], dtype=torch.int64)
    with pytest.raises(ArgumentError, match=r"^real_kv_hashes: expected one for each of 2 contexts, got 1$"):
        kind(**arguments)


@pytest.mark.parametrize("kind", [launch.launch_canary_write_kernel, PreparedWrite])
def test_no_context(kind: Any) -> None:
    with pytest.raises(ArgumentError, match=r"^context: expected a context or several, got an empty list$"):
        kind(**write_arguments() | {"context": ()})


def test_a_bad_context_among_good_ones_launches_nothing() -> None:
    arguments = write_arguments()
    good = arguments["context"]
    bad = batched.replace(good, canary_buf=good.canary_buf[:, :31])
    with pytest.raises(ArgumentError, match=r"^canary_buf: "):
        launch.launch_canary_write_kernel(**arguments | {"context": [good, bad]})
    assert int(good.kernel_run_counter) == 0
