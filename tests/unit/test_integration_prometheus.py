"""A canary's findings as Prometheus metrics."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from sglang_shaped import Manager

from canary_numba.errors import IntegrationError
from canary_numba.integrations.prometheus import CanaryMetrics


@pytest.fixture
def manager() -> Manager:
    return Manager()


def test_without_the_client_the_error_says_what_to_install(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(IntegrationError, match="pip install prometheus_client"):
        CanaryMetrics(manager.canary)


class TestMetrics:
    @pytest.fixture
    def registry(self) -> Any:
        return pytest.importorskip("prometheus_client").CollectorRegistry()

    @pytest.fixture
    def metrics(self, manager: Manager, registry: Any) -> CanaryMetrics:
        return CanaryMetrics(manager.canary, registry=registry)

    def test_a_clean_run(self, manager: Manager, registry: Any, metrics: CanaryMetrics) -> None:
        manager.serve(lens=(9, 6), steps=2)
        assert metrics.check().ok
        value = registry.get_sample_value
        assert value("kv_canary_passes_total") == 3
        assert value("kv_canary_violations_total") == 0
        assert value("kv_canary_plans_too_large_total") == 0
        assert value("kv_canary_healthy") == 1
        launches = manager.canary.log.kernel_run.tolist()
        assert value("kv_canary_launches_total", {"tag": "TAIL_V_FULL"}) == launches[3] > 0
        assert value("kv_canary_slots_total", {"tag": "HEAD_K_FULL"}) == manager.canary.log.slot_run.tolist()[0] > 0

    def test_counts_grow_and_never_count_twice(self, manager: Manager, registry: Any, metrics: CanaryMetrics) -> None:
        manager.serve(steps=1)
        manager.pool.k_buffer[0][3] += 1
        manager.forward("decode_or_idle", [10, 7], [1, 1])
        metrics.update()
        metrics.update()
        metrics.check()
        metrics.check()
        value = registry.get_sample_value
        found = manager.canary.poll()
        assert found > 0
        assert value("kv_canary_violations_total") == found
        assert value("kv_canary_passes_total") == 3
        assert value("kv_canary_launches_total", {"tag": "TAIL_K_FULL"}) == manager.canary.log.kernel_run.tolist()[2]

    def test_an_unverified_pass_is_unhealthy(self, registry: Any) -> None:
        manager = Manager()
        metrics = CanaryMetrics(manager.canary, registry=registry)
        manager.canary.log.plans_too_large.add_(1)
        assert not metrics.check().ok
        assert registry.get_sample_value("kv_canary_healthy") == 0
        assert registry.get_sample_value("kv_canary_plans_too_large_total") == 1

    def test_two_canaries_share_a_registry_under_two_names(
        self, manager: Manager, registry: Any, metrics: CanaryMetrics
    ) -> None:
        with pytest.raises(ValueError, match="Duplicated"):
            CanaryMetrics(manager.canary, registry=registry)
        CanaryMetrics(manager.canary, registry=registry, prefix="draft").update()
        assert registry.get_sample_value("draft_passes_total") == 0
