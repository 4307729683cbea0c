"""Checking a dump: chunks, rings, any number of sources, what is skipped and why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from canary_numba import check, check_buffer, kv_hashes
from canary_numba.check import check_dump
from canary_numba.dump import Dump, load_dump
from canary_numba.errors import ArgumentError, DumpError, EngineUnavailableError
from canary_numba.layout import SLOT_OUT_OF_RANGE
from canary_numba.violation_list import ViolationList
from canary_numba.violations import decode_row

DUMPS = Path(__file__).parents[2] / "examples" / "dumps"


@pytest.fixture
def clean() -> Dump:
    return load_dump(DUMPS / "clean.pt")


@pytest.fixture
def corrupt() -> Dump:
    return load_dump(DUMPS / "double_allocation.pt")


def with_half(dump: Dump, name: str, **changes: object) -> Dump:
    group = dump.groups[0]
    halves = dict(group.halves) | {name: replace(group.halves[name], **changes)}  # type: ignore[arg-type]
    return replace(dump, groups=(replace(group, halves=halves),))


def reasons(dump: Dump) -> dict[str, str]:
    return {skip.what: skip.reason for skip in check_dump(dump, engine="cpu").skipped}


class Watcher:
    """Notes what it is told of the progress."""

    def __init__(self) -> None:
        self.totals: list[int] = []
        self.done: list[int] = []

    def stage(self, name: str, total_bytes: int) -> None:
        self.totals.append(total_bytes)

    def advance(self, done_bytes: int) -> None:
        self.done.append(done_bytes)


def test_chunks_smaller_than_the_pool_change_nothing(
    corrupt: Dump, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ViolationList(corrupt, check_dump(corrupt, engine="reference"))
    monkeypatch.setattr(kv_hashes, "PIECE_BYTES", 1000)
    watcher = Watcher()
    assert ViolationList(corrupt, check_dump(corrupt, engine=engine, observer=watcher)) == whole
    assert len(whole) == 12
    assert len(watcher.done) > 10
    assert max(watcher.done) <= 1000
    assert sum(watcher.done) == sum(watcher.totals)


def test_a_chunk_smaller_than_a_slot_still_gets_on(corrupt: Dump, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ViolationList(corrupt, check_dump(corrupt, engine="cpu"))
    monkeypatch.setattr(kv_hashes, "PIECE_BYTES", 1)
    assert ViolationList(corrupt, check_dump(corrupt, engine="cpu")) == whole


@pytest.mark.parametrize("ring_rows", [0, 1, 11])
def test_a_ring_that_overflows_is_filled_again(
    corrupt: Dump, engine: str, ring_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    launches = []
    verify = check_buffer.launch_canary_verify_kernel

    def counted(**arguments: Any) -> None:
        launches.append(arguments["context"].violation_ring.shape[0])
        verify(**arguments)

    whole = ViolationList(corrupt, check_dump(corrupt, engine="reference"))
    monkeypatch.setattr(check_buffer, "launch_canary_verify_kernel", counted)
    monkeypatch.setattr(check_buffer, "RING_ROWS", ring_rows)
    result = check_dump(corrupt, engine=engine)
    assert ViolationList(corrupt, result) == whole
    assert len(launches) == (12 if ring_rows < 2 else 6)
    # The second launch must not count a failing entry twice.
    assert sum(found.reasons.get("verify_chain_hash", 0) for found in result.checks) == len(whole)


def test_a_prefix_longer_than_the_table(clean: Dump, engine: str) -> None:
    assert clean.requests is not None
    width = clean.requests.req_to_token.shape[1]
    lengths = clean.requests.prefix_lens.clone()
    lengths[0] = width + 1000
    dump = replace(clean, requests=replace(clean.requests, prefix_lens=lengths))
    result = check_dump(dump, engine=engine)
    heads = next(found for found in result.checks if found.tag.name == "HEAD_K_FULL")
    assert heads.num_entries == width + 1 + int(lengths[1:].sum())
    last = [v for v in ViolationList(dump, result) if v.tag == "HEAD_K_FULL"][-1]
    assert (last.slot, last.request, last.table_position) == (SLOT_OUT_OF_RANGE, "chat-0", width)
    assert last.reasons == ["verify_slot_out_of_range"]


def test_a_request_whose_row_is_not_in_the_table(clean: Dump, engine: str) -> None:
    assert clean.requests is not None
    indices = clean.requests.req_pool_indices.clone()
    indices[1] = 10**9
    dump = replace(clean, requests=replace(clean.requests, req_pool_indices=indices))
    rows = [v for v in ViolationList(dump, check_dump(dump, engine=engine)) if v.tag == "TAIL_V_FULL"]
    assert [(v.slot, v.request) for v in rows] == [(SLOT_OUT_OF_RANGE, "doc-1")] * 103
    assert sorted(v.table_position or 0 for v in rows) == list(range(103))
    assert {v.fail_reason_bits for v in rows} == {64, 64 | 128}


def test_a_dump_without_requests_in_it(clean: Dump, engine: str) -> None:
    assert clean.requests is not None
    none = torch.zeros(0, dtype=torch.int64)
    requests = replace(
        clean.requests,
        rids=(),
        req_pool_indices=none,
        prefix_lens=none,
        extend_seq_lens=none,
        expected_tokens=None,
        expected_tokens_valid_lens=None,
        committed_lens=None,
        allocated_lens=None,
        extra_keys=None,
        kv_indices=None,
    )
    result = check_dump(replace(clean, requests=requests), engine=engine)
    assert {found.tag.stage: found.num_entries for found in result.checks} == {"HEAD": 0, "TAIL": 0, "SWEEP": 263}
    assert result.num_violations == 0


def test_tokens_are_compared_only_where_the_dump_has_them(corrupt: Dump) -> None:
    assert corrupt.requests is not None
    without = replace(
        corrupt, requests=replace(corrupt.requests, expected_tokens=None, expected_tokens_valid_lens=None)
    )
    for dump, count in ((corrupt, 4), (without, 0)):
        result = check_dump(dump, engine="cpu")
        assert sum(found.reasons.get("verify_token", 0) for found in result.checks) == count
        sweeps = [found for found in result.checks if found.tag.stage == "SWEEP"]
        assert all("verify_token" not in found.reasons for found in sweeps)


def test_an_engine_that_disagrees_with_the_reference_is_found_out(
    corrupt: Dump, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify = check_buffer.launch_canary_verify_kernel

    def wrong(**arguments: Any) -> None:
        verify(**arguments)
        arguments["context"].violation_ring[0, 3] += 1

    monkeypatch.setattr(check_buffer, "launch_canary_verify_kernel", wrong)
    with pytest.raises(RuntimeError, match="HEAD_K_FULL: the engine's violation rows differ"):
        check_dump(corrupt, engine="cpu")


def test_auto_says_why_it_does_not_take_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    choice = check.choose_engine("auto")
    assert choice.name == "cpu"
    assert choice.note
    assert check.choose_engine("cpu").note is None
    with pytest.raises(EngineUnavailableError, match=r"engine cuda: .*Use --engine cpu"):
        check.choose_engine("cuda")


def test_what_is_missing_is_skipped_with_its_reason(clean: Dump) -> None:
    def of(half: str, **by_stage: str) -> dict[str, str]:
        return {f"{stage}_{half}_FULL": reason for stage, reason in by_stage.items()}

    no_requests, no_radix = "the dump has no requests", "the dump has no prefix cache (radix)"
    no_head, no_tail = "the dump has no head records of this half", "the dump has no tail records of this half"
    assert reasons(clean) == {}
    without = {"HEAD": no_requests, "TAIL": no_requests}
    assert reasons(replace(clean, requests=None)) == of("K", **without) | of("V", **without)
    assert reasons(replace(clean, radix=None)) == of("K", SWEEP=no_radix) | of("V", SWEEP=no_radix)
    assert reasons(with_half(clean, "V", tail=None)) == of("V", TAIL=no_tail, SWEEP=no_tail)
    assert reasons(with_half(clean, "V", head=None)) == of("V", HEAD=no_head)


def test_bytes_that_were_left_out_are_no_violations(corrupt: Dump, engine: str) -> None:
    whole = check_dump(corrupt, engine=engine)
    result = check_dump(with_half(corrupt, "V", sources=()), engine=engine)
    assert [found.rows.tolist() for found in result.checks] == [found.rows.tolist() for found in whole.checks]
    (skip,) = result.skipped
    assert (skip.what, skip.reason) == ("K/V bytes of TAIL_V_FULL", "the dump has no K/V bytes (sources) of this half")
    assert result.bytes_checked < whole.bytes_checked


def test_what_is_left_is_checked(corrupt: Dump) -> None:
    for dump, stages in (
        (replace(corrupt, requests=None), ["SWEEP"]),
        (replace(corrupt, radix=None), ["HEAD", "TAIL"]),
        (replace(corrupt, radix=None, requests=None), []),
    ):
        result = check_dump(dump, engine="cpu")
        assert sorted({found.tag.stage for found in result.checks}) == stages
        assert result.num_violations == 4 * len(stages)


def test_a_half_that_was_not_in_use(clean: Dump) -> None:
    zeros = torch.zeros_like(clean.groups[0].halves["V"].tail)  # type: ignore[arg-type]
    dump = with_half(clean, "V", head=zeros, tail=zeros)
    assert set(reasons(dump)) == {"HEAD_V_FULL", "TAIL_V_FULL", "SWEEP_V_FULL"}
    assert "half K has records" in reasons(dump)["TAIL_V_FULL"]
    assert check_dump(dump, engine="cpu").num_violations == 0


def test_never_written_records(clean: Dump) -> None:
    assert clean.requests is not None
    slot = int(clean.requests.req_to_token[clean.requests.req_pool_indices[0], 20])
    tail = clean.groups[0].halves["K"].tail.clone()  # type: ignore[union-attr]
    tail[slot] = 0
    dump = with_half(clean, "K", tail=tail)
    plain, okay = (check_dump(dump, engine="cpu", zero_init_okay=flag) for flag in (False, True))
    assert sum(c.never_written for c in plain.checks) == 0
    assert sum(c.never_written for c in okay.checks) > 0
    assert okay.num_violations < plain.num_violations


def test_more_tokens_than_a_plan_can_count(clean: Dump, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("canary_numba.check_plans.MAX_ENTRIES", 100)
    with pytest.raises(DumpError, match=r"requests\.prefix_lens: expected at most 100"):
        check_dump(clean, engine="cpu")


def test_unknown_engine(clean: Dump) -> None:
    with pytest.raises(ArgumentError, match="engine: expected one of"):
        check_dump(clean, engine="tpu")


def test_rows_of_an_unknown_tag_keep_their_number() -> None:
    row = decode_row([99, 1, 2, 3, 4, -1, 0, 33])
    assert (row.tag, row.stored_chain_hash, row.reasons) == (
        "UNKNOWN_99",
        2**64 - 1,
        ["verify_chain_hash", "verify_token"],
    )
