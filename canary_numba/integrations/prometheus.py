"""What a ``KVCanary`` finds, as Prometheus metrics.

With the default prefix these are, all fed from :meth:`KVCanary.poll` and :meth:`KVCanary.check`:

====================================  =======  =========================================================================
``kv_canary_passes_total``            counter  guarded passes
``kv_canary_violations_total``        counter  violations reported
``kv_canary_launches_total{tag}``     counter  kernel launches
``kv_canary_slots_total{tag}``        counter  slots checked or written
``kv_canary_plans_too_large_total``   counter  plans that did not fit, so that nothing was verified
``kv_canary_healthy``                 gauge    1 if every pass between the last two calls of ``check`` was checked
====================================  =======  =========================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from canary_numba.errors import IntegrationError

if TYPE_CHECKING:
    from canary_numba.capture.guard import Health
    from canary_numba.capture.pool import KVCanary


class CanaryMetrics:
    """The metrics of one :class:`~canary_numba.capture.pool.KVCanary`.

    Parameters
    ----------
    canary
        The guard.
    registry
        The ``prometheus_client.CollectorRegistry`` to register in; default: the client's own.
    prefix
        What the names start with; give each canary of a registry its own.

    Raises
    ------
    IntegrationError
        ``prometheus_client`` is not installed.
    """

    def __init__(self, canary: KVCanary, *, registry: Any = None, prefix: str = "kv_canary") -> None:
        try:
            import prometheus_client
        except ImportError as error:
            raise IntegrationError(f"prometheus_client is missing ({error}): pip install prometheus_client") from error
        self.canary = canary
        where: dict[str, Any] = {"namespace": prefix}
        where["registry"] = prometheus_client.REGISTRY if registry is None else registry
        counter = prometheus_client.Counter
        self._passes = counter("passes", "Guarded forward passes.", **where)
        self._violations = counter("violations", "Canary violations reported.", **where)
        self._launches = counter("launches", "Canary kernel launches.", ["tag"], **where)
        self._slots = counter("slots", "Slots that the canary checked or wrote.", ["tag"], **where)
        self._too_large = counter("plans_too_large", "Plans that did not fit: passes left unverified.", **where)
        self._healthy = prometheus_client.Gauge("healthy", "1 if every pass looked at last was checked.", **where)
        self._seen_passes = self._seen_violations = 0

    def update(self) -> None:
        """Bring the counts of passes and violations up to date, without waiting for the device: fit for every pass."""
        self._count(self.canary.poll())

    def check(self) -> Health:
        """Bring all metrics up to date, and tell what :meth:`KVCanary.check` told. Waits for the device.

        Returns
        -------
        Health
            What happened since the last call. Call this instead of the canary's own ``check``: each look starts anew.
        """
        health = self.canary.check()
        self._count(health.violations)
        for tag, launches in health.launches.items():
            self._launches.labels(tag).inc(launches)
        for tag, slots in health.slots.items():
            self._slots.labels(tag).inc(slots)
        self._too_large.inc(health.plans_too_large)
        self._healthy.set(int(health.ok))
        return health

    def _count(self, violations: int) -> None:
        passes = self.canary.passes
        self._passes.inc(passes - self._seen_passes)
        self._violations.inc(max(0, violations - self._seen_violations))
        self._seen_passes, self._seen_violations = passes, max(violations, self._seen_violations)
