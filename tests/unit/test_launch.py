"""What launchers do with arguments that are fine, with foreign dataclasses, and with engines that cannot run."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import harness
import pytest
import torch
from refusals import LAUNCHERS, U8, hash_arguments, source, verify_arguments, zeros

from canary_numba import launch
from canary_numba.context import ViolationAggregate
from canary_numba.engines import ENGINES, resolve_engine, simulator_enabled
from canary_numba.errors import ArgumentError, EngineUnavailableError


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_arguments_these_tests_start_from_are_fine(launcher: str, engine: str) -> None:
    run, arguments_of = LAUNCHERS[launcher]
    run(**harness.copy_to(harness.device_of(engine), arguments_of()), engine=engine)


def test_rows_that_are_not_contiguous_are_refused(engine: str) -> None:
    column_major = source(tensor=zeros(8, 4, dtype=U8).T)
    message = r"^real_kv_sources: expected contiguous rows, got strides \[1, 4\] for shape \[4, 8\]$"
    for launcher in ("verify", "write"):
        run, arguments_of = LAUNCHERS[launcher]
        arguments = arguments_of()
        arguments["context"] = replace(arguments["context"], real_kv_sources=(column_major,))
        if launcher == "verify":
            arguments["plan"].enable.fill_(1)
        with pytest.raises(ArgumentError, match=message):
            run(**harness.copy_to(harness.device_of(engine), arguments), engine=engine)
    arguments = {**hash_arguments(), "real_kv_sources": (column_major,)}
    with pytest.raises(ArgumentError, match=message):
        launch.launch_real_kv_hash_kernel(**harness.copy_to(harness.device_of(engine), arguments), engine=engine)


def test_foreign_dataclasses_with_the_same_fields_will_do() -> None:
    def twin(value: Any) -> SimpleNamespace:
        return SimpleNamespace(**{name: getattr(value, name) for name in value.__dataclass_fields__})

    arguments = verify_arguments()
    sources = tuple(twin(source) for source in arguments["context"].real_kv_sources)
    context = twin(replace(arguments["context"], real_kv_sources=sources))
    plan = twin(arguments["plan"])
    plan.enable.fill_(1)
    for engine in ("cpu", "reference"):
        launch.launch_canary_verify_kernel(context=context, plan=plan, check_verify_expected_token=True, engine=engine)
    assert int(context.kernel_run_counter) == 2


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_an_unknown_engine_is_refused(launcher: str) -> None:
    run, arguments_of = LAUNCHERS[launcher]
    with pytest.raises(ArgumentError, match=r"^engine: expected one of auto, .*, got 'gpu'$"):
        run(**arguments_of(), engine="gpu")


@pytest.mark.skipif(simulator_enabled(), reason="this process runs CUDA kernels in the simulator")
def test_engines_by_device() -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert [resolve_engine("auto", device) for device in (cpu, cuda)] == ["cpu", "cuda"]
    assert [resolve_engine("reference", device) for device in (cpu, cuda)] == ["reference", "reference"]
    with pytest.raises(ArgumentError, match=r"^engine: cuda needs cuda tensors, got tensors on cpu$"):
        resolve_engine("cuda", cpu)
    with pytest.raises(ArgumentError, match=r"^engine: cpu needs cpu tensors, got tensors on cuda$"):
        resolve_engine("cpu", cuda)
    with pytest.raises(EngineUnavailableError, match="start the process with NUMBA_ENABLE_CUDASIM=1"):
        resolve_engine("simulator", cpu)
    assert ENGINES == ("auto", "cuda", "cpu", "reference", "simulator")


def test_an_aggregate_is_optional() -> None:
    arguments = verify_arguments()
    launch.launch_canary_verify_kernel(**arguments, engine="reference", aggregate_violations=None)
    aggregate = ViolationAggregate.allocate(device="cpu")
    launch.launch_canary_verify_kernel(**arguments, engine="reference", aggregate_violations=aggregate)
    assert int(arguments["context"].kernel_run_counter) == 2
