"""Launching a kernel for little: arguments are packed once, a launch is one call of the driver.

Numba's own launch converts every array anew: about 39 us for 6 of them on an H200's host.
The layout of the packed arguments is the one numba-cuda gives an array parameter: two null pointers (meminfo, parent),
number of elements, item size, address, shape, strides in bytes, eight bytes each. A tuple is its elements, one after
the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numba import types

from canary_numba.engines.cuda.device import SIMULATED, cuda

if not SIMULATED:
    from cuda.bindings import driver

_NUMBA_TYPES = {
    torch.int32: types.int32,
    torch.int64: types.int64,
    torch.uint8: types.uint8,
    torch.uint64: types.uint64,
}
_UNSIGNED = (1 << 64) - 1


def _kind_of(argument: Any) -> Any:
    """What tells the type of an argument, for a fraction of what making a Numba type costs."""
    if isinstance(argument, torch.Tensor):
        return argument.dtype, argument.dim()
    if isinstance(argument, tuple):
        return tuple(_kind_of(element) for element in argument)
    return np.uint64 if isinstance(argument, np.uint64) else np.int64


def _type_of(kind: Any) -> Any:
    if kind is np.uint64 or kind is np.int64:
        return types.uint64 if kind is np.uint64 else types.int64
    if isinstance(kind[0], torch.dtype):
        return types.Array(_NUMBA_TYPES[kind[0]], kind[1], "C")
    return types.UniTuple(_type_of(kind[0]), len(kind))


def _words_of(argument: Any) -> list[int]:
    if isinstance(argument, tuple):
        return [word for element in argument for word in _words_of(element)]
    if not isinstance(argument, torch.Tensor):
        return [int(argument) & _UNSIGNED]
    item = argument.element_size()
    strides = [stride * item for stride in argument.stride()]
    return [0, 0, argument.numel(), item, argument.data_ptr(), *argument.shape, *strides]


def _simulated(argument: Any) -> Any:
    if isinstance(argument, tuple):
        return tuple(_simulated(element) for element in argument)
    return argument.numpy() if isinstance(argument, torch.Tensor) else argument


def _public_current_stream(index: int) -> int:
    return torch.cuda.current_stream(index).cuda_stream


# What torch's own compiler launches with: no Stream object is made on the way. Not public, so it may go.
_current_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", _public_current_stream)


@lru_cache(maxsize=1024)
def _load(kernel: Any, kinds: tuple[Any, ...], device: torch.device) -> tuple[int, Any]:
    """Compile and load a kernel for arguments of these kinds; its handle, and what keeps that alive."""
    with torch.cuda.device(device), cuda.gpus[device.index]:
        compiled = kernel.compile(tuple(_type_of(kind) for kind in kinds))
        function = compiled._codelibrary.get_cufunc().kernel
    return int(function.handle), compiled


class PreparedLaunch:
    """A kernel, its geometry and its packed arguments; calling it queues the kernel and does nothing else.

    Tensors are kept alive; what they hold may change between calls, their address may not. A call goes to torch's
    current stream of the device at that moment, so it may be captured into a CUDA graph once the kernel is loaded,
    which building this does.

    Attributes
    ----------
    grid : tuple of int
        Blocks along x and y.
    """

    def __init__(
        self, kernel: Any, grid: int | tuple[int, int], threads: int, device: torch.device, arguments: Sequence[Any]
    ) -> None:
        self.grid = grid if isinstance(grid, tuple) else (grid, 1)
        self._kernel = kernel
        self._threads = threads
        self._device = device
        self._arguments = arguments
        if SIMULATED:
            return
        self._function, self._compiled = _load(kernel, tuple(map(_kind_of, arguments)), device)
        words = [_words_of(argument) for argument in arguments]
        self._offsets = np.cumsum([0, *map(len, words)]).tolist()
        self._words = np.array([word for packed in words for word in packed], dtype=np.uint64)
        self._pointers = self._words.ctypes.data + 8 * np.arange(len(self._words), dtype=np.uint64)
        self._packed = self._pointers.ctypes.data
        # Of a view of memory an element is set in half the time of an array's.
        self._view = self._words.data

    def __call__(self) -> None:
        """Queue the kernel."""
        if SIMULATED:
            self._kernel[self.grid, self._threads](*map(_simulated, self._arguments))
        elif torch.cuda.current_device() == self._device.index:
            self._launch()
        else:
            with torch.cuda.device(self._device):
                self._launch()

    def rebind(self, index: int, tensor: torch.Tensor) -> None:
        """Let argument ``index``, 1-D and contiguous, be another such tensor of its dtype; not kept alive."""
        words, at = self._view, self._offsets[index]
        words[at + 2] = words[at + 5] = tensor.shape[0]
        words[at + 4] = tensor.data_ptr()

    def let_go(self) -> None:
        """Keep no tensor alive any more: from here on it is for the caller to know that the addresses are good."""
        self._arguments = ()

    def _launch(self) -> None:
        stream = _current_stream(self._device.index)
        blocks_x, blocks_y = self.grid
        (error,) = driver.cuLaunchKernel(
            self._function, blocks_x, blocks_y, 1, self._threads, 1, 1, 0, stream, self._packed, 0
        )
        if error:
            raise RuntimeError(f"CUDA driver: cuLaunchKernel of {self._kernel.py_func.__name__} failed with {error!r}")
