"""A recorder in a live SGLang: dumps when the violation counter rises or a signal asks, and never gets in the way."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from types import FrameType
from typing import Any, Final

from canary_numba.capture.folder import DumpFolder
from canary_numba.capture.poll import CounterPoll
from canary_numba.capture.sglang_snapshot import snapshot
from canary_numba.capture.sglang_state import KV_BYTES
from canary_numba.capture.suspects import MAX_SUSPECTS, NEIGHBOURS
from canary_numba.dump.model import Dump
from canary_numba.errors import ArgumentError

logger = logging.getLogger("canary_numba.capture")

TRIGGERS: Final[tuple[str, ...]] = ("violation", "signal")
SIGNAL: Final = signal.SIGUSR2
MAX_BYTES: Final[int] = 4 << 30
SECONDS_BETWEEN: Final[float] = 60.0
FINISHED_REQUESTS: Final[int] = 256
_HOOK: Final[str] = "_post_ops_outside_graph"
_RELEASE: Final[str] = "on_release"


def install(
    manager: Any,
    directory: str,
    on: str | Sequence[str] = "violation",
    keep: int = 3,
    *,
    radix_cache: Any = None,
    allocator: Any = None,
    reqs: Callable[[], Iterable[Any]] | None = None,
    kv_bytes: str = "suspect",
    max_bytes: int = MAX_BYTES,
    seconds_between: float = SECONDS_BETWEEN,
) -> Recorder:
    """Hook a recorder into SGLang's ``CanaryManager``: it looks at the violation counter after each pass.

    Parameters
    ----------
    manager
        ``model_runner.canary_manager``.
    directory
        Where dumps go; made if it is not there.
    on
        ``"violation"``: the counter rose; ``"signal"``: the process got SIGUSR2, and a pass ended; or both.
    keep
        Dumps the folder holds at most, those of earlier processes included.
    radix_cache, allocator, kv_bytes
        As in :func:`~canary_numba.capture.sglang_snapshot.snapshot`. Give the prefix cache: its finished requests are
        then listed as well.
    reqs
        Returns all live ``Req`` objects; default: only those of the pass that just ended.
    max_bytes
        A dump that would be larger first leaves out K/V bytes, then HEAD records, and is else not taken. Estimated from
        above.
    seconds_between
        Least time between two dumps that violations cause.

    Returns
    -------
    Recorder
        Keep it to :meth:`Recorder.uninstall` it.

    Raises
    ------
    ArgumentError
        An argument is wrong, or signals are asked for outside the main thread. Once installed, nothing is raised.
    """
    triggers = (on,) if isinstance(on, str) else tuple(on)
    if not triggers or any(trigger not in TRIGGERS for trigger in triggers):
        raise ArgumentError(f"on: expected {' or '.join(TRIGGERS)}, or both, got {on!r}")
    if kv_bytes not in KV_BYTES:
        raise ArgumentError(f"kv_bytes: expected one of {', '.join(KV_BYTES)}, got {kv_bytes!r}")
    if hasattr(getattr(manager, _HOOK), "recorder"):
        raise ArgumentError("manager: has a recorder already")
    recorder = Recorder(manager, DumpFolder(directory, keep=keep), triggers)
    recorder.radix_cache, recorder.allocator, recorder.reqs = radix_cache, allocator, reqs
    recorder.kv_bytes, recorder.max_bytes, recorder.seconds_between = kv_bytes, max_bytes, seconds_between
    recorder.attach()
    return recorder


class Recorder:
    """What :func:`install` hooks in.

    Attributes
    ----------
    written : list of str
        The dumps so far.
    finished : OrderedDict
        Token ids of requests that ended lately, by name; the newest last.
    """

    def __init__(self, manager: Any, folder: DumpFolder, triggers: Sequence[str]) -> None:
        self.manager, self.folder, self.triggers = manager, folder, tuple(triggers)
        self.radix_cache: Any = None
        self.allocator: Any = None
        self.reqs: Callable[[], Iterable[Any]] | None = None
        self.kv_bytes, self.max_bytes, self.seconds_between = "suspect", MAX_BYTES, SECONDS_BETWEEN
        self.written: list[str] = []
        self.finished: OrderedDict[str, list[int]] = OrderedDict()
        self._poll = CounterPoll(manager._device_state.violation_log.violation_write_index)
        self._seen, self._last = 0, -float("inf")
        self._asked = False
        self._writer: threading.Thread | None = None
        self._previous_handler: Any = None
        self._hooked: list[tuple[Any, str, Any]] = []

    def attach(self) -> None:
        """Hook in."""
        if "signal" in self.triggers:
            try:
                self._previous_handler = signal.signal(SIGNAL, self._on_signal)
            except ValueError as error:
                raise ArgumentError(f"on: signals can be asked for in the main thread only ({error})") from None
        original = getattr(self.manager, _HOOK)
        self._hook(self.manager, _HOOK, self._after_pass(original))
        release = getattr(self.radix_cache, _RELEASE, None)
        if release is not None:

            def on_release(req: Any, *args: Any, **kwargs: Any) -> Any:
                self._quietly(lambda: self._note_finished(req))
                return release(req, *args, **kwargs)

            self._hook(self.radix_cache, _RELEASE, on_release)

    def _after_pass(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def after_pass(*args: Any, **kwargs: Any) -> Any:
            batch = kwargs.get("maybe_inaccurate_forward_batch")
            try:
                result = original(*args, **kwargs)
            except BaseException:
                # SGLang's mode "raise" ends the process: no time for a thread.
                self.look(batch, dying=True)
                raise
            self.look(batch)
            return result

        after_pass.recorder = self  # type: ignore[attr-defined]
        return after_pass

    def _hook(self, target: Any, name: str, hook: Callable[..., Any]) -> None:
        self._hooked.append((target, name, vars(target).get(name)))
        setattr(target, name, hook)

    def uninstall(self) -> None:
        """Take the hooks out, and wait for a dump that is being written."""
        while self._hooked:
            target, name, own = self._hooked.pop()
            delattr(target, name)
            if own is not None:
                setattr(target, name, own)
        if "signal" in self.triggers:
            signal.signal(SIGNAL, self._previous_handler)
        self.wait()

    def wait(self) -> None:
        """Wait until the dump being written, if any, is on disk."""
        if self._writer is not None:
            self._writer.join()

    def look(self, forward_batch: Any, *, dying: bool = False) -> None:
        """After a pass: take a dump if there is a reason to. Raises nothing; ``dying``: write it before returning."""
        self._quietly(lambda: self._look(forward_batch, dying))

    def _look(self, forward_batch: Any, dying: bool) -> None:
        if dying:
            self.wait()
        count = self._poll.now() if dying else self._poll()
        now = time.monotonic()
        asked, self._asked = self._asked, False
        risen = "violation" in self.triggers and count > self._seen
        if asked:
            reason = "signal"
        elif risen and (dying or now - self._last >= self.seconds_between):
            reason = "violation"
        else:
            return
        if self._writer is not None and self._writer.is_alive():
            logger.warning("no canary dump: the last one is still being written")
            return
        self._seen, self._last = count, now
        if self.folder.is_full():
            logger.warning("no canary dump: %s holds %d already", self.folder.directory, self.folder.keep)
            return
        dump = self._take(forward_batch, reason)
        if dump is None:
            return
        if dying:
            self._write(dump)
        else:
            self._writer = threading.Thread(target=self._quietly, args=(lambda: self._write(dump),))
            self._writer.start()

    def _take(self, forward_batch: Any, reason: str) -> Dump | None:
        reqs = None if self.reqs is None else list(self.reqs())
        bs = len(reqs) if reqs is not None else 0 if forward_batch is None else forward_batch.req_pool_indices.shape[0]
        lighter = "suspect" if self.kv_bytes == "all" else self.kv_bytes
        for kv_bytes, heads in ((self.kv_bytes, True), (lighter, True), ("none", True), ("none", False)):
            size = estimate_bytes(self.manager, kv_bytes, heads, rows=int(bs) + 1)
            if size <= self.max_bytes:
                return snapshot(
                    self.manager,
                    self.radix_cache,
                    forward_batch,
                    reqs=reqs,
                    allocator=self.allocator,
                    finished=self.finished,
                    kv_bytes=kv_bytes,
                    heads=heads,
                    context={"captured_on": reason},
                )
        logger.warning("no canary dump: it would take %d bytes, more than max_bytes=%d", size, self.max_bytes)
        return None

    def _write(self, dump: Dump) -> None:
        path = self.folder.save(lambda: dump)
        if path is not None:
            self.written.append(path)

    def _note_finished(self, req: Any) -> None:
        if req.finished():
            self.finished[str(req.rid)] = [*req.origin_input_ids, *req.output_ids]
            while len(self.finished) > FINISHED_REQUESTS:
                self.finished.popitem(last=False)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._asked = True
        if callable(self._previous_handler):
            self._previous_handler(number, frame)

    @staticmethod
    def _quietly(do: Callable[[], None]) -> None:
        try:
            do()
        except Exception:
            logger.exception("no canary dump")


def estimate_bytes(manager: Any, kv_bytes: str, heads: bool, *, rows: int) -> int:
    """Bytes that a dump of ``rows`` table rows takes, from above: records, K/V bytes or hashes, lists, tokens, ring."""
    total = 0
    for group in manager._buffer_groups:
        num_slots = int(group.k_tail.shape[0])
        total += num_slots * 5 * 8
        for half in ("k", "v"):
            buffers = [getattr(group, f"{half}_tail"), getattr(group, f"{half}_head") if heads else None]
            total += sum(int(buffer.nbytes) for buffer in buffers if buffer is not None)
            sources = getattr(group, f"real_kv_sources_{half}")
            if kv_bytes == "all":
                total += sum(int(source.tensor.nbytes) for source in sources)
            elif kv_bytes == "suspect":
                kept = min(num_slots, MAX_SUSPECTS * (2 * NEIGHBOURS + 1))
                total += sum(8 * num_slots + kept * int(source.num_bytes_per_token) for source in sources)
    table = manager._req_to_token_pool.req_to_token
    row_bytes = int(table.shape[1]) * int(table.element_size())
    ring_bytes = int(manager._device_state.violation_log.violation_ring.nbytes)
    return total + 2 * rows * row_bytes + ring_bytes
