"""Reads a counter on a device without waiting for the device."""

from __future__ import annotations

import torch


class CounterPoll:
    """The newest known value of a counter that kernels add to.

    Parameters
    ----------
    counter : torch.Tensor
        int32 or int64 ``[1]``.

    Notes
    -----
    On CUDA a call starts a copy to pinned memory behind the work queued so far, if none is under way, and returns what
    the last finished copy brought: a value that may be some passes old, never a wait. On the CPU it is up to date.
    """

    def __init__(self, counter: torch.Tensor) -> None:
        self._counter = counter
        self._seen = 0
        self._host: torch.Tensor | None = None
        if counter.device.type == "cuda":
            self._host = torch.zeros(counter.shape, dtype=counter.dtype, pin_memory=True)
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._under_way = False

    def __call__(self) -> int:
        """Return the newest known value."""
        if self._host is None:
            self._seen = int(self._counter)
            return self._seen
        if self._under_way and self._arrived.query():  # type: ignore[no-untyped-call]
            # now() may have seen a newer value than this copy, which was under way then.
            self._seen = max(self._seen, int(self._host))
            self._under_way = False
        if not self._under_way:
            self._host.copy_(self._counter, non_blocking=True)
            self._arrived.record(torch.cuda.current_stream(self._counter.device))
            self._under_way = True
        return self._seen

    def now(self) -> int:
        """Return the value after all work queued so far; waits for the device."""
        self._seen = int(self._counter)
        return self._seen
