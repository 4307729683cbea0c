"""Hypothesis strategies for launch arguments: mostly plausible, with int64 extremes and garbage mixed in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import harness
import hypothesis.strategies as st
import numpy as np
import torch
from hypothesis.strategies import DrawFn, SearchStrategy

from canary_numba.context import RealKvSource, VerifyOrWriteContext, ViolationAggregate
from canary_numba.layout import CanaryLaunchTag, RealKvHashMode
from canary_numba.plans import VerifyPlan, WritePlan

EXTREMES = [-(2**63), -(2**63) + 1, -(2**53) - 1, -(2**31), -2, -1, 0, 1, 2**31, 2**53, 2**53 + 1, 2**63 - 2, 2**63 - 1]
WIDTHS = [1, 3, 8, 15, 16, 17, 24, 32, 48, 100, 584]
"""Bytes a token: whole words, whole 16-byte pieces, and neither."""

int64s: SearchStrategy[int] = st.sampled_from(EXTREMES) | st.integers(-(2**63), 2**63 - 1)
int32s: SearchStrategy[int] = st.sampled_from([-(2**31), -1, 0, 1, 2**31 - 1]) | st.integers(-(2**31), 2**31 - 1)
values: SearchStrategy[int] = st.integers(0, 6) | int64s
"""Token ids and positions."""
int_dtypes = st.sampled_from(
    [
        (torch.int64, torch.int64, torch.int64),
        (torch.int32, torch.int32, torch.int32),
        (torch.int32, torch.int64, torch.int64),
        (torch.int64, torch.int64, torch.int32),
    ]
)
"""Dtypes of token ids, positions, slots: a few of the mixes, since an engine may compile each one anew."""


def int64_tensor(numbers: list[int]) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int64)


def int32_cell(number: int) -> torch.Tensor:
    return torch.tensor([number], dtype=torch.int32)


def fit(numbers: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Convert, cutting to the dtype's range: wrapped around, a wild slot could become one that another request owns."""
    info = torch.iinfo(dtype)
    return numbers.clamp(info.min, info.max).to(dtype)


def random_bytes(draw: DrawFn, count: int) -> torch.Tensor:
    """uint8 ``[count]`` from one drawn seed: bulk data, whose single bytes need not be shrunk."""
    seed = draw(st.integers(0, 2**32 - 1))
    out = torch.empty(count, dtype=torch.uint8)
    out.numpy()[:] = np.random.default_rng(seed).integers(0, 256, count)
    return out


@st.composite
def sources(draw: DrawFn, num_slots: int) -> RealKvSource:
    """A source of at least ``num_slots`` slots: any width, page size, dtype, row padding, row stride and start."""
    page_size = draw(st.sampled_from([1, 2, 3, 4, 16]))
    token_bytes = draw(st.sampled_from(WIDTHS))
    dtype = draw(st.sampled_from([torch.uint8, torch.uint8, torch.bfloat16, torch.float32]))
    item = dtype.itemsize
    width = -(-page_size * token_bytes // item) + draw(st.integers(0, 2))
    row_stride = width + draw(st.sampled_from([0, 0, 1, 4, 16]))
    rows = -(-num_slots // page_size) + draw(st.integers(0, 1))
    start = draw(st.sampled_from([0, 0, 1, 2, 4]))
    memory = random_bytes(draw, (start + max(rows, 1) * row_stride) * item).view(dtype)
    inner = 2 if width % 2 == 0 and draw(st.booleans()) else 1
    tensor = (
        memory.as_strided((rows, width), (row_stride, 1), start)
        if inner == 1
        else memory.as_strided((rows, inner, width // inner), (row_stride, width // inner, 1), start)
    )
    return RealKvSource(
        tensor=tensor,
        page_size=page_size,
        num_bytes_per_token=token_bytes,
        read_bytes=draw(st.just(token_bytes) | st.integers(1, token_bytes)),
    )


@st.composite
def contexts(draw: DrawFn, num_slots: int) -> VerifyOrWriteContext:
    """A context whose records are random bytes."""
    stride = draw(st.sampled_from([32, 32, 40, 64]))
    capacity = draw(st.integers(0, 6) | st.just(64))
    return VerifyOrWriteContext(
        canary_buf=random_bytes(draw, num_slots * stride).view(num_slots, stride),
        kernel_kind=draw(st.sampled_from(CanaryLaunchTag)),
        violation_ring=random_bytes(draw, capacity * 64).view(torch.int64).view(capacity, 8),
        violation_write_index=int32_cell(draw(st.sampled_from([0, 0, 1, 3, 6, 9, -2, 2**31 - 2]))),
        slot_run_counter=int64_tensor([draw(st.integers(0, 2**60))]),
        kernel_run_counter=int64_tensor([draw(st.integers(0, 2**60))]),
        real_kv_sources=tuple(draw(st.lists(sources(num_slots), max_size=4))),
        real_kv_hash_mode=draw(st.sampled_from(RealKvHashMode)),
        enable_chain_position_assert=int32_cell(draw(st.sampled_from([0, 1, -5]))),
    )


@st.composite
def aggregates(draw: DrawFn) -> ViolationAggregate | None:
    """None, a fresh aggregate, or one that has counted before."""
    if draw(st.booleans()):
        return None
    aggregate = ViolationAggregate.allocate(device="cpu")
    if draw(st.booleans()):
        aggregate.counts.fill_(3)
        aggregate.never_written.fill_(5)
        aggregate.first_index.fill_(draw(st.integers(0, 3)))
    return aggregate


def stamp(context: VerifyOrWriteContext, chains: list[list[int]], tokens: list[int]) -> None:
    """Write one record chain for each list of slots into the context's buffer, with the oracle."""
    plan = WritePlan(
        write_offsets=int64_tensor([0, *np.cumsum([len(chain) for chain in chains], dtype=np.int64).tolist()]),
        write_seed_slot_indices=int64_tensor([-1] * len(chains)),
        write_num_valid_reqs=int32_cell(len(chains)),
    )
    inputs = {
        "input_ids": int64_tensor(tokens),
        "positions": int64_tensor([position for chain in chains for position in range(len(chain))]),
        "out_cache_loc": int64_tensor([slot for chain in chains for slot in chain]),
        "expected_input_tokens": None,
        "expected_input_positions": None,
    }
    _, records = harness.oracle_write(context, plan, inputs)
    context.canary_buf.view(torch.int64)[:, :4] = torch.tensor(records, dtype=torch.int64).view(-1, 4)


@dataclass
class VerifyCase:
    context: VerifyOrWriteContext
    plan: VerifyPlan
    options: dict[str, Any]


def _cut(draw: DrawFn, items: list[int]) -> list[list[int]]:
    """Cut ``items`` into up to three consecutive parts."""
    cuts = sorted(draw(st.lists(st.integers(0, len(items)), max_size=2)))
    return [items[a:b] for a, b in zip([0, *cuts], [*cuts, len(items)], strict=True)]


@st.composite
def verify_cases(draw: DrawFn) -> VerifyCase:
    """Some intact chains in a buffer, then damage to records, plan and counts, and entries made of garbage."""
    num_slots = draw(st.integers(1, 9))
    context = draw(contexts(num_slots))
    chains = _cut(draw, draw(st.permutations(range(1, num_slots))))
    tokens = draw(st.lists(values, min_size=num_slots - 1, max_size=num_slots - 1))
    stamp(context, chains, tokens)
    words = context.canary_buf.view(torch.int64)
    for slot, word in draw(st.lists(st.tuples(st.integers(0, num_slots - 1), st.integers(0, 3)), max_size=2)):
        words[slot, word] = draw(values)
    for slot in draw(st.lists(st.integers(0, num_slots - 1), max_size=2)):
        words[slot, :4] = 0

    token_at = dict(zip([slot for chain in chains for slot in chain], tokens, strict=True))
    entries = [
        [slot, token_at[slot], position, chain[position - 1] if position else -1]
        for chain in chains
        for position, slot in enumerate(chain)
    ]
    some_slots = st.integers(-2, num_slots + 2) | int64s
    entries += draw(st.lists(st.tuples(some_slots, values, values, some_slots).map(list), max_size=4))
    for index, column in draw(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 3)), max_size=3)):
        if entries:
            entries[index % len(entries)][column] = draw(values if column in (1, 2) else some_slots)
    entries = entries or [[0, -1, 0, -1]]
    columns = [int64_tensor(list(column)) for column in zip(*entries, strict=True)]
    num_valid = draw(st.just(len(entries)) | st.sampled_from([len(entries) + 3, len(entries) - 1, 0, -1, -(2**31)]))
    plan = VerifyPlan(
        verify_slot_indices=columns[0],
        verify_expected_tokens=columns[1],
        verify_expected_positions=columns[2],
        verify_prev_slot_indices=columns[3],
        verify_num_valid=int32_cell(num_valid),
        enable=int32_cell(draw(st.sampled_from([1, 1, 1, -3, 0]))),
    )
    options: dict[str, Any] = {"check_token": draw(st.booleans()), "zero_init_okay": draw(st.booleans())}
    if draw(st.booleans()):
        options["real_kv_hashes"] = words[:, 3].clone()
        options["real_kv_hashes"][draw(st.integers(0, num_slots - 1))] = draw(int64s)
    return VerifyCase(context, plan, options)


@dataclass
class WriteCase:
    context: VerifyOrWriteContext
    plan: WritePlan
    inputs: dict[str, Any]


def _write_inputs(draw: DrawFn, slots: list[int]) -> dict[str, Any]:
    count = len(slots)
    arrays = {"out_cache_loc": slots}
    for name in ("input_ids", "positions"):
        arrays[name] = draw(st.lists(values, min_size=count, max_size=count))
    if draw(st.booleans()):
        # Consecutive positions, so that the chain-position assert also meets what it wants.
        first = draw(st.integers(0, 3))
        arrays["positions"] = list(range(first, first + count))
    dtypes = dict(zip(("input_ids", "positions", "out_cache_loc"), draw(int_dtypes), strict=True))
    inputs: dict[str, Any] = {name: fit(int64_tensor(arrays[name]), dtype) for name, dtype in dtypes.items()}
    checked = draw(st.booleans())
    inputs["enable_write_input_assert"] = checked
    for name, actual in (("expected_input_tokens", "input_ids"), ("expected_input_positions", "positions")):
        inputs[name] = None
        if checked:
            expected = inputs[actual].long()
            for index in draw(st.lists(st.integers(0, max(count - 1, 0)), max_size=3)):
                expected[index : index + 1] = draw(values)
            inputs[name] = fit(expected, dtypes[actual])
    return inputs


@st.composite
def write_cases(draw: DrawFn) -> WriteCase:
    """Requests that own their slots, as the contract asks: repeated, skipped and out-of-range slots, any seed."""
    num_slots, num_reqs = draw(st.integers(1, 8)), draw(st.integers(0, 4))
    context = draw(contexts(num_slots))
    owners = draw(st.lists(st.integers(0, num_reqs), min_size=num_slots, max_size=num_slots))
    outside = (
        st.integers(-3, -1)
        | st.integers(num_slots, num_slots + 2)
        | st.sampled_from(EXTREMES).filter(lambda slot: not 0 <= slot < num_slots)
    )
    flat, offsets, seeds = draw(st.lists(st.integers(0, num_slots - 1), max_size=2)), [], []
    offsets.append(len(flat))
    for request in range(num_reqs):
        own = [slot for slot, owner in enumerate(owners) if owner == request]
        free = [slot for slot, owner in enumerate(owners) if owner == num_reqs]
        slot = st.sampled_from(own) | st.sampled_from(own) | outside if own else outside
        seed = st.sampled_from(own + free) | outside if own + free else outside
        flat += draw(st.lists(slot, max_size=9))
        offsets.append(len(flat))
        seeds.append(draw(seed))
    spare = draw(st.integers(0 if num_reqs else 1, 2))
    flat += draw(st.lists(st.integers(0, num_slots - 1), max_size=2))
    counts = st.just(num_reqs) | st.sampled_from([-1, -(2**31), 0, max(num_reqs - 1, 0)])
    if not spare:
        counts |= st.sampled_from([num_reqs + 1, 2**31 - 1])
    plan = WritePlan(
        write_offsets=int64_tensor(offsets + draw(st.lists(int64s, min_size=spare, max_size=spare))),
        write_seed_slot_indices=int64_tensor(seeds + draw(st.lists(int64s, min_size=spare, max_size=spare))),
        write_num_valid_reqs=int32_cell(draw(counts)),
    )
    return WriteCase(context, plan, _write_inputs(draw, flat))


@st.composite
def write_cases_with_garbage_offsets(draw: DrawFn) -> WriteCase:
    """Offsets that are negative, decreasing or past the arrays, as long as no flat entry is in two ranges."""
    num_slots = draw(st.integers(1, 8))
    context = draw(contexts(num_slots))
    order = draw(st.permutations(range(num_slots)))
    count = draw(st.integers(0, num_slots))
    slots, free = list(order[:count]), list(order[count:])
    num_reqs = draw(st.integers(1, 4))
    offsets = [draw(st.integers(-2, count + 2) | int64s)]
    taken: set[int] = set()
    for _ in range(num_reqs):
        end = draw(st.integers(-2, count + 2) | int64s)
        covered = set(range(max(offsets[-1], 0), min(end, count)))
        if covered & taken:
            end = offsets[-1]
        else:
            taken |= covered
        offsets.append(end)
    seeds = st.sampled_from([-1, num_slots, -(2**63), 2**63 - 1, *free])
    plan = WritePlan(
        write_offsets=int64_tensor(offsets),
        write_seed_slot_indices=int64_tensor(draw(st.lists(seeds, min_size=num_reqs, max_size=num_reqs))),
        write_num_valid_reqs=int32_cell(num_reqs),
    )
    return WriteCase(context, plan, _write_inputs(draw, slots))
