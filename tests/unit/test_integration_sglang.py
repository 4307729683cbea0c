"""SGLang's launchers are replaced wherever its modules hold them, refuse what they refused, and come back."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

from canary_numba.context import RealKvSource, ViolationLog
from canary_numba.errors import EngineUnavailableError, IntegrationError
from canary_numba.integrations import sglang
from canary_numba.layout import CanaryLaunchTag, RealKvHashMode
from canary_numba.plans import VerifyPlan, WritePlan

OPS = "sglang.kernels.ops.kv_canary"
PLAN, WRITE, VERIFY, SCATTER = (
    "launch_canary_plan_kernels",
    "launch_canary_write_kernel",
    "launch_canary_verify_kernel",
    "launch_scatter_req_token_ids_kernel",
)
HOMES = {
    PLAN: f"{OPS}.plan.api",
    WRITE: f"{OPS}.write",
    VERIFY: f"{OPS}.verify",
    SCATTER: f"{OPS}.scatter_req_token_ids",
}
CALLERS = {
    PLAN: (f"{OPS}.plan", "sglang.srt.kv_canary.runner.kernel_launcher"),
    WRITE: ("sglang.srt.kv_canary.endpoint",),
    VERIFY: ("sglang.srt.kv_canary.endpoint",),
    SCATTER: ("sglang.srt.kv_canary.req_to_expected_token_ids_manager",),
}


class Theirs:
    """SGLang's four launchers: they note that they ran, and refuse what they are told to."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.refuse = ""

    def _note(self, name: str) -> None:
        if self.refuse:
            raise ValueError(self.refuse)
        self.ran.append(name)

    def launchers(self) -> dict[str, Callable[..., None]]:
        note = self._note

        def launch_canary_plan_kernels(
            *,
            verify_plan_out: Any,
            write_plan_out: Any,
            req_pool_indices: Any,
            prefix_lens: Any,
            extend_seq_lens: Any,
            req_to_token: Any,
            swa_window_size: Any,
            full_to_swa_index_mapping: Any,
            verify_capacity: Any,
            req_to_verify_expected_tokens: Any,
            req_to_verify_expected_tokens_valid_lens: Any,
            kv_token_id_vs_position_offset: Any,
        ) -> None:
            note(PLAN)

        def launch_canary_write_kernel(
            *,
            context: Any,
            plan: Any,
            input_ids: Any,
            positions: Any,
            out_cache_loc: Any,
            enable_write_input_assert: Any,
            expected_input_tokens: Any,
            expected_input_positions: Any,
        ) -> None:
            note(WRITE)

        def launch_canary_verify_kernel(*, context: Any, plan: Any, check_verify_expected_token: Any) -> None:
            """Verify, says SGLang."""
            note(VERIFY)

        def launch_scatter_req_token_ids_kernel(
            *, flat_in: Any, offsets: Any, req_pool_indices: Any, pool_out: Any
        ) -> None:
            note(SCATTER)

        found: dict[str, Any] = locals()
        return {name: found[name] for name in HOMES}


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Theirs]:
    """Stand-ins for SGLang's modules, each holding the launchers that the real one holds."""
    theirs = Theirs()
    holds: dict[str, dict[str, Any]] = {"sglang": {}, "sglang.version": {"__version__": "0.5.23"}}
    for name, launcher in theirs.launchers().items():
        for module in (HOMES[name], *CALLERS[name]):
            holds.setdefault(module, {})[name] = launcher
    for module, attributes in holds.items():
        stand_in = ModuleType(module)
        vars(stand_in).update(attributes)
        monkeypatch.setitem(sys.modules, module, stand_in)
    yield theirs
    if sglang._installed is not None:
        sglang._installed.uninstall()


def held() -> dict[str, Any]:
    return {
        f"{module}.{name}": getattr(sys.modules[module], name)
        for name, home in HOMES.items()
        for module in (home, *CALLERS[name])
    }


def launcher(name: str) -> Callable[..., None]:
    found: Callable[..., None] = getattr(sys.modules[CALLERS[name][0]], name)
    return found


def plan_arguments(bs: int = 2, dtype: torch.dtype = torch.int64, **changed: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "verify_plan_out": VerifyPlan.allocate(verify_capacity=16, device="cpu"),
        "write_plan_out": WritePlan.allocate(write_req_capacity=bs, device="cpu"),
        "req_pool_indices": torch.arange(1, bs + 1, dtype=dtype),
        "prefix_lens": torch.full((bs,), 3, dtype=dtype),
        "extend_seq_lens": torch.ones(bs, dtype=dtype),
        "req_to_token": torch.arange(1, 1 + (bs + 1) * 8, dtype=torch.int32).view(bs + 1, 8),
        "swa_window_size": 0,
        "full_to_swa_index_mapping": None,
        "verify_capacity": 16,
        "req_to_verify_expected_tokens": None,
        "req_to_verify_expected_tokens_valid_lens": None,
        "kv_token_id_vs_position_offset": 0,
    }
    return {**arguments, **changed}


def context(sources: int = 0) -> Any:
    memory = torch.zeros((32, 16), dtype=torch.uint8)
    source = RealKvSource(tensor=memory, page_size=1, num_bytes_per_token=16, read_bytes=16)
    return ViolationLog.allocate(ring_capacity=4, device="cpu").context(
        canary_buf=torch.zeros((32, 32), dtype=torch.uint8),
        kernel_kind=CanaryLaunchTag.HEAD_K_FULL,
        real_kv_sources=(source,) * sources,
        real_kv_hash_mode=RealKvHashMode.ALL if sources else RealKvHashMode.NONE,
    )


class TestInstall:
    def test_every_name_is_replaced_and_comes_back(self, theirs: Theirs) -> None:
        before = held()
        installed = sglang.install()
        assert sorted(installed.bindings) == sorted(before)
        assert all(now is not before[name] for name, now in held().items())
        assert len({id(now) for now in held().values()}) == len(HOMES)
        installed.uninstall()
        assert held() == before
        installed.uninstall()
        assert held() == before

    def test_a_context_manager_uninstalls_also_after_an_error(self, theirs: Theirs) -> None:
        before = held()

        def serve() -> None:
            with sglang.install():
                assert held() != before
                raise KeyError("server")

        with pytest.raises(KeyError):
            serve()
        assert held() == before

    def test_installing_twice_wraps_once(self, theirs: Theirs) -> None:
        before = held()
        first = sglang.install()
        assert sglang.install() is first
        first.uninstall()
        assert held() == before
        assert sglang.install() is not first

    def test_modules_imported_later_are_covered(self, theirs: Theirs, monkeypatch: pytest.MonkeyPatch) -> None:
        original = launcher(VERIFY)
        installed = sglang.install()
        late = ModuleType("sglang.srt.late")
        vars(late)[VERIFY] = getattr(sys.modules[HOMES[VERIFY]], VERIFY)
        monkeypatch.setitem(sys.modules, late.__name__, late)
        assert getattr(late, VERIFY) is launcher(VERIFY)
        installed.uninstall()
        assert getattr(late, VERIFY) is original

    def test_other_peoples_modules_and_hooks_are_left_alone(
        self, theirs: Theirs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        original = launcher(VERIFY)
        foreign = ModuleType("sglang_tools")
        vars(foreign)[VERIFY] = original
        monkeypatch.setitem(sys.modules, foreign.__name__, foreign)
        endpoint = sys.modules["sglang.srt.kv_canary.endpoint"]
        sglang.install()
        setattr(endpoint, VERIFY, hook := lambda **_: None)
        assert sglang._installed is not None
        sglang._installed.uninstall()
        assert getattr(foreign, VERIFY) is original
        assert getattr(endpoint, VERIFY) is hook

    def test_one_line_is_logged(self, theirs: Theirs, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.INFO, "canary_numba.integrations"):
            sglang.install()
            sglang.install()
        (record,) = caplog.records
        assert record.getMessage().startswith("SGLang 0.5.23: its KV-canary runs on canary-numba (")
        assert "sglang.srt.kv_canary.endpoint.launch_canary_verify_kernel" in record.getMessage()

    def test_names_and_documentation_stay_those_of_sglang(self, theirs: Theirs) -> None:
        sglang.install()
        assert (launcher(VERIFY).__name__, launcher(VERIFY).__doc__) == (VERIFY, "Verify, says SGLang.")


class TestRefusals:
    def test_another_version_is_refused_unless_forced(self, theirs: Theirs) -> None:
        sys.modules["sglang.version"].__version__ = "0.5.24"  # type: ignore[attr-defined]
        before = held()
        with pytest.raises(IntegrationError, match=r"^SGLang: expected version 0\.5\.23, got 0\.5\.24; force=True"):
            sglang.install()
        assert held() == before
        with sglang.install(force=True) as installed:
            assert len(installed.bindings) == len(before)

    def test_no_sglang_at_all(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "sglang.version", None)
        with pytest.raises(IntegrationError, match=r"^SGLang 0\.5\.23 is not installed"):
            sglang.install()

    def test_launchers_with_other_arguments_are_refused_even_when_forced(self, theirs: Theirs) -> None:
        def changed(*, context: Any, plan: Any, check_verify_expected_token: Any, stream: Any) -> None: ...

        setattr(sys.modules[HOMES[VERIFY]], VERIFY, changed)
        before = held()
        with pytest.raises(IntegrationError, match=f"{VERIFY}: expected the arguments .*, got .*stream"):
            sglang.install(force=True)
        assert held() == before

    def test_a_launcher_that_moved_is_refused(self, theirs: Theirs) -> None:
        delattr(sys.modules[HOMES[SCATTER]], SCATTER)
        with pytest.raises(IntegrationError, match=f"expected {SCATTER} in {HOMES[SCATTER]}"):
            sglang.install(force=True)

    def test_a_gpu_without_numba_cuda_is_refused(self, theirs: Theirs, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        before = held()
        with pytest.raises(EngineUnavailableError, match="numba-cuda is missing: pip install"):
            sglang.install()
        assert held() == before


class TestLaunches:
    @pytest.fixture(autouse=True)
    def installed(self, theirs: Theirs) -> sglang.Installed:
        return sglang.install()

    @pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
    def test_a_step_runs_on_ours(self, theirs: Theirs, dtype: torch.dtype) -> None:
        arguments = plan_arguments(dtype=dtype)
        launcher(PLAN)(**arguments)
        verify_plan, write_plan = arguments["verify_plan_out"], arguments["write_plan_out"]
        assert verify_plan.verify_slot_indices[:6].tolist() == [9, 10, 11, 17, 18, 19]
        where = context(sources=2)
        flat = {"input_ids": [7, 8], "positions": [3, 3], "out_cache_loc": [12, 20]}
        launcher(WRITE)(
            context=where,
            plan=write_plan,
            enable_write_input_assert=True,
            expected_input_tokens=torch.tensor([7, 8], dtype=dtype),
            expected_input_positions=torch.tensor([3, 4], dtype=dtype),
            **{name: torch.tensor(values, dtype=dtype) for name, values in flat.items()},
        )
        assert where.canary_buf.view(torch.int64)[[12, 20], :2].tolist() == [[7, 3], [8, 3]]
        assert int(where.violation_write_index) == 1
        launcher(VERIFY)(context=where, plan=verify_plan, check_verify_expected_token=False)
        assert (int(where.kernel_run_counter), int(where.slot_run_counter)) == (2, 8)
        assert theirs.ran == []

    def test_scatter_runs_on_ours(self, theirs: Theirs) -> None:
        pool = torch.zeros((3, 4), dtype=torch.int32)
        offsets, rows = torch.tensor([0, 2, 3]), torch.tensor([2, 1])
        launcher(SCATTER)(flat_in=torch.tensor([5, 6, 7]), offsets=offsets, req_pool_indices=rows, pool_out=pool)
        assert pool.tolist() == [[0] * 4, [7, 0, 0, 0], [5, 6, 0, 0]]
        assert theirs.ran == []

    @pytest.mark.parametrize(
        ("name", "arguments"),
        [
            (VERIFY, lambda: {"context": context(5), "plan": None, "check_verify_expected_token": False}),
            (PLAN, lambda: plan_arguments(swa_window_size=4)),
            (PLAN, lambda: plan_arguments(verify_capacity=15)),
            (SCATTER, lambda: dict.fromkeys(("flat_in", "offsets", "req_pool_indices", "pool_out"))),
        ],
    )
    def test_what_sglang_refuses_it_refuses_in_its_own_words(
        self, theirs: Theirs, name: str, arguments: Callable[[], dict[str, Any]]
    ) -> None:
        theirs.refuse = "kv-canary: SGLang says no"
        with pytest.raises(ValueError, match=r"^kv-canary: SGLang says no$") as caught:
            launcher(name)(**arguments())
        assert caught.value.__context__ is None

    def test_its_limit_of_scattered_requests_stays(self, theirs: Theirs) -> None:
        theirs.refuse = "kv-canary: too many"
        for bs in (sglang.SCATTER_REQUESTS, sglang.SCATTER_REQUESTS + 1):
            arguments = {
                "flat_in": torch.arange(bs),
                "offsets": torch.arange(bs + 1),
                "req_pool_indices": torch.arange(bs),
                "pool_out": torch.zeros((bs, 1), dtype=torch.int32),
            }
            if bs == sglang.SCATTER_REQUESTS:
                launcher(SCATTER)(**arguments)
                assert arguments["pool_out"].flatten().tolist() == list(range(bs))
            else:
                with pytest.raises(ValueError, match="too many"):
                    launcher(SCATTER)(**arguments)

    def test_its_limit_of_planned_requests_is_the_gpus(self, theirs: Theirs) -> None:
        bs = sglang.PLAN_REQUESTS + 1
        arguments = plan_arguments(bs, prefix_lens=torch.zeros(bs, dtype=torch.int64))
        launcher(PLAN)(**arguments)
        assert int(arguments["write_plan_out"].write_num_valid_reqs) == bs
        assert theirs.ran == []

    def test_what_only_sglang_takes_runs_on_its_own_kernel_with_one_warning(
        self, theirs: Theirs, caplog: pytest.LogCaptureFixture
    ) -> None:
        wide = torch.zeros((3, 8), dtype=torch.int64)
        for _ in range(2):
            launcher(PLAN)(**plan_arguments(req_to_token=wide))
        assert theirs.ran == [PLAN, PLAN]
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert record.getMessage().startswith(f"{PLAN}: SGLang's own kernel ran")
        assert "req_to_token: expected torch.int32, got torch.int64" in record.getMessage()

    def test_a_missing_argument_is_an_error_of_the_call(self, theirs: Theirs) -> None:
        with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'plan'"):
            launcher(VERIFY)(context=context(), check_verify_expected_token=False)
        assert theirs.ran == []


class TestPlugin:
    @pytest.mark.parametrize("value", [None, "", "0"])
    def test_unasked_it_does_nothing(self, theirs: Theirs, value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv(sglang.SWITCH, raising=False)
        if value is not None:
            monkeypatch.setenv(sglang.SWITCH, value)
        sglang.plugin()
        assert sglang._installed is None

    def test_asked_it_installs(self, theirs: Theirs, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(sglang.SWITCH, "1")
        sglang.plugin()
        assert sglang._installed is not None

    def test_force(self, theirs: Theirs, monkeypatch: pytest.MonkeyPatch) -> None:
        sys.modules["sglang.version"].__version__ = "0.6.0"  # type: ignore[attr-defined]
        monkeypatch.setenv(sglang.SWITCH, "1")
        with pytest.raises(IntegrationError):
            sglang.plugin()
        monkeypatch.setenv(sglang.SWITCH, "force")
        sglang.plugin()
        assert sglang._installed is not None
