"""The benchmark of a step: its launches, that all ways of running it are compared, and the table."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from benchmarks import run, step_table
from benchmarks.build import build
from benchmarks.cases import CASES, MODES, Case
from benchmarks.peer import Peers
from benchmarks.step import Step, build_step, check_runners, launched, prepared
from benchmarks.step_table import problems, step_lines, with_ratios
from benchmarks.timing import Ceilings, Timing

from canary_numba import (
    CanaryLaunchTag,
    launch_canary_plan_kernels,
    launch_canary_verify_kernel,
    launch_canary_write_kernel,
)

OURS: dict[str, Callable[..., None]] = {
    "verify": launch_canary_verify_kernel,
    "write": launch_canary_write_kernel,
    "plan": launch_canary_plan_kernels,
}
REFERENCE: dict[str, Callable[..., None]] = {work: partial(launch, engine="reference") for work, launch in OURS.items()}
TAGS = ["HEAD_K_FULL", "HEAD_V_FULL", "TAIL_K_FULL", "TAIL_V_FULL"]


def small(mode: str = "all", prefix: int = 30, name: str = "small") -> Case:
    row_bytes = () if mode == "none" else (64,)
    return Case(name=name, work="step", requests=3, prefix=prefix, extend=2, row_bytes=row_bytes, mode=mode)


def test_every_scene_is_there_in_every_mode() -> None:
    steps = [case for case in CASES if case.work == "step"]
    assert [case.mode for case in steps] == [*MODES] * 3
    assert {(case.requests, case.prefix, case.extend) for case in steps} == {
        (256, 4096, 1),
        (1, 0, 8192),
        (1, 24576, 8192),
    }


class TestStep:
    def test_contexts(self) -> None:
        step = build_step(small(), "cpu")
        assert [context.kernel_kind.name for context in step.contexts] == TAGS
        assert [len(context.real_kv_sources) for context in step.contexts] == [0, 0, 1, 1]
        k, v = (context.real_kv_sources[0].tensor for context in step.tails)
        assert not torch.equal(k, v)
        assert len({context.canary_buf.data_ptr() for context in step.contexts}) == 4
        # Once mark_init_finished() has run, SGLang asserts positions.
        assert int(step.heads[0].enable_chain_position_assert) == 1

    def test_a_run_can_be_repeated(self) -> None:
        step = build_step(small(), "cpu")
        step.reset()
        launched(step, OURS)()
        first = step.outcome()
        assert first["counters"] == [[90 + 6] * 4, [2] * 4]
        assert first["number of rows"] == 0
        launched(step, OURS)()
        second = step.outcome()
        assert all(torch.equal(first[f"records of {tag}"], second[f"records of {tag}"]) for tag in TAGS)
        assert second["counters"] == [[2 * 96] * 4, [4] * 4]

    def test_reset_undoes_a_run(self) -> None:
        step = build_step(small(), "cpu")
        step.reset()
        before = step.outcome()
        launched(step, OURS)()
        assert not torch.equal(step.outcome()["records of HEAD_V_FULL"], before["records of HEAD_V_FULL"])
        step.reset()
        after = step.outcome()
        assert before.keys() == after.keys()
        for name, value in before.items():
            assert torch.equal(value, after[name]) if isinstance(value, torch.Tensor) else value == after[name]

    def test_launches_are_in_the_order_of_sglangs_runtime(self) -> None:
        calls: list[str] = []

        def record(work: str, **arguments: Any) -> None:
            calls.append(f"{work} {arguments['context'].kernel_kind.name}" if "context" in arguments else work)

        launched(build_step(small(), "cpu"), {work: partial(record, work) for work in OURS})()
        assert calls == ["plan", *(f"{work} {tag}" for tag in TAGS for work in ("verify", "write"))]


class TestCheckRunners:
    @pytest.mark.parametrize("mode", MODES)
    def test_damage_is_reported_and_mended(self, mode: str) -> None:
        step = build_step(small(mode), "cpu")
        sources = [source.tensor.clone() for context in step.tails for source in context.real_kv_sources]
        before = [buf.clone() for buf in step.before]
        runners = {"ours": launched(step, OURS), "prepared": prepared(step), "reference": launched(step, REFERENCE)}
        said = check_runners(step, runners)
        # Of 90 cached tokens each 8th HEAD V record, which its successor notices as well, and each 2nd row of K and V.
        per_source = {"none": 0, "partial": 44, "all": 44}[mode]
        assert said == f"equal, {2 * 12 + 2 * per_source} rows"
        now = [source.tensor for context in step.tails for source in context.real_kv_sources]
        assert all(map(torch.equal, sources, now))
        assert all(map(torch.equal, before, step.before))
        assert int(step.load.log.violation_write_index) == 0

    def test_without_cached_tokens_nothing_can_be_damaged(self) -> None:
        step = build_step(small(prefix=0), "cpu")
        assert check_runners(step, {"ours": launched(step, OURS), "prepared": prepared(step)}) == "equal, 0 rows"

    @pytest.mark.parametrize(
        ("left_out", "what"),
        [
            (("plan", None), "verify plan: verify_slot_indices"),
            (("write", CanaryLaunchTag.TAIL_V_FULL), "records of TAIL_V_FULL"),
            (("verify", CanaryLaunchTag.HEAD_V_FULL), "counters"),
        ],
    )
    def test_a_runner_that_leaves_something_out_is_found(
        self, left_out: tuple[str, CanaryLaunchTag | None], what: str
    ) -> None:
        step = build_step(small(), "cpu")

        def launch(work: str, **arguments: Any) -> None:
            context = arguments.get("context")
            if (work, context and context.kernel_kind) != left_out:
                OURS[work](**arguments)

        poor = launched(step, {work: partial(launch, work) for work in OURS})
        with pytest.raises(AssertionError, match=f"{what} differ between ours and poor"):
            check_runners(step, {"ours": launched(step, OURS), "poor": poor})

    def test_a_runner_that_sees_no_damage_is_found(self) -> None:
        step = build_step(small(), "cpu")
        whole = launched(step, OURS)

        def blind() -> None:
            whole()
            step.load.log.violation_write_index.zero_()

        with pytest.raises(AssertionError, match="number of rows differ between ours and blind"):
            check_runners(step, {"ours": whole, "blind": blind})

    def test_rows_on_a_clean_cache(self) -> None:
        step = build_step(small(), "cpu")
        step.before[0][int(step.load.plan_arguments["req_to_token"][1, 3]), 8] ^= 1
        with pytest.raises(AssertionError, match="2 rows on a clean cache"):
            check_runners(step, {"ours": launched(step, OURS)})


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")
@pytest.mark.parametrize("mode", MODES)
def test_all_our_ways_leave_the_same_on_a_gpu(mode: str) -> None:
    step = build_step(small(mode), "cuda")
    runners, missing = step_table.ready_runners(step, Peers({}, "none"))
    assert missing == {"sglang": "none"}
    assert check_runners(step, runners).startswith("equal, ")


class TestTable:
    def test_eager_steps_are_compared_with_sglangs_and_graphs_with_its_graph(self) -> None:
        times = {
            "sglang eager": 300.0,
            "sglang graph": 200.0,
            "ours eager": 100.0,
            "ours prepared": 50.0,
            "ours graph": 20.0,
        }
        rows = with_ratios([{"runner": name, "median_us": time} for name, time in times.items()])
        assert [row["sglang_ratio"] for row in rows] == [None, None, 3.0, 6.0, 10.0]
        alone = with_ratios([{"runner": "ours eager", "median_us": 100.0}])
        assert alone[0]["sglang_ratio"] is None


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that is this CPU, and clocks that stand still."""

    def on_cpu(make: Callable[[Case, str], Any]) -> Callable[[Case, str], Any]:
        return lambda case, _: make(case, "cpu")

    def captured(work: Callable[[], None]) -> Callable[[], None]:
        work()
        return work

    def timed(*_: Any, **__: Any) -> Timing:
        return Timing(100.0, 90.0, 110.0)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "no GPU")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(step_table, "build_step", on_cpu(build_step))
    monkeypatch.setattr(run, "build", on_cpu(build))
    monkeypatch.setattr(step_table, "Captured", captured)
    for module in (run, step_table):
        for name in ("time_device", "time_host"):
            monkeypatch.setattr(module, name, timed)
        monkeypatch.setattr(module, "repeats_within", lambda *_: 3)
    monkeypatch.setattr(run, "measure_ceilings", lambda: Ceilings(1e12, 1e12, 1e12))
    works = ("verify", "write", "plan")
    kernels = [Case(name=f"a {work}", work=work, requests=2, prefix=9, extend=2) for work in works]
    monkeypatch.setattr(run, "CASES", (*kernels, small(name="a step")))


def with_peers(monkeypatch: pytest.MonkeyPatch, launchers: dict[str, Callable[..., None]]) -> None:
    monkeypatch.setattr(run, "find_peers", lambda folder: Peers(launchers, f"some, from {folder}"))


@pytest.mark.usefixtures("pretended")
class TestRun:
    def test_with_peers(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        with_peers(monkeypatch, REFERENCE)
        path = tmp_path / "figures.json"
        works = [word for work in ("verify", "write", "plan", "step") for word in ("--work", work)]
        result = CliRunner().invoke(run.main, [*works, "--sglang", str(tmp_path), "--json", str(path)])
        assert result.exception is None, result.output
        assert f"SGLang's kernels: some, from {tmp_path}" in result.output
        figures = json.loads(path.read_text())
        assert figures["problems"] == []
        assert "SGLang's kernels leave the same in 3 of 3 cases" in result.output
        assert [(row["work"], row["sglang_checked"]) for row in figures["rows"]] == [
            ("verify", "equal"),
            ("write", "equal"),
            ("plan", "equal"),
        ]
        (step,) = figures["steps"]
        assert step["checked"].startswith("equal, ")
        assert step["missing"] == {}
        names = ["sglang eager", "sglang graph", "ours eager", "ours prepared", "ours graph"]
        assert [row["runner"] for row in step["runners"]] == names
        assert all(name in result.output for name in names)

    def test_without_peers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with_peers(monkeypatch, {})
        result = CliRunner().invoke(run.main, ["--work", "step", "--no-check"])
        assert result.exception is None, result.output
        assert "ours prepared" in result.output
        assert "left out: some, from None" in result.output
        assert "ceilings" not in result.output, "a step is held against none"

    def test_a_peer_that_differs_or_breaks(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        def breaks(**_: Any) -> None:
            raise RuntimeError("no\nluck")

        with_peers(monkeypatch, {"verify": lambda **_: None, "write": breaks, "plan": REFERENCE["plan"]})
        path = tmp_path / "figures.json"
        works = [word for work in ("verify", "write", "plan", "step") for word in ("--work", work)]
        result = CliRunner().invoke(run.main, [*works, "--json", str(path)])
        assert result.exit_code == 1
        assert "Error: verify, a verify: SGLang's kernel leaves something else" in result.output
        assert "SGLang's kernel did not run: RuntimeError: no" in result.output
        figures = json.loads(path.read_text())
        assert [row["sglang_measured_here"] for row in figures["rows"]] == [True, False, True]
        (step,) = figures["steps"]
        assert step["missing"]["sglang eager"] == "RuntimeError: no"
        assert [row["runner"] for row in step["runners"]] == ["ours eager", "ours prepared", "ours graph"]

    def test_what_was_measured_before_an_error_is_kept(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        with_peers(monkeypatch, {})

        def fails(*_: Any) -> None:
            raise RuntimeError("no luck")

        monkeypatch.setattr(run, "run_step", fails)
        path = tmp_path / "figures.json"
        result = CliRunner().invoke(run.main, ["--work", "verify", "--work", "step", "--json", str(path)])
        assert isinstance(result.exception, RuntimeError)
        assert [row["case"] for row in json.loads(path.read_text())["rows"]] == ["a verify"]

    def test_ways_of_ours_that_fail_are_problems_and_sglangs_are_not(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fails(step: Step) -> None:
            raise RuntimeError("no luck")

        monkeypatch.setattr(step_table, "prepared", fails)
        step = step_table.run_step(small(), True, Peers({}, "none"))
        assert step["missing"] == {
            "sglang": "none",
            "ours prepared": "RuntimeError: no luck",
            "ours graph": "RuntimeError: no luck",
        }
        assert problems(step) == [
            "small, ours prepared: RuntimeError: no luck",
            "small, ours graph: RuntimeError: no luck",
        ]
        assert "  ours prepared          left out: RuntimeError: no luck" in step_lines(step)

    def test_ways_that_differ_are_a_problem_but_are_timed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(step_table, "prepared", lambda step: lambda: None)
        step = step_table.run_step(small(), True, Peers({}, "none"))
        assert len(problems(step)) == 1
        assert "NOT EQUAL: small: " in problems(step)[0]
        assert len(step["runners"]) == 3
