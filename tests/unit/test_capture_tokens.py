"""What the engine tells KVCanary of its tokens: cached ones against the requests' own, new ones against those meant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from guarded_pool import SLOTS, canary, decode, first_pass, layers_of, table

from canary_numba.capture import arguments
from canary_numba.capture.layers import PagedPool
from canary_numba.capture.pool import KVCanary
from canary_numba.check import check_dump
from canary_numba.errors import ArgumentError, ArgumentTypeError
from canary_numba.layout import FailReason

TOKENS = [[*range(10), 7, 7], [*range(10, 15), 8, 8]]
"""The tokens of rows 1 and 2 after two decode steps."""
HALVES = ["HEAD_K_FULL", "HEAD_V_FULL", "TAIL_K_FULL", "TAIL_V_FULL"]


def told(**more: Any) -> KVCanary:
    """A guard with a table for tokens, whose rows 1 and 2 are prefilled."""
    guard = canary(req_to_expected_tokens=torch.zeros((4, 32), dtype=torch.int32), **more)
    with first_pass(guard, mode="raise"):
        pass
    return guard


def reasons(guard: KVCanary) -> list[tuple[str, int, int, int, list[str]]]:
    return [(v.tag, v.position, v.stored_token, v.expected_token, v.reasons) for v in guard.violations()]


def state(guard: KVCanary) -> list[torch.Tensor]:
    """Everything that a refused call must leave alone."""
    step, log = guard.step, guard.log
    tensors = [value for value in vars(step).values() if isinstance(value, torch.Tensor)]
    tensors += [log.ring, log.write_index, log.kernel_run, log.slot_run, log.passes, log.plans_too_large]
    for group in guard.groups:
        tensors += [stage.records for stage in group.stages.values()]
        tensors += [group.plan.verify_slot_indices, group.plan.verify_expected_tokens, group.write_plan.write_offsets]
    return [tensor.clone() for tensor in tensors]


@pytest.mark.parametrize("engine", ["auto", "reference"])
def test_a_slot_of_another_request_is_seen_though_its_chain_is_sound(engine: str) -> None:
    guard = told(engine=engine)
    with decode(guard, 0, token_ids=TOKENS, mode="raise"):
        pass
    # A wrong prefix hit: row 2 goes on from the slots of row 1, all of one sound chain.
    guard.req_to_token[2, :5] = guard.req_to_token[1, :5]
    guard.req_to_token[2, 5] = guard.req_to_token[1, 5]
    assert guard.verify([1, 2], [11, 6]) == 0
    assert guard.verify([1, 2], [11, 6], token_ids=TOKENS) == 24
    assert reasons(guard) == [
        (tag, position, position, TOKENS[1][position], ["verify_token"]) for tag in HALVES for position in range(6)
    ]


@pytest.mark.parametrize("form", ["lists", "tensors", "a tensor and a list", "int32"])
def test_tokens_may_come_in_any_form(form: str) -> None:
    guard = told()
    wrong = [[*TOKENS[0][:3], 77, *TOKENS[0][4:]], TOKENS[1][:2]]
    forms: dict[str, list[Any]] = {
        "lists": wrong,
        "tensors": [torch.tensor(ids) for ids in wrong],
        "a tensor and a list": [torch.tensor(wrong[0]), wrong[1]],
        "int32": [torch.tensor(ids, dtype=torch.int32) for ids in wrong],
    }
    with decode(guard, 0, token_ids=forms[form]):
        pass
    assert reasons(guard) == [(tag, 3, 3, 77, ["verify_token"]) for tag in HALVES]


def test_only_known_tokens_are_compared_and_only_in_the_pass_they_are_given_for() -> None:
    guard = told()
    wrong = [[999] * 12, [999] * 7]
    with decode(guard, 0, token_ids=[ids[:2] for ids in wrong]):
        pass
    assert {violation.position for violation in guard.violations()} == {0, 1}
    seen = guard.poll()
    with decode(guard, 1):
        pass
    assert guard.poll() == seen


def test_ids_beyond_the_table_and_rows_of_padding_are_left_out() -> None:
    guard = canary(req_to_expected_tokens=torch.full((4, 6), -5, dtype=torch.int32))
    with first_pass(guard, mode="raise"):
        pass
    guard.plan([1, 0], [10, 3], [0, 0], token_ids=[TOKENS[0][:6] + [999] * 4, [999] * 3])
    guard.before_forward([], [], [])
    guard.after_forward()
    assert guard.poll() == 0
    assert guard.step.token_table is not None
    assert guard.step.token_table[1].tolist() == TOKENS[0][:6]
    assert torch.equal(guard.step.token_table[2:], torch.full((2, 6), -5, dtype=torch.int32))


def test_the_engine_may_fill_the_table_itself() -> None:
    tokens = torch.zeros((4, 32), dtype=torch.int32)
    guard = canary(req_to_expected_tokens=tokens)
    with first_pass(guard, mode="raise"):
        pass
    tokens[1, :10], tokens[2, :5] = torch.arange(10), torch.arange(10, 15)
    with decode(guard, 0, token_lens=[10, 5], mode="raise"):
        pass
    tokens[1, 9] = 1000
    with decode(guard, 1, token_lens=torch.tensor([9, 5]), mode="raise"):
        pass
    with decode(guard, 2, token_lens=torch.tensor([10, 5])):
        pass
    assert [violation[1:4] for violation in reasons(guard)] == [(9, 9, 1000)] * 4


@pytest.mark.parametrize("lens", [[-3, 1 << 62], [2**31, -(1 << 63)]])
def test_lengths_may_be_garbage(lens: list[int]) -> None:
    guard = told()
    with decode(guard, 0, token_lens=lens):
        pass
    assert guard.check().passes == 2


def test_a_draft_pool_holds_the_token_of_the_next_position() -> None:
    guard = told(kv_token_id_vs_position_offset=1)
    # Slot p of the pool holds token p; a draft pool's is that of position p + 1.
    shifted = [[999, *ids] for ids in TOKENS]
    with decode(guard, 0, token_ids=shifted, mode="raise"):
        pass
    with decode(guard, 1, token_ids=TOKENS):
        pass
    assert {violation.expected_token - violation.stored_token for violation in guard.violations()} >= {1}


def test_both_pools_of_a_window_are_compared() -> None:
    mapping = torch.arange(SLOTS + 1)
    guard = KVCanary(
        PagedPool(**layers_of("slots", 1)),
        table(),
        window_pool=PagedPool(**layers_of("slots", 5)),
        swa_window_size=4,
        full_to_swa_index_mapping=mapping,
        req_to_expected_tokens=torch.zeros((4, 32), dtype=torch.int32),
    )
    with first_pass(guard, mode="raise"):
        pass
    wrong = [[*TOKENS[0][:1], 99, *TOKENS[0][2:8], 99, 9], TOKENS[1]]
    with decode(guard, 0, token_ids=wrong):
        pass
    by_pool = {kind: {v.position for v in guard.violations() if v.tag.endswith(kind)} for kind in ("FULL", "SWA")}
    assert by_pool == {"FULL": {1, 8}, "SWA": {8}}


def test_a_dump_holds_the_tokens_that_the_guard_was_told_of() -> None:
    guard = told()
    with decode(guard, 0, token_ids=[[*TOKENS[0][:3], 77], []]):
        pass
    dump = guard.snapshot()
    assert dump.requests is not None
    assert dump.requests.expected_tokens is not None
    assert dump.requests.expected_tokens.tolist() == [[-1] * 4, [0, 1, 2, 77], [-1] * 4]
    assert dump.requests.expected_tokens_valid_lens is not None
    assert dump.requests.expected_tokens_valid_lens.tolist() == [4, 0]
    assert check_dump(dump, engine="cpu").num_violations == guard.poll() == 4
    other = guard.snapshot(expected_tokens=TOKENS)
    assert check_dump(other, engine="cpu").num_violations == 0
    with decode(guard, 1):
        pass
    untold = guard.snapshot().requests
    assert untold is not None
    assert untold.expected_tokens is None


def test_new_tokens_that_are_not_those_meant_are_reported_once() -> None:
    guard = told()
    meant: dict[str, Any] = {"expected_input_ids": [7, 9], "expected_positions": [11, 5]}
    with decode(guard, 0, **meant):
        pass
    rows = guard.log.ring[: guard.poll()].tolist()
    tag, record = 0, [(11, 10, 7, 7, 11), (38, 5, 8, 9, 5)]
    expected = [
        [tag, slot, position, token, meant_id, meant_at, bits]
        for (slot, position, token, meant_id, meant_at), bits in zip(
            record, (FailReason.WRITE_POSITION_MISMATCH, FailReason.WRITE_TOKEN_MISMATCH), strict=True
        )
    ]
    # STORED_CHAIN_HASH, column 5, is the chain's.
    assert sorted([*row[:5], *row[6:]] for row in rows) == expected
    with decode(guard, 1, mode="raise"):
        pass


@pytest.mark.parametrize(
    ("meant", "reason"),
    [({"expected_input_ids": [7, 9]}, "write_token"), ({"expected_positions": [10, 6]}, "write_position")],
)
def test_one_of_the_two_may_be_meant_alone(meant: dict[str, Any], reason: str) -> None:
    guard = told()
    with decode(guard, 0, **meant):
        pass
    assert [(v.tag, v.position, v.reasons) for v in guard.violations()] == [("HEAD_K_FULL", 5, [reason])]


def test_tokens_as_meant_are_no_violations_in_pieces_and_with_slots_left_out() -> None:
    guard = told()
    guard.plan([1, 2], [10, 5], [1, 1])
    guard.before_forward(
        [7, 8], [10, 5], [11, -1], expected_input_ids=torch.tensor([7, 99]), expected_positions=torch.tensor([10, 5])
    )
    guard.after_forward()
    assert guard.poll() == 0


Call = Callable[[KVCanary], Any]


def _forward(**given: Any) -> Call:
    def call(guard: KVCanary) -> None:
        with decode(guard, 0, **given):
            raise AssertionError("the pass began")

    return call


def _planned(**given: Any) -> Call:
    def call(guard: KVCanary) -> None:
        guard.before_forward([7, 8], [10, 5], [11, 38], **given)

    return call


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (_forward(token_ids=TOKENS[:1]), "token_ids: expected 2 sequences, one for each request, got 1"),
        (_forward(token_ids=[[1], [[2]]]), r"token_ids\[1\]: expected shape \[n\], got \[1, 1\]"),
        (_forward(token_lens=[1]), "token_lens: expected 2 requests, got 1"),
        (_forward(token_ids=TOKENS, token_lens=[1, 2]), "expected one of them or neither, got both"),
        (_forward(expected_input_ids=[7]), "expected_input_ids: expected 2 tokens, got 1"),
        (_forward(expected_positions=[10, 5, 6]), "expected_positions: expected 2 tokens, got 3"),
        (lambda guard: guard.plan([1, 2], [10], [1, 1]), "prefix_lens: expected 2 requests, got 1"),
        (lambda guard: guard.plan([1, 2], [10, 5], [1], token_ids=TOKENS), "extend_seq_lens: expected 2 requests"),
        (lambda guard: guard.verify(token_ids=TOKENS), "expected both or neither, and both with token_ids"),
        (lambda guard: guard.verify([1], [10], token_ids=TOKENS), "token_ids: expected 1 sequences"),
    ],
)
def test_a_call_with_lengths_that_differ_changes_nothing(call: Call, message: str) -> None:
    guard = told()
    before = state(guard)
    with pytest.raises(ArgumentError, match=message):
        call(guard)
    assert all(map(torch.equal, before, state(guard)))
    with decode(guard, 0, token_ids=TOKENS, mode="raise"):
        pass


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (_planned(expected_input_ids=[7]), "expected_input_ids: expected 2 tokens, got 1"),
        (_planned(expected_input_ids=[7, 8], expected_positions=[1]), "expected_positions: expected 2 tokens, got 1"),
        (lambda guard: guard.before_forward([7, 8], [10, 5], [11]), "out_cache_loc: expected 2 tokens, got 1"),
    ],
)
def test_a_planned_pass_with_lengths_that_differ_can_still_begin(call: Call, message: str) -> None:
    guard = told()
    guard.plan([1, 2], [10, 5], [1, 1])
    before = state(guard)
    with pytest.raises(ArgumentError, match=message):
        call(guard)
    assert all(map(torch.equal, before, state(guard)))
    guard.before_forward([7, 8], [10, 5], [11, 38])
    guard.after_forward()
    assert guard.poll() == 0


def test_tokens_need_a_table_that_fits() -> None:
    with pytest.raises(ArgumentError, match="token_ids, token_lens: need a table"), decode(canary(), 0, token_ids=[]):
        pass
    with pytest.raises(ArgumentError, match="req_to_expected_tokens: expected a row for each of the 4 rows"):
        canary(req_to_expected_tokens=torch.zeros((3, 32), dtype=torch.int32))
    with pytest.raises((ArgumentError, ArgumentTypeError), match=r"req_to_expected_tokens: .*int32"):
        canary(req_to_expected_tokens=torch.zeros((4, 32), dtype=torch.int64))


def test_a_recorded_graph_takes_only_what_it_can_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    guard = told()
    before = state(guard)
    monkeypatch.setattr(arguments, "recording", lambda device: True)
    with pytest.raises(ArgumentError, match="token_ids: not while a CUDA graph is recorded"):
        guard.plan(*[torch.tensor([1, 1])] * 3, token_ids=TOKENS)
    assert all(map(torch.equal, before, state(guard)))
