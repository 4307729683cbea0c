"""Launching a kernel for little: arguments are packed once, a launch is one call of the driver.

Numba's own launch converts every array anew: about 39 us for 6 of them on an H200's host.
The layout of the packed arguments is the one numba-cuda gives an array parameter: two null pointers (meminfo, parent),
number of elements, item size, address, shape, strides in bytes, eight bytes each.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
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


def _type_of(argument: Any) -> Any:
    if isinstance(argument, torch.Tensor):
        return types.Array(_NUMBA_TYPES[argument.dtype], argument.ndim, "C")
    return types.uint64 if isinstance(argument, np.uint64) else types.int64


def _words_of(argument: Any) -> list[int]:
    if not isinstance(argument, torch.Tensor):
        return [int(argument)]
    item = argument.element_size()
    strides = [stride * item for stride in argument.stride()]
    return [0, 0, argument.numel(), item, argument.data_ptr(), *argument.shape, *strides]


class PreparedLaunch:
    """A kernel, its geometry and its packed arguments; calling it queues the kernel and does nothing else.

    Tensors are kept alive; what they hold may change between calls, their address may not. A call goes to torch's
    current stream of the device at that moment, so it may be captured into a CUDA graph once the kernel is loaded,
    which building this does.
    """

    def __init__(self, kernel: Any, blocks: int, threads: int, device: torch.device, arguments: Sequence[Any]) -> None:
        self._kernel = kernel
        self._blocks = blocks
        self._threads = threads
        self._device = device
        self._arguments = arguments
        if SIMULATED:
            return
        with torch.cuda.device(device), cuda.gpus[device.index]:
            compiled = kernel.compile(tuple(_type_of(argument) for argument in arguments))
            function = compiled._codelibrary.get_cufunc().kernel
        self._function = int(function.handle)
        self._words = np.array([w & (2**64 - 1) for a in arguments for w in _words_of(a)], dtype=np.uint64)
        first = self._words.ctypes.data
        self._pointers = (ctypes.c_void_p * len(self._words))(*(first + 8 * i for i in range(len(self._words))))
        self._packed = ctypes.addressof(self._pointers)

    def __call__(self) -> None:
        """Queue the kernel."""
        if SIMULATED:
            arrays = [a.numpy() if isinstance(a, torch.Tensor) else a for a in self._arguments]
            self._kernel[self._blocks, self._threads](*arrays)
        elif torch.cuda.current_device() == self._device.index:
            self._launch()
        else:
            with torch.cuda.device(self._device):
                self._launch()

    def _launch(self) -> None:
        stream = torch.cuda.current_stream(self._device).cuda_stream
        (error,) = driver.cuLaunchKernel(
            self._function, self._blocks, 1, 1, self._threads, 1, 1, 0, stream, self._packed, 0
        )
        if error:
            raise RuntimeError(f"CUDA driver: cuLaunchKernel of {self._kernel.py_func.__name__} failed with {error!r}")
