"""The benchmark's cases: their names, the bytes they claim to move, and that what is built is sound."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numba
import pytest
import torch

import canary_numba

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from benchmarks import checking
from benchmarks.build import build
from benchmarks.cases import CASES, MODES, Case
from benchmarks.cpu import bench_cpu
from benchmarks.peer import Peers, find_peers, takes

from canary_numba import launch_canary_verify_kernel
from canary_numba.prepared import PreparedPlan, PreparedVerify, PreparedWrite

LAUNCHERS = {
    "verify": "launch_canary_verify_kernel",
    "write": "launch_canary_write_kernel",
    "plan": "launch_canary_plan_kernels",
}
TITLES = [f"{case.work}: {case.name}" for case in CASES]


def test_no_two_cases_have_one_name() -> None:
    assert len(set(TITLES)) == len(TITLES) > 0


@pytest.mark.parametrize("case", CASES, ids=TITLES)
def test_a_case_has_work_to_do(case: Case) -> None:
    assert case.mode in MODES
    assert case.bytes_moved > 0
    assert bool(case.row_bytes) == (case.mode != "none")
    assert (case.written if case.work in ("write", "step") else case.verified) > 0


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        # 4 int64 of plan and 4 of record an entry, and its K/V bytes.
        (Case(name="", work="verify", requests=3, prefix=10), 3 * 10 * 64),
        (Case(name="", work="verify", requests=3, prefix=10, row_bytes=(96, 32), mode="all"), 30 * (64 + 128)),
        (Case(name="", work="verify", requests=3, prefix=10, row_bytes=(96, 32), mode="partial"), 30 * (64 + 32)),
        (Case(name="", work="verify", requests=3, prefix=10, row_bytes=(96,)), 30 * 64),
        (Case(name="", work="verify", requests=3, prefix=10, window=4), 3 * 4 * 64),
        (Case(name="", work="verify", requests=3, prefix=10, window=40), 3 * 10 * 64),
        # Token, position and slot, 8 bytes each, and the record.
        (Case(name="", work="write", requests=2, prefix=7, extend=5), 2 * 5 * (24 + 32)),
        (Case(name="", work="write", requests=2, extend=5, row_bytes=(584,), mode="all"), 10 * (56 + 584)),
        # An entry's 4 int64 and the table's int32; 6 int64 a request.
        (Case(name="", work="plan", requests=2, prefix=5, extend=1), 10 * 36 + 2 * 48),
        # A plan, then verify and write of HEAD and TAIL, K and V; K/V bytes are read for TAIL only.
        (Case(name="", work="step", requests=2, prefix=5, extend=3), 10 * 36 + 96 + 4 * (10 * 64 + 6 * 56)),
        (
            Case(name="", work="step", requests=2, prefix=5, extend=3, row_bytes=(96,), mode="all"),
            10 * 36 + 96 + 4 * (10 * 64 + 6 * 56) + 2 * 16 * 96,
        ),
    ],
)
def test_bytes_moved_by_hand(case: Case, expected: int) -> None:
    assert case.bytes_moved == expected


def shrink(case: Case) -> Case:
    """The same case with up to 3 requests, 9 cached and 5 new tokens, and a window cut in proportion."""
    return replace(
        case,
        requests=min(case.requests, 3),
        prefix=min(case.prefix, 9),
        extend=min(case.extend, 5),
        window=min(case.window, 4),
    )


SMALL = [shrink(case) for case in CASES]


@pytest.mark.parametrize("case", SMALL, ids=TITLES)
def test_a_built_case_is_clean(case: Case) -> None:
    load = build(case, "cpu")
    assert int(load.verify_plan.verify_num_valid) == case.verified
    assert int(load.verify_plan.enable) == 1
    assert load.write_arguments["out_cache_loc"].shape[0] == case.written
    assert torch.unique(load.plan_arguments["req_to_token"][1:]).shape[0] == case.tokens, "requests share slots"
    if case.work != "plan":
        before = int(load.log.slot_run_counter)
        launch_canary_verify_kernel(context=load.context, plan=load.verify_plan, check_verify_expected_token=False)
        assert int(load.log.slot_run_counter) == before + case.verified
        assert load.log.rows().tolist() == []


class TestChecking:
    """The comparison with the CPU engine, whose other side is here the CPU engine as well."""

    def test_verify_reports_damage_and_mends_it(self) -> None:
        load = build(next(case for case in SMALL if case.work == "verify"), "cpu")
        before = load.context.canary_buf.clone()
        prepared = PreparedVerify(context=load.context, plan=load.verify_plan, check_verify_expected_token=False)
        assert checking.check_verify(load, prepared) == f"{load.case.verified} rows"
        assert torch.equal(load.context.canary_buf, before)
        assert int(load.log.violation_write_index) == 0

    def test_equal(self) -> None:
        load = build(next(case for case in SMALL if case.work == "write" and case.prefix), "cpu")
        write = PreparedWrite(context=load.context, plan=load.write_plan, **load.write_arguments)
        assert checking.check_write(load, write) == "equal"
        load = build(next(case for case in SMALL if case.work == "plan"), "cpu")
        for plan in (load.verify_plan, load.write_plan):
            plan.zero_for_testing_()
        plan_again = PreparedPlan(**load.plan_arguments)
        plan_again()
        assert checking.check_plan(load, plan_again) == "equal"

    def test_an_engine_that_does_nothing_is_found(self) -> None:
        for work, check in (("verify", checking.check_verify), ("write", checking.check_write)):
            load = build(next(case for case in SMALL if case.work == work), "cpu")
            with pytest.raises(AssertionError, match="differs"):
                check(load, lambda: None)
        load = build(next(case for case in SMALL if case.work == "plan"), "cpu")
        load.verify_plan.verify_slot_indices[0] ^= 1
        with pytest.raises(AssertionError, match="verify_slot_indices differs"):
            checking.check_plan(load, lambda: None)


def test_without_sglang_its_kernels_are_said_to_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sglang", None)
    peers = find_peers()
    assert peers.launchers == {}
    assert peers.about.startswith("not importable")


@pytest.mark.parametrize("work", ["verify", "write", "plan"])
def test_peers_are_called_as_sglang_wants_it(work: str) -> None:
    case = Case(name="small", work=work, requests=2, prefix=3, extend=2)
    load = build(case, "cpu")
    calls: list[dict[str, object]] = []
    launch = Peers({work: lambda **arguments: calls.append(arguments)}, "").prepare(load)
    assert launch is not None
    launch()
    # The very arguments that this project's launchers take: both have the same signature.
    getattr(canary_numba, LAUNCHERS[work])(**calls[0])
    assert Peers({}, "").prepare(load) is None


@pytest.mark.parametrize(
    ("case", "taken"),
    [
        (Case(name="", work="plan", requests=4096, prefix=1), True),
        (Case(name="", work="plan", requests=4097, prefix=1), False),
        (Case(name="", work="step", requests=4097, extend=1), False),
        (Case(name="", work="write", requests=4097, extend=1), True),
        (Case(name="", work="verify", requests=1, prefix=1, row_bytes=(1152,), mode="all"), True),
        # Its 16-byte loads would not be aligned, an error that ends all CUDA work of the process.
        (Case(name="", work="verify", requests=1, prefix=1, row_bytes=(1024, 584), mode="all"), False),
        (Case(name="", work="verify", requests=1, prefix=1, row_bytes=(584,), mode="partial"), False),
    ],
)
def test_what_is_beyond_sglangs_limits_is_not_asked_of_it(case: Case, taken: bool) -> None:
    assert takes(case) is taken
    if not taken:
        load = build(case, "cpu")
        assert Peers({case.work: lambda **_: None}, "").prepare(load) is None


class TestSameOutputs:
    """Two kernels on one workload; here both are launchers of the CPU engines."""

    @pytest.mark.parametrize("work", ["verify", "write", "plan"])
    def test_equal_and_nothing_is_left(self, work: str) -> None:
        load = build(Case(name="", work=work, requests=2, prefix=9, extend=3, row_bytes=(32,), mode="all"), "cpu")
        before = load.context.canary_buf.clone()
        peers = {name: partial(getattr(canary_numba, launch), engine="reference") for name, launch in LAUNCHERS.items()}
        ours = Peers({name: getattr(canary_numba, launch) for name, launch in LAUNCHERS.items()}, "").prepare(load)
        theirs = Peers(peers, "").prepare(load)
        assert ours is not None
        assert theirs is not None
        if work == "write":
            ours()
            before = load.context.canary_buf.clone()
        assert checking.same_outputs(load, ours, theirs)
        assert not checking.same_outputs(load, ours, lambda: None)
        if work != "write":
            assert torch.equal(load.context.canary_buf, before)
        assert int(load.log.violation_write_index) == 0


def test_the_cpu_engine_is_timed_in_every_mode() -> None:
    threads = numba.get_num_threads()
    rows = list(bench_cpu(requests=4, length=64))
    assert [(row.work, row.mode) for row in rows] == [(work, mode) for work in ("verify", "write") for mode in MODES]
    assert all(min(row.reference_us, row.one_thread_us, row.all_threads_us) > 0 for row in rows)
    assert numba.get_num_threads() == threads, "the number of threads is put back"
