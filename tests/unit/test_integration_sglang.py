"""SGLang's launchers are replaced wherever its modules hold them, and come back."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from sglang_launchers import HOMES, SCATTER, VERIFY, Theirs, held, launcher, stand_in

from canary_numba.errors import EngineUnavailableError, IntegrationError
from canary_numba.integrations import sglang

ROOT = Path(__file__).parents[2]


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Theirs]:
    yield from stand_in(monkeypatch)


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

    def test_sglang_finds_it_by_the_entry_point(self) -> None:
        group = (ROOT / "pyproject.toml").read_text().split('[project.entry-points."sglang.srt.plugins"]')[1]
        entry = next(line for line in group.splitlines() if line.startswith("canary_numba = "))
        module, _, name = entry.split('"')[1].partition(":")
        assert getattr(importlib.import_module(module), name) is sglang.plugin


def test_the_documentation_names_the_limits_and_the_switch() -> None:
    document = (ROOT / "docs" / "capture.md").read_text()
    assert f"{sglang.PLAN_REQUESTS:,} requests of a plan on a GPU or {sglang.SCATTER_REQUESTS} of a scatter" in document
    assert f"{sglang.SWITCH}=1" in document
    assert f"SGLang {sglang.VERSION} plans, verifies, writes and scatters" in document
