"""``KVCanary``: a canary record for every slot of any paged K/V pool, written and verified around each forward pass."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from canary_numba.capture.folder import DumpFolder
from canary_numba.capture.guard import Health, HealthCheck, report, require_mode
from canary_numba.capture.layers import PagedPool
from canary_numba.capture.poll import CounterPoll
from canary_numba.capture.pool_group import PoolGroup, SharedLog
from canary_numba.capture.snapshot import take_snapshot
from canary_numba.capture.step import Ints, Step
from canary_numba.dump.model import Dump, Radix
from canary_numba.errors import ArgumentError
from canary_numba.layout import RealKvHashMode
from canary_numba.violations import Violation, decode_row

_IDLE, _PLANNED, _INSIDE = range(3)


class KVCanary:
    """Guards a paged K/V pool: says when a cached token is no longer what was written for it.

    Parameters
    ----------
    pool
        The K/V tensors (of every cached token).
    req_to_token
        int32 ``[rows, width]``, slot of each request row and position, on the pool's device; rows may be strided. Row 0
        is padding. Read where it is, so keep it in place.
    hash_mode
        Which K/V bytes a record fingerprints: ``"none"``, ``"partial"`` (the first 16 of each slot and layer) or
        ``"all"``.
    window_pool, swa_window_size, full_to_swa_index_mapping
        A second pool, of the last ``swa_window_size`` tokens, and the int64 map to its slot numbers (0 = evicted).
    max_requests, max_new_tokens, max_cached_tokens
        Room for one pass: default all table rows, one token for each slot, and twice the slots (requests that share a
        prefix count it each). A pass with more cached tokens goes unverified; :meth:`check` tells.
    ring_capacity
        Violations kept in detail.
    kv_token_id_vs_position_offset
        1 for a draft model's pool, whose slots hold the token of the next position.
    keep_source_hashes
        Remember the hash of each layer alone, so that a report can name the one that changed: 8 bytes a slot and layer.
    engine
        ``"auto"``: a CUDA pool on the GPU, else the CPU.

    Raises
    ------
    ArgumentError, ArgumentTypeError, EngineUnavailableError
        A tensor does not fit, or the engine cannot run.

    Notes
    -----
    Costs 128 bytes a slot (K and V, HEAD and TAIL). On CUDA, :meth:`plan`, :meth:`before_forward` and
    :meth:`after_forward` queue kernels on torch's current stream; given CUDA tensors, they do not wait.
    """

    def __init__(
        self,
        pool: PagedPool,
        req_to_token: torch.Tensor,
        *,
        hash_mode: str = "all",
        window_pool: PagedPool | None = None,
        swa_window_size: int = 0,
        full_to_swa_index_mapping: torch.Tensor | None = None,
        max_requests: int | None = None,
        max_new_tokens: int | None = None,
        max_cached_tokens: int | None = None,
        ring_capacity: int = 1024,
        kv_token_id_vs_position_offset: int = 0,
        keep_source_hashes: bool = False,
        engine: str = "auto",
    ) -> None:
        if hash_mode.upper() not in RealKvHashMode.__members__:
            raise ArgumentError(f"hash_mode: expected none, partial or all, got {hash_mode!r}")
        windowed = (window_pool is not None, swa_window_size > 0, full_to_swa_index_mapping is not None)
        if any(windowed) and not all(windowed):
            raise ArgumentError("window_pool, swa_window_size, full_to_swa_index_mapping: expected all three or none")
        self.hash_mode = RealKvHashMode[hash_mode.upper()]
        self.req_to_token = req_to_token
        device = req_to_token.device
        slots = sum(source.tensor.shape[0] * source.page_size for source in pool.sources("K")[:1])
        self.step = Step(
            max_requests=req_to_token.shape[0] if max_requests is None else max_requests,
            max_new_tokens=max(slots, 1) if max_new_tokens is None else max_new_tokens,
            device=device,
        )
        self.log = SharedLog.allocate(ring_capacity=ring_capacity, device=device)
        common: dict[str, Any] = {
            "req_to_token": req_to_token,
            "step": self.step,
            "log": self.log,
            "mode": self.hash_mode,
            "capacity": max(2 * slots, 1) if max_cached_tokens is None else max_cached_tokens,
            "offset": kv_token_id_vs_position_offset,
            "keep_source_hashes": keep_source_hashes,
            "engine": engine,
        }
        groups = [PoolGroup(kind="FULL", pool=pool, window=0, mapping=None, **common)]
        if window_pool is not None:
            mapping = full_to_swa_index_mapping
            groups.append(PoolGroup(kind="SWA", pool=window_pool, window=swa_window_size, mapping=mapping, **common))
        self.groups = tuple(groups)
        self.passes = 0
        self._phase = _IDLE
        self._poll = CounterPoll(self.log.write_index)
        self._health = HealthCheck([tag for group in groups for tag in group.tags])
        self._reported = 0

    def plan(self, req_pool_indices: Ints, prefix_lens: Ints, extend_seq_lens: Ints) -> None:
        """Plan a pass: which cached tokens it verifies, and where the chains of its new tokens go on.

        Parameters
        ----------
        req_pool_indices
            int ``[bs]``, table row of each request.
        prefix_lens, extend_seq_lens
            int ``[bs]``, tokens already cached and tokens to be computed. Slots of both are in the table.

        Raises
        ------
        ArgumentError
            More requests than ``max_requests``, lengths that differ, or a pass is under way.
        """
        self._require(_INSIDE, forbidden=True, what="plan")
        self.step.load_requests(req_pool_indices, prefix_lens, extend_seq_lens)
        for group in self.groups:
            group.make_plan()
        self._phase = _PLANNED

    def before_forward(self, input_ids: Ints, positions: Ints, out_cache_loc: Ints) -> None:
        """Verify the HEAD records of the cached tokens, and write those of the new ones.

        Parameters
        ----------
        input_ids, positions, out_cache_loc
            int ``[num_tokens]``, the planned requests' new tokens one request after the other: token id, position and
            slot.

        Raises
        ------
        ArgumentError
            More tokens than ``max_new_tokens``, lengths that differ, or nothing was planned.
        """
        self._require(_PLANNED, forbidden=False, what="before_forward")
        self.step.load_tokens(input_ids, positions, out_cache_loc)
        for group in self.groups:
            group.run("HEAD")
        self._phase = _INSIDE

    def after_forward(self) -> None:
        """Verify the TAIL records and K/V bytes of the cached tokens, and write those of the new ones.

        Raises
        ------
        ArgumentError
            No pass is under way.
        """
        self._require(_INSIDE, forbidden=False, what="after_forward")
        for group in self.groups:
            group.run("TAIL")
        self.step.settle()
        self.passes += 1
        self._phase = _IDLE

    @contextlib.contextmanager
    def forward(
        self,
        *,
        req_pool_indices: Ints,
        prefix_lens: Ints,
        extend_seq_lens: Ints,
        input_ids: Ints,
        positions: Ints,
        out_cache_loc: Ints,
        mode: str = "log",
        directory: str | os.PathLike[str] | None = None,
        keep: int = 3,
        facts: Callable[[], Mapping[str, Any]] | None = None,
    ) -> Iterator[KVCanary]:
        """Guard the forward pass that is the body of the ``with`` statement.

        Parameters
        ----------
        req_pool_indices, prefix_lens, extend_seq_lens, input_ids, positions, out_cache_loc
            As in :meth:`plan` and :meth:`before_forward`.
        mode
            On new violations: ``"log"`` them as a warning of the logger ``canary_numba.capture``; ``"raise"``; or log
            them and ``"dump"`` a snapshot.
        directory, keep
            Where dumps go, and how many are there at most.
        facts
            Returns the arguments of :meth:`snapshot`; called only when a dump is written.

        Raises
        ------
        ArgumentError
            As :meth:`plan` and :meth:`before_forward` do.
        CorruptionError
            ``mode`` is ``"raise"`` and there are new violations.

        Notes
        -----
        On CUDA the count is read without waiting, so that a violation is reported one or more passes after it happened.
        When the body raises, the pass is dropped: its new tokens count as not written.
        """
        require_mode(mode, directory)
        self.plan(req_pool_indices, prefix_lens, extend_seq_lens)
        self.before_forward(input_ids, positions, out_cache_loc)
        try:
            yield self
        except BaseException:
            self._phase = _IDLE
            raise
        self.after_forward()
        found = self.poll()
        if found <= self._reported:
            return
        self._reported = found
        if mode == "dump" and directory is not None:
            DumpFolder(directory, keep=keep).save(lambda: self.snapshot(**(facts() if facts is not None else {})))
        report(mode, self.violations(), found)

    def verify(
        self,
        req_pool_indices: Ints | None = None,
        prefix_lens: Ints | None = None,
        *,
        radix: Radix | None = None,
    ) -> int:
        """Verify everything that is cached, between two passes, and wait for the result.

        Parameters
        ----------
        req_pool_indices, prefix_lens
            The live requests; default those of the last pass, with what it computed.
        radix
            What the prefix cache holds; verified as SWEEP.

        Returns
        -------
        int
            Violations found.

        Raises
        ------
        ArgumentError
            A pass is under way, or only one of the first two is given.
        """
        self._require(_INSIDE, forbidden=True, what="verify")
        if (req_pool_indices is None) != (prefix_lens is None):
            raise ArgumentError("req_pool_indices, prefix_lens: expected both or neither")
        before = self._poll.now()
        if req_pool_indices is not None and prefix_lens is not None:
            self.step.load_requests(req_pool_indices, prefix_lens, [0] * len(req_pool_indices))
        self._phase = _IDLE
        for group in self.groups:
            group.make_plan()
            group.run("HEAD", write=False)
            group.run("TAIL", write=False)
            if radix is not None:
                group.sweep(radix)
        return self._poll.now() - before

    def poll(self) -> int:
        """Return how many violations were reported so far, as far as is known without waiting for the device."""
        return self._poll()

    def violations(self) -> tuple[Violation, ...]:
        """Decode the violations that the ring holds, in order of tag, slot and position. Waits for the device."""
        kept = min(self._poll.now(), self.log.ring.shape[0])
        rows = map(decode_row, self.log.ring[:kept].tolist())
        return tuple(sorted(rows, key=lambda violation: violation.order))

    def check(self) -> Health:
        """Tell whether the canary ran in every pass since the last call. Waits for the device."""
        return self._health.look(
            launches=self.log.kernel_run.tolist(),
            slots=self.log.slot_run.tolist(),
            plans_too_large=int(self.log.plans_too_large),
            passes=self.passes,
            violations=self._poll.now(),
        )

    def snapshot(self, **facts: Any) -> Dump:
        """Take a dump of the pool as it is now; arguments as of :func:`canary_numba.capture.snapshot.take_snapshot`."""
        return take_snapshot(self, in_pass=self._phase == _INSIDE, **facts)

    def _require(self, phase: int, *, forbidden: bool, what: str) -> None:
        if (self._phase == phase) == forbidden:
            order = "plan, before_forward, after_forward"
            raise ArgumentError(f"{what}: called out of order; a pass is {order}, and all else comes between passes")
