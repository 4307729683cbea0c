"""Every refusal of the launchers: its type, and a message that names the argument, what was expected and what came."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from canary_numba import launch
from canary_numba.context import RealKvSource, VerifyOrWriteContext, ViolationAggregate, ViolationLog
from canary_numba.engines import ENGINES, resolve_engine, simulator_enabled
from canary_numba.errors import ArgumentError, ArgumentTypeError, CanaryError, EngineUnavailableError
from canary_numba.layout import CanaryLaunchTag, RealKvHashMode
from canary_numba.plans import VerifyPlan, WritePlan

I32, I64, U8 = torch.int32, torch.int64, torch.uint8
Change = Callable[[dict[str, Any]], None]


def zeros(*shape: int, dtype: torch.dtype = I64, device: str = "cpu") -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device=device)


def source(rows: int = 4, **changes: Any) -> RealKvSource:
    tensor = zeros(rows, 8, dtype=U8)
    return RealKvSource(**{"tensor": tensor, "page_size": 1, "num_bytes_per_token": 8, "read_bytes": 8, **changes})


def make_context() -> VerifyOrWriteContext:
    return ViolationLog.allocate(ring_capacity=2, device="cpu").context(
        canary_buf=zeros(4, 32, dtype=U8),
        kernel_kind=CanaryLaunchTag.HEAD_K_FULL,
        real_kv_sources=(source(),),
        real_kv_hash_mode=RealKvHashMode.ALL,
    )


def verify_arguments() -> dict[str, Any]:
    plan = VerifyPlan.allocate(verify_capacity=3, device="cpu").zero_for_testing_()
    return {"context": make_context(), "plan": plan, "check_verify_expected_token": True}


def write_arguments() -> dict[str, Any]:
    return {
        "context": make_context(),
        "plan": WritePlan.allocate(write_req_capacity=2, device="cpu").zero_for_testing_(),
        "input_ids": zeros(5),
        "positions": zeros(5),
        "out_cache_loc": zeros(5),
        "enable_write_input_assert": True,
        "expected_input_tokens": zeros(5),
        "expected_input_positions": zeros(5),
    }


def plan_arguments() -> dict[str, Any]:
    return {
        "verify_plan_out": VerifyPlan.allocate(verify_capacity=3, device="cpu"),
        "write_plan_out": WritePlan.allocate(write_req_capacity=2, device="cpu"),
        "req_pool_indices": zeros(2),
        "prefix_lens": zeros(2),
        "extend_seq_lens": zeros(2),
        "req_to_token": zeros(3, 4, dtype=I32),
        "swa_window_size": 0,
        "full_to_swa_index_mapping": zeros(6),
        "verify_capacity": 3,
        "req_to_verify_expected_tokens": zeros(3, 4, dtype=I32),
        "req_to_verify_expected_tokens_valid_lens": zeros(2),
        "kv_token_id_vs_position_offset": 0,
    }


def scatter_arguments() -> dict[str, Any]:
    return {
        "flat_in": zeros(5),
        "offsets": zeros(3),
        "req_pool_indices": zeros(2),
        "pool_out": zeros(3, 4, dtype=I32),
    }


def hash_arguments() -> dict[str, Any]:
    return {
        "real_kv_sources": (source(),),
        "real_kv_hash_mode": RealKvHashMode.ALL,
        "slot_indices": zeros(2),
        "hashes_out": zeros(2),
    }


LAUNCHERS: dict[str, tuple[Callable[..., None], Callable[[], dict[str, Any]]]] = {
    "verify": (launch.launch_canary_verify_kernel, verify_arguments),
    "write": (launch.launch_canary_write_kernel, write_arguments),
    "plan": (launch.launch_canary_plan_kernels, plan_arguments),
    "scatter": (launch.launch_scatter_req_token_ids_kernel, scatter_arguments),
    "hash": (launch.launch_real_kv_hash_kernel, hash_arguments),
}


def given(**changes: Any) -> Change:
    """Replace arguments."""
    return lambda arguments: arguments.update(changes)


def within(argument: str, **changes: Any) -> Change:
    """Replace fields of an argument that is a dataclass."""

    def change(arguments: dict[str, Any]) -> None:
        arguments[argument] = replace(arguments[argument], **changes)

    return change


def shifted_buffer() -> torch.Tensor:
    return zeros(4 * 32 + 8, dtype=U8)[1:129].view(4, 32)


CONTEXT: list[tuple[dict[str, Any], type[CanaryError], str]] = [
    ({"canary_buf": [[0]]}, ArgumentTypeError, "canary_buf: expected a torch.Tensor, got list"),
    ({"canary_buf": zeros(4, 32)}, ArgumentTypeError, "canary_buf: expected torch.uint8, got torch.int64"),
    ({"canary_buf": zeros(128, dtype=U8)}, ArgumentError, "canary_buf: expected shape [n, n], got [128]"),
    (
        {"canary_buf": zeros(4, 24, dtype=U8)},
        ArgumentError,
        "canary_buf: expected a slot stride of at least 32 bytes and a multiple of 8, got 24",
    ),
    (
        {"canary_buf": zeros(4, 36, dtype=U8)},
        ArgumentError,
        "canary_buf: expected a slot stride of at least 32 bytes and a multiple of 8, got 36",
    ),
    (
        {"canary_buf": zeros(4, 64, dtype=U8)[:, :32]},
        ArgumentError,
        "canary_buf: expected a contiguous tensor, got strides [64, 1]",
    ),
    ({"canary_buf": shifted_buffer()}, ArgumentError, "canary_buf: expected an 8-byte aligned address, got 0x"),
    ({"kernel_kind": 12}, ArgumentError, "kernel_kind: expected a CanaryLaunchTag (0 to 11), got 12"),
    ({"kernel_kind": -1}, ArgumentError, "kernel_kind: expected a CanaryLaunchTag (0 to 11), got -1"),
    ({"violation_ring": zeros(2, 7)}, ArgumentError, "violation_ring: expected shape [n, 8], got [2, 7]"),
    (
        {"violation_ring": zeros(2, 8, dtype=I32)},
        ArgumentTypeError,
        "violation_ring: expected torch.int64, got torch.int32",
    ),
    (
        {"violation_ring": zeros(2, 8, device="meta")},
        ArgumentError,
        "violation_ring: expected a tensor on cpu, as canary_buf is, got one on meta",
    ),
    ({"violation_write_index": zeros(1)}, ArgumentTypeError, "violation_write_index: expected torch.int32, got"),
    (
        {"violation_write_index": zeros(2, dtype=I32)},
        ArgumentError,
        "violation_write_index: expected shape [1], got [2]",
    ),
    ({"slot_run_counter": zeros(1, dtype=I32)}, ArgumentTypeError, "slot_run_counter: expected torch.int64, got"),
    ({"kernel_run_counter": zeros(1, 1)}, ArgumentError, "kernel_run_counter: expected shape [1], got [1, 1]"),
    (
        {"enable_chain_position_assert": 1},
        ArgumentTypeError,
        "enable_chain_position_assert: expected a torch.Tensor, got int",
    ),
    ({"real_kv_hash_mode": 3}, ArgumentError, "real_kv_hash_mode: expected a RealKvHashMode (0 to 2), got 3"),
    (
        {"real_kv_sources": (source(),) * 5},
        ArgumentError,
        "real_kv_sources: expected at most 4 sources in one launch, got 5",
    ),
    (
        {"real_kv_sources": (source(), source(3))},
        ArgumentError,
        "real_kv_sources[1].tensor: expected bytes for all 4 slots of canary_buf, got 3 slots",
    ),
    (
        {"real_kv_sources": (source(tensor=zeros(4, 8, dtype=U8, device="meta")),)},
        ArgumentError,
        "real_kv_sources[0].tensor: expected a tensor on cpu, as canary_buf is, got meta",
    ),
]

OTHERS: list[tuple[str, Change, type[CanaryError], str]] = [
    (
        "verify",
        within("plan", verify_slot_indices=zeros(3, dtype=I32)),
        ArgumentTypeError,
        "plan.verify_slot_indices: expected torch.int64, got torch.int32",
    ),
    (
        "verify",
        within("plan", verify_slot_indices=zeros(6)[::2]),
        ArgumentError,
        "plan.verify_slot_indices: expected a contiguous tensor, got strides [2]",
    ),
    (
        "verify",
        within("plan", verify_expected_tokens=zeros(4)),
        ArgumentError,
        "plan.verify_expected_tokens: expected shape [3], got [4]",
    ),
    (
        "verify",
        within("plan", verify_expected_positions=zeros(2)),
        ArgumentError,
        "plan.verify_expected_positions: expected shape [3], got [2]",
    ),
    (
        "verify",
        within("plan", verify_prev_slot_indices=zeros(3, device="meta")),
        ArgumentError,
        "plan.verify_prev_slot_indices: expected a tensor on cpu, as canary_buf is, got one on meta",
    ),
    (
        "verify",
        within("plan", verify_num_valid=zeros(1)),
        ArgumentTypeError,
        "plan.verify_num_valid: expected torch.int32, got torch.int64",
    ),
    ("verify", within("plan", enable=zeros(0, dtype=I32)), ArgumentError, "plan.enable: expected shape [1], got [0]"),
    (
        "verify",
        given(aggregate_violations=SimpleNamespace(table=zeros(12, 8))),
        ArgumentError,
        "aggregate_violations.table: expected shape [12, 10], got [12, 8]",
    ),
    (
        "verify",
        given(real_kv_hashes=zeros(3)),
        ArgumentError,
        "real_kv_hashes: expected shape [4], got [3]",
    ),
    (
        "write",
        within("plan", write_offsets=zeros(2)),
        ArgumentError,
        "plan.write_offsets: expected shape [3], got [2]",
    ),
    (
        "write",
        within("plan", write_seed_slot_indices=[1, 2]),
        ArgumentTypeError,
        "plan.write_seed_slot_indices: expected a torch.Tensor, got list",
    ),
    (
        "write",
        within("plan", write_num_valid_reqs=zeros(1)),
        ArgumentTypeError,
        "plan.write_num_valid_reqs: expected torch.int32, got torch.int64",
    ),
    (
        "write",
        given(expected_input_tokens=None),
        ArgumentError,
        "expected_input_tokens, expected_input_positions: both are needed with enable_write_input_assert=True",
    ),
    (
        "write",
        given(enable_write_input_assert=False, expected_input_tokens=None),
        ArgumentError,
        "expected_input_tokens, expected_input_positions: expected None with enable_write_input_assert=False",
    ),
    (
        "write",
        given(input_ids=zeros(5, dtype=torch.float32)),
        ArgumentTypeError,
        "input_ids: expected torch.int64 or torch.int32, got torch.float32",
    ),
    ("write", given(positions=zeros(4)), ArgumentError, "positions: expected shape [5], got [4]"),
    ("write", given(out_cache_loc=zeros(5, 1)), ArgumentError, "out_cache_loc: expected shape [n], got [5, 1]"),
    (
        "write",
        given(expected_input_tokens=zeros(6)),
        ArgumentError,
        "expected_input_tokens: expected shape [5], got [6]",
    ),
    (
        "write",
        given(expected_input_positions=zeros(5, dtype=U8)),
        ArgumentTypeError,
        "expected_input_positions: expected torch.int64 or torch.int32, got torch.uint8",
    ),
    (
        "write",
        given(aggregate_violations=SimpleNamespace(table=zeros(12, 10, dtype=I32))),
        ArgumentTypeError,
        "aggregate_violations.table: expected torch.int64, got torch.int32",
    ),
    ("plan", given(swa_window_size=-1), ArgumentError, "swa_window_size: expected >= 0, got -1"),
    (
        "plan",
        given(swa_window_size=2, full_to_swa_index_mapping=None),
        ArgumentError,
        "full_to_swa_index_mapping: needed with swa_window_size=2",
    ),
    (
        "plan",
        given(kv_token_id_vs_position_offset=2),
        ArgumentError,
        "kv_token_id_vs_position_offset: expected 0 or 1, got 2",
    ),
    (
        "plan",
        given(verify_capacity=4),
        ArgumentError,
        "verify_capacity: expected 3, the length of verify_plan_out's arrays, got 4",
    ),
    (
        "plan",
        given(req_pool_indices=zeros(2, dtype=I32)),
        ArgumentTypeError,
        "req_pool_indices: expected torch.int64, got torch.int32",
    ),
    (
        "plan",
        given(req_pool_indices=zeros(3), prefix_lens=zeros(3), extend_seq_lens=zeros(3)),
        ArgumentError,
        "req_pool_indices: expected at most 2 requests, the write plan's, got 3",
    ),
    ("plan", given(prefix_lens=zeros(1)), ArgumentError, "prefix_lens: expected shape [2], got [1]"),
    ("plan", given(extend_seq_lens=zeros(3)), ArgumentError, "extend_seq_lens: expected shape [2], got [3]"),
    ("plan", given(req_to_token=zeros(3, 4)), ArgumentTypeError, "req_to_token: expected torch.int32, got"),
    (
        "plan",
        given(req_to_token=zeros(3, 8, dtype=I32)[:, ::2]),
        ArgumentError,
        "req_to_token: expected contiguous rows, got strides [8, 2]",
    ),
    (
        "plan",
        given(full_to_swa_index_mapping=zeros(6, dtype=I32)),
        ArgumentTypeError,
        "full_to_swa_index_mapping: expected torch.int64, got torch.int32",
    ),
    (
        "plan",
        given(req_to_verify_expected_tokens_valid_lens=None),
        ArgumentError,
        "req_to_verify_expected_tokens_valid_lens: needed with req_to_verify_expected_tokens",
    ),
    (
        "plan",
        given(req_to_verify_expected_tokens=zeros(3, 4)),
        ArgumentTypeError,
        "req_to_verify_expected_tokens: expected torch.int32, got torch.int64",
    ),
    (
        "plan",
        given(req_to_verify_expected_tokens_valid_lens=zeros(1)),
        ArgumentError,
        "req_to_verify_expected_tokens_valid_lens: expected shape [2], got [1]",
    ),
    (
        "plan",
        within("verify_plan_out", enable=zeros(1)),
        ArgumentTypeError,
        "plan.enable: expected torch.int32, got torch.int64",
    ),
    ("scatter", given(pool_out=None), ArgumentTypeError, "pool_out: expected a torch.Tensor, got NoneType"),
    ("scatter", given(pool_out=zeros(3, 4)), ArgumentTypeError, "pool_out: expected torch.int32, got torch.int64"),
    (
        "scatter",
        given(pool_out=zeros(4, 3, dtype=I32).T),
        ArgumentError,
        "pool_out: expected contiguous rows, got strides [1, 3]",
    ),
    ("scatter", given(flat_in=zeros(5, dtype=I32)), ArgumentTypeError, "flat_in: expected torch.int64, got"),
    ("scatter", given(offsets=zeros(2)), ArgumentError, "offsets: expected shape [3], got [2]"),
    ("scatter", given(req_pool_indices=zeros(2, 1)), ArgumentError, "req_pool_indices: expected shape [n], got [2, 1]"),
    ("hash", given(hashes_out=3), ArgumentTypeError, "hashes_out: expected a torch.Tensor, got int"),
    ("hash", given(hashes_out=zeros(2, dtype=I32)), ArgumentTypeError, "hashes_out: expected torch.int64, got"),
    ("hash", given(slot_indices=zeros(3)), ArgumentError, "slot_indices: expected shape [2], got [3]"),
    (
        "hash",
        given(real_kv_hash_mode=RealKvHashMode.NONE),
        ArgumentError,
        "real_kv_hash_mode: expected PARTIAL or ALL, got <RealKvHashMode.NONE: 0>",
    ),
    ("hash", given(real_kv_sources=()), ArgumentError, "real_kv_sources: expected at least one source, got none"),
    (
        "hash",
        given(real_kv_sources=(source(),) * 5),
        ArgumentError,
        "real_kv_sources: expected at most 4 sources in one launch, got 5",
    ),
]


def refusal(launcher: str, change: Change, error: type[CanaryError], message: str) -> dict[str, Any]:
    run, arguments_of = LAUNCHERS[launcher]
    arguments = arguments_of()
    change(arguments)
    with pytest.raises(error, match="^" + re.escape(message)) as caught:
        run(**arguments, engine="reference")
    assert isinstance(caught.value, TypeError if error is ArgumentTypeError else ValueError)
    return arguments


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_arguments_these_tests_start_from_are_fine(launcher: str, engine: str) -> None:
    run, arguments_of = LAUNCHERS[launcher]
    if engine != "cuda":
        run(**arguments_of(), engine=engine)


@pytest.mark.parametrize("launcher", ["verify", "write"])
@pytest.mark.parametrize(("changes", "error", "message"), CONTEXT, ids=[message for *_, message in CONTEXT])
def test_context_refusals(launcher: str, changes: dict[str, Any], error: type[CanaryError], message: str) -> None:
    refusal(launcher, within("context", **changes), error, message)


@pytest.mark.parametrize(("launcher", "change", "error", "message"), OTHERS, ids=[message for *_, message in OTHERS])
def test_refusals(launcher: str, change: Change, error: type[CanaryError], message: str) -> None:
    arguments = refusal(launcher, change, error, message)
    if "context" in arguments:
        assert int(arguments["context"].kernel_run_counter) == 0, "a refused launch counted itself"


def test_rows_that_are_not_contiguous_are_refused(engine: str) -> None:
    if engine == "cuda":
        pytest.skip("the arguments are CPU tensors")
    column_major = source(tensor=zeros(8, 4, dtype=U8).T)
    message = r"^real_kv_sources: expected contiguous rows, got strides \[1, 4\] for shape \[4, 8\]$"
    for launcher in ("verify", "write"):
        run, arguments_of = LAUNCHERS[launcher]
        arguments = arguments_of()
        arguments["context"] = replace(arguments["context"], real_kv_sources=(column_major,))
        if launcher == "verify":
            arguments["plan"].enable.fill_(1)
        with pytest.raises(ArgumentError, match=message):
            run(**arguments, engine=engine)
    with pytest.raises(ArgumentError, match=message):
        launch.launch_real_kv_hash_kernel(**{**hash_arguments(), "real_kv_sources": (column_major,)}, engine=engine)


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
