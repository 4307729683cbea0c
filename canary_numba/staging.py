"""Moving K/V bytes to a GPU in pieces: two page-locked buffers here, two there, copies beside the kernels.

While one piece is hashed and the next is copied, the host gathers the one after that::

    host      gather 0 | gather 1 | gather 2 | gather 3 | ...
    copy                 copy 0   | copy 1   | copy 2   | ...      a stream of its own
    compute                         hash 0   | hash 1   | ...      torch's current stream
"""

from __future__ import annotations

from typing import Protocol

import torch


class Staging(Protocol):
    """Two buffers on the host and two on the device, used in turns (0, 1, 0, ...)."""

    def host(self, turn: int) -> torch.Tensor:
        """Return the host buffer of this turn (uint8), once its last content has been copied away."""

    def send(self, turn: int, nbytes: int) -> torch.Tensor:
        """Queue the copy of the first ``nbytes`` of the host buffer; return them on the device, uint8 ``[nbytes]``.

        What is queued on the current stream after this runs after the copy.
        """

    def used(self, turn: int) -> None:
        """Say that everything that reads the device buffer of this turn is queued on the current stream."""


class CudaStaging:
    """Staging by asynchronous copies on a stream of their own.

    Parameters
    ----------
    nbytes
        Bytes of each of the four buffers.
    device
        A CUDA device. Kernels run on torch's current stream of it.
    """

    def __init__(self, nbytes: int, device: torch.device) -> None:
        self._copies = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._device = device
        self._hosts = [torch.empty(nbytes, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
        self._devices = [torch.empty(nbytes, dtype=torch.uint8, device=device) for _ in range(2)]
        self._copied = [torch.cuda.Event() for _ in range(2)]  # type: ignore[no-untyped-call]
        self._done = [torch.cuda.Event() for _ in range(2)]  # type: ignore[no-untyped-call]
        # The memory may come from something still queued on the current stream.
        self._copies.wait_stream(torch.cuda.current_stream(device))

    def host(self, turn: int) -> torch.Tensor:
        """Wait until the copy that last left this buffer has ended; return the buffer."""
        self._copied[turn].synchronize()
        return self._hosts[turn]

    def send(self, turn: int, nbytes: int) -> torch.Tensor:
        """Copy behind the kernel that last read the device buffer; the current stream waits for the copy."""
        target = self._devices[turn][:nbytes]
        self._copies.wait_event(self._done[turn])
        with torch.cuda.stream(self._copies):
            target.copy_(self._hosts[turn][:nbytes], non_blocking=True)
            self._copied[turn].record(self._copies)
        torch.cuda.current_stream(self._device).wait_event(self._copied[turn])
        return target

    def used(self, turn: int) -> None:
        """Mark the place on the current stream behind which the buffer may be overwritten."""
        self._done[turn].record(torch.cuda.current_stream(self._device))
