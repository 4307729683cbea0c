"""What the canary costs a step of a server: plan, then verify and write before the layers (HEAD) and after them (TAIL).

K and V each have a HEAD buffer, whose records carry no K/V bytes, and a TAIL buffer, whose records fingerprint one
layer. Every endpoint has counters of its own and all share the ring, as in SGLang's runtime. A step may run once more
on what it left: it verifies the same tokens and writes the same records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from benchmarks.build import Workload, build, random_sources, write_prefix
from benchmarks.cases import Case
from benchmarks.checking import sorted_rows
from canary_numba import CanaryLaunchTag, VerifyOrWriteContext
from canary_numba.prepared import PreparedPlan, PreparedVerify, PreparedWrite

Pair = tuple[VerifyOrWriteContext, VerifyOrWriteContext]
Launchers = dict[str, Callable[..., None]]


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step on one device: contexts of K and V before and after the layers, and what a run starts from.

    ``counters``: int64 ``[2, 4]``, slots and launches of HEAD K, HEAD V, TAIL K and TAIL V; ``before``: their buffers
    before the step.
    """

    load: Workload
    heads: Pair
    tails: Pair
    counters: torch.Tensor
    before: tuple[torch.Tensor, ...]

    @property
    def contexts(self) -> tuple[VerifyOrWriteContext, ...]:
        """HEAD K, HEAD V, TAIL K, TAIL V."""
        return (*self.heads, *self.tails)

    def reset(self) -> None:
        """Put records, counters, ring and plans back to what they were before the step."""
        for context, buf in zip(self.contexts, self.before, strict=True):
            context.canary_buf.copy_(buf)
        self.counters.zero_()
        self.load.log.violation_write_index.zero_()
        for plan in (self.load.verify_plan, self.load.write_plan):
            plan.zero_for_testing_()

    def outcome(self) -> dict[str, Any]:
        """Copies of all that a run leaves; ring rows sorted."""
        plans: dict[str, Any] = {"verify plan": self.load.verify_plan, "write plan": self.load.write_plan}
        return {
            **{
                f"{name}: {field.name}": getattr(plan, field.name).clone()
                for name, plan in plans.items()
                for field in fields(plan)
            },
            **{f"records of {context.kernel_kind.name}": context.canary_buf.clone() for context in self.contexts},
            "counters": self.counters.tolist(),
            "number of rows": int(self.load.log.violation_write_index),
            "rows": sorted_rows(self.heads[0]),
        }


def build_step(case: Case, device: str) -> Step:
    """Allocate a step and write the records of its cached tokens."""
    load = build(replace(case, work="plan"), device)
    load.log.enable_chain_position_assert.fill_(1)
    num_slots = load.context.canary_buf.shape[0]
    counters = torch.zeros((2, 4), dtype=torch.int64, device=device)
    kinds = CanaryLaunchTag.HEAD_K_FULL, CanaryLaunchTag.HEAD_V_FULL, CanaryLaunchTag.TAIL_K_FULL
    sources = (), (), load.context.real_kv_sources, random_sources(case, num_slots, device)
    head_k, head_v, tail_k, tail_v = (
        replace(
            load.context,
            canary_buf=torch.zeros_like(load.context.canary_buf),
            kernel_kind=kind,
            slot_run_counter=counters[0, i : i + 1],
            kernel_run_counter=counters[1, i : i + 1],
            real_kv_sources=of_endpoint,
        )
        for i, (kind, of_endpoint) in enumerate(zip((*kinds, CanaryLaunchTag.TAIL_V_FULL), sources, strict=True))
    )
    contexts = (head_k, head_v, tail_k, tail_v)
    if case.prefix:
        write_prefix(case, contexts, load.write_plan, load.plan_arguments)
    before = tuple(context.canary_buf.clone() for context in contexts)
    return Step(load=load, heads=(head_k, head_v), tails=(tail_k, tail_v), counters=counters, before=before)


def launched(step: Step, launchers: Launchers, *, together: bool = False) -> Callable[[], None]:
    """The step by launchers, by kind of work: in the order of SGLang's runtime, or K and V of a stage together."""
    load = step.load
    contexts: tuple[Any, ...] = (step.heads, step.tails) if together else step.contexts

    def run() -> None:
        launchers["plan"](**load.plan_arguments)
        for context in contexts:
            launchers["verify"](context=context, plan=load.verify_plan, check_verify_expected_token=False)
            launchers["write"](context=context, plan=load.write_plan, **load.write_arguments)

    return run


def prepared(step: Step) -> Callable[[], None]:
    """The step prepared once, K and V in one launch."""
    load = step.load
    calls: list[Callable[[], None]] = [PreparedPlan(**load.plan_arguments)]
    for pair in (step.heads, step.tails):
        calls.append(PreparedVerify(context=pair, plan=load.verify_plan, check_verify_expected_token=False))
        calls.append(PreparedWrite(context=pair, plan=load.write_plan, **load.write_arguments))

    def run() -> None:
        for call in calls:
            call()

    return run


@contextmanager
def damaged(step: Step) -> Iterator[None]:
    """Change K and V bytes and records of some cached tokens; afterwards put them back."""
    case = step.load.case
    cached = step.load.plan_arguments["req_to_token"][1:, : case.prefix].reshape(-1).long()
    saved: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []

    def change(memory: torch.Tensor, slots: torch.Tensor, byte: int) -> None:
        saved.append((memory, slots, memory[slots].clone()))
        memory[slots, byte] ^= 1

    stride = max(1, len(cached) // 40)
    for i, context in enumerate(step.contexts):
        for source in context.real_kv_sources:
            change(source.tensor, cached[i::stride], 5)
    change(step.before[1], cached[:: 4 * stride], 8)
    try:
        yield
    finally:
        for memory, slots, bytes_before in saved:
            memory[slots] = bytes_before


def _first_difference(expected: dict[str, Any], got: dict[str, Any]) -> str | None:
    for name, value in expected.items():
        same = torch.equal(value, got[name]) if isinstance(value, torch.Tensor) else value == got[name]
        if not same:
            return name
    return None


def check_runners(step: Step, runners: dict[str, Callable[[], None]]) -> str:
    """Run each once on clean and once on damaged K/V bytes and records; say how many rows all of them reported.

    Raises
    ------
    AssertionError
        Two runners leave something different, or a clean cache gives a row.
    """

    def left_by(runner: Callable[[], None]) -> dict[str, Any]:
        step.reset()
        runner()
        return step.outcome()

    def compare() -> int:
        first, *others = runners
        expected = left_by(runners[first])
        for name in others:
            difference = _first_difference(expected, left_by(runners[name]))
            if difference is not None:
                raise AssertionError(f"{step.load.case.name}: {difference} differ between {first} and {name}")
        return int(expected["number of rows"])

    clean = compare()
    if clean:
        raise AssertionError(f"{step.load.case.name}: {clean} rows on a clean cache")
    with damaged(step):
        rows = compare()
    step.reset()
    return f"equal, {rows} rows"
