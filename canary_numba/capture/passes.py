"""What a guard does around one forward pass, in order: plan, before_forward, after_forward.

How many there were, and how many violations they reported, is known without waiting for the device.
"""

from __future__ import annotations

from collections.abc import Sequence

from canary_numba.capture.arguments import Ints, PassRequests, PassTokens
from canary_numba.capture.poll import CounterPoll
from canary_numba.capture.pool_group import PoolGroup
from canary_numba.capture.shared_log import SharedLog
from canary_numba.capture.step import Step
from canary_numba.errors import ArgumentError

_IDLE, _PLANNED, _INSIDE = range(3)


class GuardedPasses:
    """The passes over some pools.

    Parameters
    ----------
    step
        What a pass is about.
    log
        What its launches report into.
    groups
        The pools.
    """

    def __init__(self, *, step: Step, log: SharedLog, groups: Sequence[PoolGroup]) -> None:
        self.step, self.log, self.groups = step, log, tuple(groups)
        self._passes, self._poll = CounterPoll(log.passes), CounterPoll(log.write_index)
        self._phase = _IDLE

    @property
    def passes(self) -> int:
        """Passes that ended, replays of a CUDA graph included, as far as is known without waiting for the device."""
        return self._passes()

    def poll(self) -> int:
        """Return how many violations were reported so far, as far as is known without waiting for the device."""
        return self._poll()

    @property
    def in_pass(self) -> bool:
        """Whether a pass is under way: its new tokens are then computed, not cached."""
        return self._phase == _INSIDE

    def plan(
        self,
        req_pool_indices: Ints,
        prefix_lens: Ints,
        extend_seq_lens: Ints,
        *,
        token_ids: Sequence[Ints] | None = None,
        token_lens: Ints | None = None,
    ) -> None:
        """Plan a pass: which cached tokens it verifies, and where the chains of its new tokens go on.

        Parameters
        ----------
        req_pool_indices
            int ``[bs]``, table row of each request.
        prefix_lens, extend_seq_lens
            int ``[bs]``, tokens already cached and tokens to be computed. Slots of both are in the table.
        token_ids
            For each request the token ids it is known to have, from position 0 on: copied into
            ``req_to_expected_tokens``. Cached tokens that they reach are compared with them.
        token_lens
            int ``[bs]``, in place of ``token_ids`` when the engine fills ``req_to_expected_tokens``: how many leading
            tokens of each request's row are its own.

        Raises
        ------
        ArgumentError
            More requests than ``max_requests``, lengths that differ, tokens without a table for them, or a pass is
            under way; nothing has changed.
        """
        self._require(_IDLE, _PLANNED, what="plan")
        requests = self.step.check_requests(
            req_pool_indices=req_pool_indices,
            prefix_lens=prefix_lens,
            extend_seq_lens=extend_seq_lens,
            token_ids=token_ids,
            token_lens=token_lens,
        )
        self._make_plan(requests)

    def before_forward(
        self,
        input_ids: Ints,
        positions: Ints,
        out_cache_loc: Ints,
        *,
        expected_input_ids: Ints | None = None,
        expected_positions: Ints | None = None,
    ) -> None:
        """Verify the HEAD records of the cached tokens, and write those of the new ones.

        Parameters
        ----------
        input_ids, positions, out_cache_loc
            int ``[num_tokens]``, the planned requests' new tokens one request after the other: token id, position and
            slot.
        expected_input_ids, expected_positions
            int ``[num_tokens]``, what the scheduler meant the first two to be; where they differ is a violation.

        Raises
        ------
        ArgumentError
            More tokens than ``max_new_tokens``, lengths that differ, or nothing was planned; nothing has changed.
        """
        self._require(_PLANNED, what="before_forward")
        tokens = self.step.check_tokens(
            input_ids=input_ids,
            positions=positions,
            out_cache_loc=out_cache_loc,
            expected_input_ids=expected_input_ids,
            expected_positions=expected_positions,
        )
        self._begin(tokens)

    def after_forward(self) -> None:
        """Verify the TAIL records and K/V bytes of the cached tokens, and write those of the new ones.

        Raises
        ------
        ArgumentError
            No pass is under way.
        """
        self._require(_INSIDE, what="after_forward")
        for group in self.groups:
            group.run("TAIL")
        self.step.settle()
        self.log.passes.add_(1)
        self._phase = _IDLE

    def _make_plan(self, requests: PassRequests | None = None) -> None:
        if requests is not None:
            self.step.load_requests(requests)
        for group in self.groups:
            group.make_plan()
        self._phase = _PLANNED

    def _begin(self, tokens: PassTokens) -> None:
        self.step.load_tokens(tokens)
        for group in self.groups:
            group.run("HEAD")
        self._phase = _INSIDE

    def _end(self) -> None:
        self._phase = _IDLE

    def _require_between_passes(self, what: str) -> None:
        self._require(_IDLE, _PLANNED, what=what)

    def _require(self, *phases: int, what: str) -> None:
        if self._phase not in phases:
            order = "plan, before_forward, after_forward"
            raise ArgumentError(f"{what}: called out of order; a pass is {order}, and all else comes between passes")
