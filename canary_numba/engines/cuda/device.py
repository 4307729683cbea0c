"""The only module that imports ``numba.cuda``: availability, streams, and the few operations Numba has no name for.

Kernels import ``cuda`` and the shims from here. Under ``NUMBA_ENABLE_CUDASIM=1`` the shims are plain Python twins, so
one kernel source serves the GPU and the simulator. The simulator has no warps: there, a launch uses blocks of 32
threads, and a warp barrier is a block barrier.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import cuda as cuda  # kernels take it from here
from numba import types

from canary_numba import mixing
from canary_numba.engines import simulator_enabled

SIMULATED = simulator_enabled()
WARP = 32
_ALL_LANES = 0xFFFFFFFF
BLOCK_THREADS = WARP if SIMULATED else 256
"""Threads in a block of the kernels that fold no K/V bytes."""

device_function = cuda.jit(device=True) if SIMULATED else cuda.jit(device=True, forceinline=True)
"""Decorator of device functions: always inlined, so that arrays passed to one stay in registers."""

# A device function may not return an array that is not an argument of its own; code put in its caller's place may.
in_place = cuda.jit(device=True) if SIMULATED else cuda.jit(device=True, inline="always")
"""Decorator of device functions that take an array out of a tuple: their code replaces the call before typing."""

if SIMULATED:

    def cuda_kernel(*, threads: int | None = None, carveout: int | None = None) -> Any:
        """Decorator of kernels that must share a multiprocessor's resources on purpose; nothing to the simulator."""
        return cuda.jit

    @device_function
    def in_global_memory(array: Any) -> Any:
        """The same array, known to lie in global memory."""
        return array

    @device_function
    def warp_sync() -> None:
        """Order the shared-memory accesses of a warp."""
        cuda.syncthreads()

    @device_function
    def shares_key(keys: Any, first: Any, key: Any) -> Any:
        """Whether another lane of the warp has the same ``key`` (int64); ``keys[first:first + 32]`` holds them all."""
        found = 0
        for lane in range(WARP):
            if keys[first + np.uint64(lane)] == key:
                found += 1
        return found > 1

    @device_function
    def load_pair(array: Any, index: Any) -> Any:
        """Read ``array[index]`` and ``array[index + 1]`` (uint64) in one 16-byte access; ``index`` is even."""
        return array[index], array[index + 1]

    @device_function
    def store_pair(array: Any, index: Any, first: Any, second: Any) -> None:
        """Write two uint64 to ``array[index]`` and its neighbour in one 16-byte access; ``index`` is even."""
        array[index] = first
        array[index + 1] = second

else:
    from numba.cuda.extending import intrinsic

    _I64X2 = ir.VectorType(ir.IntType(64), 2)

    def cuda_kernel(*, threads: int | None = None, carveout: int | None = None) -> Any:
        """Decorator of kernels that must share a multiprocessor's resources on purpose.

        ``threads``: a block never has more, so the compiler may use more registers. ``carveout``: percent of L1 and
        shared memory together that is shared memory; what a block does not get limits the blocks at work, and the rest
        is L1.
        """
        return cuda.jit(launch_bounds=threads, shared_memory_carveout=carveout)

    def _pair_pointer(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
        data = context.make_array(array_type)(context, builder, value=array).data
        element = builder.gep(data, [index])
        return builder.bitcast(element, _I64X2.as_pointer(element.type.addrspace))

    @intrinsic
    def load_pair(typing_context: Any, array: Any, index: Any) -> Any:
        """Read ``array[index]`` and ``array[index + 1]`` (uint64) in one 16-byte access; ``index`` is even."""
        signature = types.UniTuple(types.uint64, 2)(array, types.uint64)

        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            pair = builder.load(_pair_pointer(context, builder, sig.args[0], *args))
            pair.align = 16
            lanes = [builder.extract_element(pair, ir.Constant(ir.IntType(32), i)) for i in range(2)]
            return context.make_tuple(builder, sig.return_type, lanes)

        return signature, codegen

    @intrinsic
    def store_pair(typing_context: Any, array: Any, index: Any, first: Any, second: Any) -> Any:
        """Write two uint64 to ``array[index]`` and its neighbour in one 16-byte access; ``index`` is even."""
        signature = types.void(array, types.uint64, types.uint64, types.uint64)

        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            array, index, first, second = args
            pair: Any = ir.Constant(_I64X2, ir.Undefined)
            for i, value in enumerate((first, second)):
                pair = builder.insert_element(pair, value, ir.Constant(ir.IntType(32), i))
            store = builder.store(pair, _pair_pointer(context, builder, sig.args[0], array, index))
            store.align = 16
            return context.get_dummy_value()

        return signature, codegen

    @intrinsic
    def in_global_memory(typing_context: Any, array: Any) -> Any:
        """The same array, known to lie in global memory: of one of two arguments, the compiler forgets it."""
        signature = array(array)

        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            view = context.make_array(sig.args[0])(context, builder, value=args[0])
            kind = view.data.type
            # By way of an integer: a cast to another memory and back would be dropped.
            address = builder.ptrtoint(view.data, ir.IntType(64))
            placed = builder.inttoptr(address, ir.PointerType(kind.pointee, addrspace=1))
            view.data = builder.addrspacecast(placed, kind)
            return view._getvalue()

        return signature, codegen

    @device_function
    def warp_sync() -> None:
        """Order the shared-memory accesses of a warp."""
        cuda.syncwarp()

    @device_function
    def shares_key(keys: Any, first: Any, key: Any) -> Any:
        """Whether another lane of the warp has the same ``key`` (int64), going by its low 32 bits."""
        return cuda.popc(cuda.match_any_sync(_ALL_LANES, np.int32(key & 0xFFFFFFFF))) > 1


@device_function
def fold_word(acc: Any, word: Any) -> Any:
    """:func:`canary_numba.mixing.fold_word` for kernels."""
    # The cast is for the simulator, where a compiled mixer hands back a Python int.
    return np.uint64(mixing.fold_word(acc, word))


@device_function
def slot_hash(prev_hash: Any, token: Any, position: Any) -> Any:
    """:func:`canary_numba.mixing.slot_hash_u64` for kernels."""
    return np.uint64(mixing.slot_hash_u64(prev_hash, token, position))


@device_function
def open_state(h: Any) -> Any:
    """:func:`canary_numba.mixing.open_state` for kernels."""
    return np.uint64(mixing.open_state(h))


@device_function
def close_state(y: Any) -> Any:
    """:func:`canary_numba.mixing.close_state` for kernels."""
    return np.uint64(mixing.close_state(y))


@device_function
def first_shift(word: Any) -> Any:
    """:func:`canary_numba.mixing.first_shift` for kernels."""
    return np.uint64(mixing.first_shift(word))


@device_function
def open_step(y: Any, shifted: Any) -> Any:
    """:func:`canary_numba.mixing.open_step` for kernels."""
    return np.uint64(mixing.open_step(y, shifted))


def why_unavailable() -> str | None:
    """Say in one sentence why CUDA kernels cannot run in this process; None when they can."""
    if SIMULATED:
        return "the CUDA simulator is on (NUMBA_ENABLE_CUDASIM=1), so a GPU is not used"
    if not torch.cuda.is_available():
        build = torch.version.cuda
        return (
            f"torch {torch.__version__} is a CPU build" if build is None else "torch finds no NVIDIA driver or no GPU"
        )
    if not hasattr(np, "row_stack"):
        return f"numba-cuda cannot compile under NumPy {np.__version__}: install numpy<2.5"
    if not cuda.is_available():
        return f"numba finds no CUDA driver: {cuda.cuda_error()}"
    return None


@lru_cache(maxsize=16)
def multiprocessors(device: torch.device) -> int:
    """Multiprocessors of the GPU; 1 in the simulator, whose threads are slow."""
    return 1 if SIMULATED else torch.cuda.get_device_properties(device).multi_processor_count
