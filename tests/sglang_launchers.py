"""Stand-ins for the modules of SGLang 0.5.23 that hold its KV-canary launchers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

from canary_numba.integrations import sglang

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


def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[Theirs]:
    """Put the modules in place, each holding the launchers that the real one holds; uninstall in the end."""
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
