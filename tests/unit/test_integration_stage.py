"""What SGLang launches for a stage goes out together where that changes nothing, and as it came where it might."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import batched
import pytest

from canary_numba import launch
from canary_numba.context import ViolationAggregate
from canary_numba.integrations.sglang_stage import Held, gathering, hold

VERIFY, WRITE = "launch_canary_verify_kernel", "launch_canary_write_kernel"


class Recorder:
    """Launches on the CPU, and notes what went out: name and number of contexts."""

    def __init__(self, refuses: bool = False) -> None:
        self.sent: list[tuple[str, int]] = []
        self.refuses = refuses

    def launcher(self, name: str) -> Callable[..., None]:
        def run(arguments: dict[str, Any]) -> None:
            context = arguments["context"]
            self.sent.append((name, len(context) if isinstance(context, tuple) else 1))
            getattr(launch, name)(**arguments)

        def together(arguments: dict[str, Any]) -> bool:
            if self.refuses:
                return False
            run(arguments)
            return True

        def launcher(**arguments: Any) -> None:
            if not hold(Held(name, arguments, together=together, alone=run)):
                run(arguments)

        return launcher

    def stage(self, contexts: Any, *, copied_slots: bool = False, fails_at: int = -1) -> Callable[[], None]:
        verify_plan, write_plan, inputs = batched.step_of(0)
        verify, write = self.launcher(VERIFY), self.launcher(WRITE)

        def launch_stage() -> None:
            for i, context in enumerate(contexts):
                if i == fails_at:
                    raise KeyError("half")
                verify(context=context, plan=verify_plan, check_verify_expected_token=False)
                slots = inputs["out_cache_loc"].clone() if copied_slots else inputs["out_cache_loc"]
                write(context=context, plan=write_plan, **{**inputs, "out_cache_loc": slots})

        return launch_stage


def state(contexts: Any) -> dict[str, Any]:
    return batched.left_by(contexts, ViolationAggregate.allocate(device="cpu"))


def same_as_one_by_one(
    contexts: Any, stage_of: Callable[[Recorder, Any], Callable[[], None]], recorder: Recorder
) -> None:
    ours, theirs = batched.copies("cpu", contexts), batched.copies("cpu", contexts)
    gathering(stage_of(recorder, ours))()
    stage_of(Recorder(), theirs)()
    assert state(ours) == state(theirs)


def test_both_halves_go_together() -> None:
    recorder = Recorder()
    same_as_one_by_one(batched.contexts_of([32, 32], 0), Recorder.stage, recorder)
    assert recorder.sent == [(VERIFY, 2), (WRITE, 2)]


def test_inputs_that_may_differ_stay_apart() -> None:
    recorder = Recorder()
    same_as_one_by_one(
        batched.contexts_of([32, 32], 0), lambda self, contexts: self.stage(contexts, copied_slots=True), recorder
    )
    assert recorder.sent == [(VERIFY, 2), (WRITE, 1), (WRITE, 1)]


def test_halves_of_one_buffer_keep_their_order() -> None:
    recorder = Recorder()
    ours, theirs = batched.contexts_of([32, 32], 0), batched.contexts_of([32, 32], 0)
    for contexts, gathered in ((ours, True), (theirs, False)):
        shared = (contexts[0], replace(contexts[1], canary_buf=contexts[0].canary_buf))
        stage = (recorder if gathered else Recorder()).stage(shared)
        (gathering(stage) if gathered else stage)()
    assert state(ours) == state(theirs)
    assert recorder.sent == [(VERIFY, 1), (WRITE, 1)] * 2


def test_a_refused_pair_goes_out_one_by_one() -> None:
    recorder = Recorder(refuses=True)
    same_as_one_by_one(batched.contexts_of([32, 32], 0), Recorder.stage, recorder)
    assert recorder.sent == [(VERIFY, 1), (VERIFY, 1), (WRITE, 1), (WRITE, 1)]


def test_what_was_launched_before_an_error_is_launched() -> None:
    recorder, contexts = Recorder(), batched.contexts_of([32, 32], 0)
    with pytest.raises(KeyError):
        gathering(recorder.stage(contexts, fails_at=1))()
    assert recorder.sent == [(VERIFY, 1), (WRITE, 1)]
    recorder.stage(contexts[:1])()
    assert recorder.sent == [(VERIFY, 1), (WRITE, 1)] * 2, "nothing is held back any more"


def test_another_thread_is_not_held_back() -> None:
    recorder, contexts = Recorder(), batched.contexts_of([32, 32], 0)

    def stage() -> None:
        other = threading.Thread(target=recorder.stage(contexts[1:]))
        other.start()
        other.join()
        assert recorder.sent == [(VERIFY, 1), (WRITE, 1)]

    gathering(stage)()


def test_a_stage_within_a_stage_goes_out_with_it() -> None:
    recorder, contexts = Recorder(), batched.contexts_of([32, 32], 0)
    inner = gathering(recorder.stage(contexts))

    def stage() -> None:
        inner()
        assert recorder.sent == []

    gathering(stage)()
    assert recorder.sent == [(VERIFY, 2), (WRITE, 2)]
