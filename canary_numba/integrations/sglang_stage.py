"""K and V of a stage in one launch: SGLang launches verify and write of one half, then of the other.

While its function for a stage runs, the replaced launchers hold their launches back; when it returns, those that differ
in nothing but the context go out together. Verify of V then runs before write of K, which changes nothing: a half's
launches touch no record but their own buffer's.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

STAGES: Final = ("launch_endpoints_per_forward", "launch_endpoints_sweep")
STAGES_HOME: Final = "sglang.srt.kv_canary.runner.kernel_launcher"

Arguments = dict[str, Any]


class Held(NamedTuple):
    """A launch held back: ``together`` launches for several contexts and says whether it did, ``alone`` for one."""

    name: str
    arguments: Arguments
    together: Callable[[Arguments], bool]
    alone: Callable[[Arguments], None]


class _OfThread(threading.local):
    held: list[Held] | None = None


_stage = _OfThread()


def hold(launch: Held) -> bool:
    """Hold a launch back if a stage is being launched on this thread; say whether."""
    if _stage.held is None:
        return False
    _stage.held.append(launch)
    return True


def gathering(theirs: Callable[..., None]) -> Callable[..., None]:
    """Wrap SGLang's function for a stage: what it launches goes out when it returns, or fails."""

    @functools.wraps(theirs)
    def launch_stage(**arguments: Any) -> None:
        if _stage.held is not None:
            theirs(**arguments)
            return
        held: list[Held] = []
        _stage.held = held
        try:
            theirs(**arguments)
        finally:
            _stage.held = None
            for group in in_groups(held):
                _launch(group)

    return launch_stage


def in_groups(held: Sequence[Held]) -> list[list[Held]]:
    """What can go out together; each launch in a group of its own, in order, if two halves share a buffer."""
    for name in {launch.name for launch in held}:
        spans = sorted(_span(launch) for launch in held if launch.name == name)
        if any(start + size > then for (start, size), (then, _) in itertools.pairwise(spans)):
            return [[launch] for launch in held]
    groups: list[list[Held]] = []
    # Stable: verify before write, halves as they came.
    for launch in sorted(held, key=lambda launch: "verify" not in launch.name):
        if groups and _differ_in_context_only(groups[-1][-1], launch):
            groups[-1].append(launch)
        else:
            groups.append([launch])
    return groups


def _span(launch: Held) -> tuple[int, int]:
    buffer = launch.arguments["context"].canary_buf
    return buffer.data_ptr(), buffer.numel()


def _differ_in_context_only(one: Held, other: Held) -> bool:
    names = one.arguments.keys()
    if one.name != other.name or names != other.arguments.keys():
        return False
    # The very same objects: whether two tensors hold the same is for the device to know.
    return all(name == "context" or one.arguments[name] is other.arguments[name] for name in names)


def _launch(group: list[Held]) -> None:
    first = group[0]
    contexts = tuple(launch.arguments["context"] for launch in group)
    if len(group) > 1 and first.together({**first.arguments, "context": contexts}):
        return
    for launch in group:
        launch.alone(launch.arguments)
