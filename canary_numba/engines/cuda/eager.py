"""Launching again for little, for callers who prepare nothing: a server's own code calls a launcher in every step.

Checking the arguments, finding the kernel and packing them costs some 60 us; the launch itself, 5. What that work
depends on is where the tensors are and how they are laid out, never what they hold. So a launch is remembered by the
address, dtype, shape, strides and device of its tensors, and one like it only queues the kernel. The inputs that a
server allocates anew in each step are left out of that description and replaced in the remembered launch.

Nothing is kept alive: a remembered launch holds addresses, and is used only for tensors that are there now. Describing
tensors still costs half of it, so for as long as the very same tensor objects live, and stay where they are, they need
no description; changing the shape of one in place, at its address, then goes unnoticed.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from torch import Tensor

from canary_numba.engines.cuda.device import SIMULATED
from canary_numba.engines.cuda.hash import FLAT as HASH_FLAT
from canary_numba.engines.cuda.plan import FLAT as PLAN_FLAT
from canary_numba.engines.cuda.write import FLAT as WRITE_FLAT

_MOST = 512
"""Launches that one kind of work remembers."""


class Unlike(Exception):
    """The arguments cannot be those of a remembered launch."""


_OF_CONTEXT = attrgetter(
    "canary_buf",
    "violation_ring",
    "violation_write_index",
    "slot_run_counter",
    "kernel_run_counter",
    "enable_chain_position_assert",
)
_OF_VERIFY_PLAN = attrgetter(
    "verify_slot_indices",
    "verify_expected_tokens",
    "verify_expected_positions",
    "verify_prev_slot_indices",
    "verify_num_valid",
    "enable",
)
_OF_WRITE_PLAN = attrgetter("write_offsets", "write_seed_slot_indices", "write_num_valid_reqs")
_OF_SOURCE = attrgetter("page_size", "num_bytes_per_token", "read_bytes")
_PLAN_TABLES = itemgetter("req_to_token", "full_to_swa_index_mapping", "req_to_verify_expected_tokens")
_PLAN_SIZES = itemgetter("swa_window_size", "verify_capacity", "kv_token_id_vs_position_offset")
_DTYPE, _SHAPE = attrgetter("dtype"), attrgetter("shape")
_CONTIGUOUS = {(1,)}


class Key:
    """What a launch depends on, as it is collected: tensors, some of them None, and values that can be hashed."""

    def __init__(self) -> None:
        self.tensors: list[Any] = []
        self.values: list[Hashable] = []

    def add_contexts(self, arguments: Mapping[str, Any]) -> None:
        """Collect the contexts, their sources and the aggregate."""
        for context in arguments["contexts"]:
            self.tensors += _OF_CONTEXT(context)
            self.values += (int(context.kernel_kind), int(context.real_kv_hash_mode), len(context.real_kv_sources))
            self.add_sources(context.real_kv_sources)
        aggregate = arguments["aggregate_violations"]
        self.tensors.append(None if aggregate is None else aggregate.table)

    def add_sources(self, sources: Any) -> None:
        """Collect sources."""
        for source in sources:
            self.tensors.append(source.tensor)
            self.values += _OF_SOURCE(source)

    def add_flat(self, flat: Sequence[Any]) -> None:
        """Of inputs that come anew in each step: dtype and device, once all are 1-D and of one length."""
        there = [tensor for tensor in flat if tensor is not None]
        if len(set(map(_SHAPE, there))) != 1 or set(map(Tensor.stride, there)) != _CONTIGUOUS:
            raise Unlike
        self.values += map(_DTYPE, there)
        self.values += map(Tensor.get_device, there)
        if len(there) < len(flat):
            self.values += [tensor is None for tensor in flat]

    def settle(self) -> None:
        """Leave out the tensors that are None, but not where they stood."""
        there = [tensor for tensor in self.tensors if tensor is not None]
        if len(there) < len(self.tensors):
            self.values += [tensor is None for tensor in self.tensors]
            self.tensors = there

    def of_objects(self) -> Hashable:
        """Which tensors they are."""
        return (*map(id, self.tensors), *self.values)

    def pointers(self) -> tuple[int, ...]:
        """Where they are."""
        # A map of C functions over all tensors takes half the time of a Python function for each.
        return tuple(map(Tensor.data_ptr, self.tensors))

    def of_layouts(self) -> Hashable:
        """Where they are and how they are laid out.

        Raises
        ------
        Unlike
            One is empty, and so may be on any device.
        """
        pointers = self.pointers()
        if 0 in pointers:
            raise Unlike
        tensors = self.tensors
        return (*pointers, *map(Tensor.stride, tensors), *map(_DTYPE, tensors), *map(_SHAPE, tensors), *self.values)


def describe_verify(arguments: Mapping[str, Any]) -> Key:
    """What a verify launch depends on; takes the arguments of the launchers, as the other three do."""
    key = Key()
    key.add_contexts(arguments)
    key.tensors += _OF_VERIFY_PLAN(arguments["plan"])
    key.tensors += arguments["real_kv_hashes"]
    key.values += (bool(arguments["check_verify_expected_token"]), bool(arguments["zero_init_okay"]))
    key.settle()
    return key


def describe_write(arguments: Mapping[str, Any]) -> Key:
    """What a write launch depends on."""
    flat = WRITE_FLAT(arguments)
    asserts = bool(arguments["enable_write_input_assert"])
    if (flat[3] is not None) != asserts or (flat[4] is not None) != asserts:
        raise Unlike
    key = Key()
    key.add_contexts(arguments)
    key.tensors += _OF_WRITE_PLAN(arguments["plan"])
    key.add_flat(flat)
    key.settle()
    return key


def describe_plan(arguments: Mapping[str, Any]) -> Key:
    """What a plan launch depends on: the number of requests, too, which its scratch memory is for."""
    flat = PLAN_FLAT(arguments)
    key = Key()
    key.tensors += _OF_VERIFY_PLAN(arguments["verify_plan_out"])
    key.tensors += _OF_WRITE_PLAN(arguments["write_plan_out"])
    key.tensors += _PLAN_TABLES(arguments)
    key.values += map(int, _PLAN_SIZES(arguments))
    key.add_flat(flat)
    key.values.append(flat[0].shape[0])
    key.settle()
    return key


def describe_hash(arguments: Mapping[str, Any]) -> Key:
    """What a hash launch depends on."""
    key = Key()
    key.add_sources(arguments["real_kv_sources"])
    key.values.append(int(arguments["real_kv_hash_mode"]))
    key.add_flat(HASH_FLAT(arguments))
    key.settle()
    return key


class EagerWork:
    """One kind of work: prepares launches, runs them, and remembers them.

    Parameters
    ----------
    prepare
        Makes the prepared launches for a launcher's checked arguments.
    describe
        What these depend on, collected; raises :class:`Unlike` for arguments that must be checked first.
    flat
        Takes of the arguments those that are replaced in a remembered launch.
    """

    def __init__(
        self,
        prepare: Callable[..., list[Any]],
        describe: Callable[[Mapping[str, Any]], Key],
        flat: Callable[[Mapping[str, Any]], Sequence[Any]] | None = None,
    ) -> None:
        self.prepare, self._describe, self._flat = prepare, describe, flat
        self._by_layouts: dict[Hashable, list[Any]] = {}
        self._by_objects: dict[Hashable, _Remembered] = {}
        self._lock = threading.Lock()

    def repeat(self, arguments: Mapping[str, Any]) -> bool:
        """Launch if a launch like this is remembered; say whether. Unchecked arguments will do."""
        if not self._by_layouts:
            return False
        try:
            known = self._find(self._describe(arguments))
        except (Unlike, AttributeError, TypeError, ValueError, RuntimeError):
            # The checks, which come next, have better words for it.
            return False
        if known is None:
            return False
        # Nobody else may replace the inputs between here and the launch.
        with self._lock:
            for launch in known:
                if self._flat is not None:
                    launch.replace_flat(self._flat(arguments))
                launch()
        return True

    def __call__(self, **arguments: Any) -> None:
        """Launch for checked arguments, and remember it."""
        launches = self.prepare(**arguments)
        for launch in launches:
            launch()
        if SIMULATED:
            return
        for launch in launches:
            launch.let_go()
        with contextlib.suppress(Unlike):
            _put(self._by_layouts, self._describe(arguments).of_layouts(), launches)

    def _find(self, key: Key) -> list[Any] | None:
        objects, pointers = key.of_objects(), key.pointers()
        near = self._by_objects.get(objects)
        if near is not None and near.pointers == pointers:
            return near.launches
        known = self._by_layouts.get(key.of_layouts())
        if known is not None:

            def forget(_: Any) -> None:
                self._by_objects.pop(objects, None)

            references = [weakref.ref(tensor, forget) for tensor in key.tensors]
            _put(self._by_objects, objects, _Remembered(pointers, known, references))
        return known


class _Remembered(NamedTuple):
    """Launches of tensors that all are alive: once one is not, its reference removes them."""

    pointers: tuple[int, ...]
    launches: list[Any]
    references: list[weakref.ref[Any]]


def _put(known: dict[Hashable, Any], key: Hashable, value: Any) -> None:
    if len(known) >= _MOST:
        known.clear()
    known[key] = value
