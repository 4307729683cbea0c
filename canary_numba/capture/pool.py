"""``KVCanary``: a canary record for every slot of any paged K/V pool, written and verified around each forward pass."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from canary_numba.capture.arguments import Ints, recording
from canary_numba.capture.folder import DumpFolder
from canary_numba.capture.guard import Health, HealthCheck, report, require_mode
from canary_numba.capture.layers import PagedPool
from canary_numba.capture.passes import GuardedPasses
from canary_numba.capture.pool_group import make_groups
from canary_numba.capture.shared_log import SharedLog
from canary_numba.capture.snapshot import take_snapshot
from canary_numba.capture.step import Step
from canary_numba.dump.model import Dump, Radix
from canary_numba.errors import ArgumentError
from canary_numba.layout import RealKvHashMode
from canary_numba.violations import Violation


class KVCanary(GuardedPasses):
    """Guards a paged K/V pool: says when a cached token is no longer what was written for it.

    Parameters
    ----------
    pool
        The K/V tensors (of every cached token).
    req_to_token
        int32 ``[rows, width]``, slot of each request row and position, on the pool's device; rows may be strided. Row 0
        is padding. Read where it is, so keep it in place.
    req_to_expected_tokens
        int32 ``[rows, w]`` alike, the token ids of each row: filled by :meth:`plan` or by the engine. Cached tokens are
        compared with it; without it a slot of another request goes unnoticed when its chain is sound.
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
        req_to_expected_tokens: torch.Tensor | None = None,
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
        self.hash_mode = RealKvHashMode[hash_mode.upper()]
        self.req_to_token = req_to_token
        device = req_to_token.device
        slots = sum(source.tensor.shape[0] * source.page_size for source in pool.sources("K")[:1])
        step = Step(
            max_requests=req_to_token.shape[0] if max_requests is None else max_requests,
            max_new_tokens=max(slots, 1) if max_new_tokens is None else max_new_tokens,
            device=device,
            token_table=req_to_expected_tokens,
            num_rows=req_to_token.shape[0],
            engine=engine,
        )
        log = SharedLog.allocate(ring_capacity=ring_capacity, device=device)
        groups = make_groups(
            pool,
            window_pool=window_pool,
            swa_window_size=swa_window_size,
            full_to_swa_index_mapping=full_to_swa_index_mapping,
            req_to_token=req_to_token,
            step=step,
            log=log,
            mode=self.hash_mode,
            capacity=max(2 * slots, 1) if max_cached_tokens is None else max_cached_tokens,
            offset=kv_token_id_vs_position_offset,
            keep_source_hashes=keep_source_hashes,
            engine=engine,
        )
        super().__init__(step=step, log=log, groups=groups)
        self._health = HealthCheck([tag for group in groups for tag in group.tags])
        self._reported = 0

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
        token_ids: Sequence[Ints] | None = None,
        token_lens: Ints | None = None,
        expected_input_ids: Ints | None = None,
        expected_positions: Ints | None = None,
        mode: str = "log",
        directory: str | os.PathLike[str] | None = None,
        keep: int = 3,
        facts: Callable[[], Mapping[str, Any]] | None = None,
    ) -> Iterator[KVCanary]:
        """Guard the forward pass that is the body of the ``with`` statement, and :meth:`report`.

        Parameters
        ----------
        req_pool_indices, prefix_lens, extend_seq_lens, token_ids, token_lens
            As in :meth:`plan`.
        input_ids, positions, out_cache_loc, expected_input_ids, expected_positions
            As in :meth:`before_forward`.
        mode, directory, keep, facts
            As in :meth:`report`.

        Raises
        ------
        ArgumentError
            As :meth:`plan` and :meth:`before_forward` do, or a CUDA graph is being recorded.
        CorruptionError
            ``mode`` is ``"raise"`` and there are new violations.

        Notes
        -----
        When the body raises, the pass is dropped: its new tokens count as not written.
        """
        require_mode(mode, directory)
        if recording(self.req_to_token.device):
            raise ArgumentError("forward: record plan, before_forward and after_forward; report after a replay")
        self._require_between_passes("forward")
        requests = self.step.check_requests(
            req_pool_indices=req_pool_indices,
            prefix_lens=prefix_lens,
            extend_seq_lens=extend_seq_lens,
            token_ids=token_ids,
            token_lens=token_lens,
        )
        tokens = self.step.check_tokens(
            input_ids=input_ids,
            positions=positions,
            out_cache_loc=out_cache_loc,
            expected_input_ids=expected_input_ids,
            expected_positions=expected_positions,
        )
        self._make_plan(requests)
        self._begin(tokens)
        try:
            yield self
        except BaseException:
            self._end()
            raise
        self.after_forward()
        self.report(mode=mode, directory=directory, keep=keep, facts=facts)

    def report(
        self,
        *,
        mode: str = "log",
        directory: str | os.PathLike[str] | None = None,
        keep: int = 3,
        facts: Callable[[], Mapping[str, Any]] | None = None,
    ) -> None:
        """Report violations that were not reported before: between passes, or after the replay of a CUDA graph.

        Parameters
        ----------
        mode
            ``"log"`` them as a warning of the logger ``canary_numba.capture``; ``"raise"``; or log them and ``"dump"``
            a snapshot.
        directory, keep
            Where dumps go, and how many are there at most.
        facts
            Returns the arguments of :meth:`snapshot`; called only when a dump is written.

        Raises
        ------
        ArgumentError
            There is no such mode, or dumps are asked for without a folder to put them in.
        CorruptionError
            ``mode`` is ``"raise"`` and there are new violations.

        Notes
        -----
        On CUDA the count is read without waiting, so that a violation is reported one or more passes after it happened.
        """
        require_mode(mode, directory)
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
        token_ids: Sequence[Ints] | None = None,
        radix: Radix | None = None,
    ) -> int:
        """Verify everything that is cached, between two passes, and wait for the result.

        Parameters
        ----------
        req_pool_indices, prefix_lens
            The live requests; default those of the last pass, with what it computed.
        token_ids
            Their token ids, as in :meth:`plan`.
        radix
            What the prefix cache holds; verified as SWEEP.

        Returns
        -------
        int
            Violations found.

        Raises
        ------
        ArgumentError
            A pass is under way, only one of the first two is given, or ``token_ids`` without them.
        """
        self._require_between_passes("verify")
        requests = None
        if req_pool_indices is not None and prefix_lens is not None:
            requests = self.step.check_requests(
                req_pool_indices=req_pool_indices,
                prefix_lens=prefix_lens,
                extend_seq_lens=[0] * len(req_pool_indices),
                token_ids=token_ids,
                token_lens=None,
            )
        elif any(given is not None for given in (req_pool_indices, prefix_lens, token_ids)):
            raise ArgumentError("req_pool_indices, prefix_lens: expected both or neither, and both with token_ids")
        before = self._poll.now()
        self._make_plan(requests)
        self._end()
        for group in self.groups:
            group.run("HEAD", write=False)
            group.run("TAIL", write=False)
            if radix is not None:
                group.sweep(radix)
        return self._poll.now() - before

    def violations(self) -> tuple[Violation, ...]:
        """Decode the violations that the ring holds, in order of tag, slot and position. Waits for the device."""
        return self.log.violations()

    def check(self) -> Health:
        """Tell whether the canary ran in every pass since the last call. Waits for the device."""
        return self._health.look(
            launches=self.log.kernel_run.tolist(),
            slots=self.log.slot_run.tolist(),
            plans_too_large=int(self.log.plans_too_large),
            passes=self._passes.now(),
            violations=self._poll.now(),
        )

    def snapshot(self, **facts: Any) -> Dump:
        """Take a dump of the pool as it is now; arguments as of :func:`canary_numba.capture.snapshot.take_snapshot`."""
        return take_snapshot(self, in_pass=self.in_pass, **facts)
