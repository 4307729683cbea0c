"""The recorder in a live SGLang: when it dumps, how often, how much, and that it never gets in the way."""

from __future__ import annotations

import logging
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from sglang_shaped import Cache, Manager, Req, token_allocator

from canary_numba.capture.sglang import Recorder, install
from canary_numba.capture.sglang_recorder import FINISHED_REQUESTS, estimate_bytes
from canary_numba.check import check_dump
from canary_numba.dump import Dump, load_dump
from canary_numba.errors import ArgumentError


def recorder(manager: Manager, folder: Path, on: Any = "violation", **more: Any) -> Recorder:
    return install(manager, str(folder), on, **{"seconds_between": 0.0, **more})


def dumps(folder: Path) -> list[Dump]:
    return [load_dump(path) for path in sorted(folder.iterdir())]


def violate(manager: Manager) -> Any:
    """Change K bytes, and run a pass that sees it."""
    manager.pool.k_buffer[0][3] += 1
    return manager.forward("decode_or_idle", [11, 8], [1, 1])


def test_it_dumps_when_the_counter_rises_and_not_before(tmp_path: Path) -> None:
    manager = Manager()
    hooked = recorder(manager, tmp_path)
    batch = manager.serve()
    assert manager.end_pass(batch) == "done"
    hooked.wait()
    assert dumps(tmp_path) == []
    manager.end_pass(violate(manager))
    hooked.wait()
    (dump,) = dumps(tmp_path)
    assert hooked.written == [dump.path]
    assert dump.context["captured_on"] == "violation"
    assert dump.requests is not None
    assert dump.requests.rids == ("a", "b")
    assert check_dump(dump, engine="cpu").num_violations == 1
    manager.end_pass(batch)
    hooked.wait()
    assert len(dumps(tmp_path)) == 1


def test_the_folder_never_holds_more_than_it_may(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    manager = Manager()
    batch = manager.serve()
    hooked = recorder(manager, tmp_path, keep=2)
    for _ in range(4):
        manager._device_state.violation_log.violation_write_index += 1
        manager.end_pass(batch)
        hooked.wait()
    assert len(hooked.written) == len(dumps(tmp_path)) == 2
    hooked.uninstall()
    again = recorder(manager, tmp_path, keep=2)
    manager._device_state.violation_log.violation_write_index += 1
    manager.end_pass(batch)
    again.wait()
    assert again.written == []
    assert "holds 2 already" in caplog.text


def test_violations_in_quick_succession_make_one_dump(tmp_path: Path) -> None:
    manager = Manager()
    batch = manager.serve()
    hooked = recorder(manager, tmp_path, seconds_between=3600.0)
    for _ in range(3):
        manager._device_state.violation_log.violation_write_index += 1
        manager.end_pass(batch)
        hooked.wait()
    assert len(hooked.written) == 1


def test_when_the_server_raises_the_dump_is_there_before(tmp_path: Path) -> None:
    manager = Manager()
    manager.serve()
    recorder(manager, tmp_path)
    manager.fails = True
    with pytest.raises(RuntimeError, match="canary violation"):
        manager.end_pass(violate(manager))
    assert len(dumps(tmp_path)) == 1


@pytest.mark.parametrize("what", ["_buffer_groups", "_device_state"])
def test_nothing_it_stumbles_over_reaches_the_server(
    what: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manager = Manager()
    batch = manager.serve()
    hooked = recorder(manager, tmp_path)
    manager._device_state.violation_log.violation_write_index += 1
    setattr(manager, what, None)
    with caplog.at_level(logging.ERROR, logger="canary_numba.capture"):
        assert manager.end_pass(batch) == "done"
    assert "no canary dump" in caplog.text
    assert hooked.written == []
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_went_away_is_no_accident_either(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    manager = Manager()
    batch = manager.serve()
    folder = tmp_path / "dumps"
    recorder(manager, folder)
    folder.rmdir()
    manager._device_state.violation_log.violation_write_index += 1
    assert manager.end_pass(batch) == "done"
    assert "no canary dump" in caplog.text


def test_a_signal_asks_for_a_dump_after_the_next_pass(tmp_path: Path) -> None:
    manager = Manager()
    batch = manager.serve()
    seen: list[int] = []
    before = signal.signal(signal.SIGUSR2, lambda number, frame: seen.append(number))
    try:
        hooked = recorder(manager, tmp_path, "signal")
        manager._device_state.violation_log.violation_write_index += 1
        manager.end_pass(batch)
        assert list(tmp_path.iterdir()) == []
        os.kill(os.getpid(), signal.SIGUSR2)
        manager.end_pass(batch)
        hooked.uninstall()
        assert [dump.context["captured_on"] for dump in dumps(tmp_path)] == ["signal"]
        assert seen == [signal.SIGUSR2]
        os.kill(os.getpid(), signal.SIGUSR2)
        assert len(seen) == 2
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_signals_need_the_main_thread(tmp_path: Path) -> None:
    caught: list[Exception] = []

    def try_it() -> None:
        try:
            recorder(Manager(), tmp_path, ("violation", "signal"))
        except ArgumentError as error:
            caught.append(error)

    thread = threading.Thread(target=try_it)
    thread.start()
    thread.join()
    assert "main thread only" in str(caught[0])


def test_a_dump_that_would_be_too_large_is_made_lighter_or_not_at_all(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manager = Manager()
    batch = manager.serve()
    forms = []
    sizes = [
        estimate_bytes(manager, kv, heads, rows=4) for kv, heads in (("all", True), ("none", True), ("none", False))
    ]
    assert sizes == sorted(sizes, reverse=True)
    for number, max_bytes in enumerate((*sizes, 1000)):
        folder = tmp_path / str(number)
        hooked = recorder(manager, folder, kv_bytes="all", max_bytes=max_bytes)
        manager._device_state.violation_log.violation_write_index += 1
        manager.end_pass(batch)
        hooked.uninstall()
        forms += [
            (bool(half.sources), half.head is not None) for d in dumps(folder) for half in [d.groups[0].halves["K"]]
        ]
    assert forms == [(True, True), (False, True), (False, False)]
    assert "more than max_bytes=1000" in caplog.text


def test_finished_requests_and_all_live_ones_are_listed(tmp_path: Path) -> None:
    manager = Manager()
    batch = manager.serve()
    cache = Cache(token_allocator(manager.pool, [38]))
    hooked = recorder(manager, tmp_path, radix_cache=cache, reqs=lambda: [Req("b", 4, 8)])
    for number in range(FINISHED_REQUESTS + 1):
        assert cache.on_release(Req(f"old-{number}", 1, 2, done=True), checkpointed=True) is True
    cache.on_release(Req("retracted", 1, 2), checkpointed=False)
    manager._device_state.violation_log.violation_write_index += 1
    manager.end_pass(batch)
    hooked.uninstall()
    (dump,) = dumps(tmp_path)
    assert dump.finished is not None
    assert dump.requests is not None
    assert dump.finished.rids[0] == "old-1"
    assert dump.finished.rids[-1] == f"old-{FINISHED_REQUESTS}"
    assert dump.finished.tokens[:3].tolist() == [100, 101, 7]
    assert dump.requests.rids == ("b",)
    assert cache.released[-1] == "retracted"


def test_uninstalled_it_leaves_no_trace(tmp_path: Path) -> None:
    manager = Manager()
    cache = Cache(token_allocator(manager.pool, [38]))
    hooked = recorder(manager, tmp_path, radix_cache=cache)
    with pytest.raises(ArgumentError, match="has a recorder already"):
        recorder(manager, tmp_path)
    hooked.uninstall()
    assert "_post_ops_outside_graph" not in vars(manager)
    assert "on_release" not in vars(cache)
    recorder(manager, tmp_path).uninstall()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"on": "error"}, "on: expected violation or signal"),
        ({"on": ()}, "on: expected violation or signal"),
        ({"kv_bytes": "some"}, "kv_bytes: expected one of"),
        ({"keep": 0}, "keep: expected >= 1"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=message):
        recorder(Manager(), tmp_path, **arguments)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match="cannot be made"):
        recorder(Manager(), tmp_path / "file" / "dumps")
