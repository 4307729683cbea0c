"""Ranks of one step compared: what must agree, who deviates, who is missing; and that lawful differences pass."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from canary_numba.diagnosis.ranks import compare_ranks, group_ranks
from canary_numba.dump import Dump, load_dump
from canary_numba.dump.model import Requests
from canary_numba.layout import CANARY_FIELD_POSITION, CANARY_FIELD_REAL_KV_HASH, CANARY_FIELD_TOKEN

CLEAN = Path(__file__).parents[2] / "examples" / "dumps" / "clean.pt"


def rank(number: int, size: int = 2, dump: Dump | None = None, **context: Any) -> Dump:
    dump = dump or load_dump(CLEAN)
    facts = {"step": 14, "tp_rank": number, "tp_size": size, **context}
    return replace(dump, context=dict(dump.context) | facts, path=f"rank{number}.pt")


def requests_of(dump: Dump) -> Requests:
    assert dump.requests is not None
    return dump.requests


def slot_at(dump: Dump, rid: str, position: int) -> int:
    requests = requests_of(dump)
    row = requests.req_pool_indices[requests.rids.index(rid)]
    return int(requests.req_to_token[row, position])


def with_field(dump: Dump, slot: int, field: int, value: int) -> Dump:
    group = dump.groups[0]
    tail = group.halves["K"].tail
    assert tail is not None
    tail = tail.clone()
    tail.view(torch.int64)[slot, field] = value
    halves = dict(group.halves) | {"K": replace(group.halves["K"], tail=tail)}
    return replace(dump, groups=(replace(group, halves=halves),))


def test_the_real_pair(shared: Path) -> None:
    truth = json.loads((shared / "dumps" / "truth.json").read_text())["tp_pair_rank1.pt"]
    pair = [load_dump(shared / "dumps" / f"tp_pair_rank{number}.pt") for number in (0, 1)]
    for dumps in (pair, pair[::-1]):
        (finding,) = compare_ranks(dumps)
        assert finding.fault == truth["fault"] == "ranks_disagree"
        assert list(finding.requests) == truth["requests"]
        assert {name: list(places) for name, places in finding.positions.items()} == truth["positions"]
        assert (finding.severity, finding.confidence) == ("corrupt", "certain")
        assert finding.details["first_position"] == 50
        assert finding.details["deviating_ranks"] == finding.details["missing_ranks"] == []
    assert compare_ranks(pair[:1]) == ()


def test_ranks_that_agree() -> None:
    one, other = rank(0), rank(1)
    # Each rank has its own heads, so its own K/V hashes.
    other = with_field(other, slot_at(other, "doc-1", 5), CANARY_FIELD_REAL_KV_HASH, 7)
    assert compare_ranks([one, other]) == ()
    (ranks,) = group_ranks([other, one])
    assert (list(ranks.dumps), ranks.missing) == ([0, 1], ())


@pytest.mark.parametrize("field", [CANARY_FIELD_TOKEN, CANARY_FIELD_POSITION])
@pytest.mark.parametrize("odd", [0, 1, 2])
def test_the_majority_tells_who_deviates(odd: int, field: int) -> None:
    dumps = [rank(number, 4) for number in range(3)]
    dumps[odd] = with_field(dumps[odd], slot_at(dumps[odd], "doc-1", 60), field, 10**6)
    (finding,) = compare_ranks(dumps)
    assert finding.positions == {"doc-1": (60,)}
    assert finding.details["deviating_ranks"] == [odd]
    assert finding.details["missing_ranks"] == [3]
    assert f"rank {odd} differs from the others" in finding.summary
    assert "step 14: no dump of rank 3 of 4, so not compared with the others" in finding.evidence


def test_two_against_two_is_no_majority() -> None:
    dumps = [rank(number, 4) for number in range(4)]
    for number in (1, 3):
        dumps[number] = with_field(dumps[number], slot_at(dumps[number], "doc-1", 60), CANARY_FIELD_TOKEN, 10**6)
    (finding,) = compare_ranks(dumps)
    assert finding.details["deviating_ranks"] == []


def test_tables_that_differ() -> None:
    other = rank(1)
    requests = requests_of(other)
    table = requests.req_to_token.clone()
    row = int(requests.req_pool_indices[requests.rids.index("code-4")])
    table[row, 3] = table[row, 4]
    (finding,) = compare_ranks([rank(0), replace(other, requests=replace(requests, req_to_token=table))])
    assert finding.requests == ("code-4",)
    assert finding.positions == {"code-4": (3,)}
    assert finding.details["differing"]["slots"] == {"positions": 1, "first": 3}


@pytest.mark.parametrize("key", ["prefix_lens", "extend_seq_lens"])
def test_lengths_that_differ(key: str) -> None:
    other = rank(1)
    requests = requests_of(other)
    lengths = getattr(requests, key).clone()
    lengths[0] += 2
    (finding,) = compare_ranks([rank(0), replace(other, requests=replace(requests, **{key: lengths}))])
    end = int(requests.prefix_lens[0])
    assert finding.positions == {"chat-0": (end, end + 1)}


def test_expected_tokens_that_differ() -> None:
    other = rank(1)
    requests = requests_of(other)
    assert requests.expected_tokens is not None
    tokens = requests.expected_tokens.clone()
    tokens[requests.req_pool_indices[1], 8] += 1
    (finding,) = compare_ranks([rank(0), replace(other, requests=replace(requests, expected_tokens=tokens))])
    assert finding.positions == {"doc-1": (8,)}
    assert list(finding.details["differing"]) == ["expected tokens"]


def test_expected_tokens_of_a_draft_pool_count_by_cached_position() -> None:
    def draft(dump: Dump) -> Dump:
        return replace(dump, groups=(replace(dump.groups[0], kv_token_id_vs_position_offset=1),))

    other = rank(1)
    requests = requests_of(other)
    assert requests.expected_tokens is not None
    tokens = requests.expected_tokens.clone()
    tokens[requests.req_pool_indices[1], 8] += 1
    (finding,) = compare_ranks(
        [draft(rank(0)), draft(replace(other, requests=replace(requests, expected_tokens=tokens)))]
    )
    assert finding.positions == {"doc-1": (7,)}


def test_a_request_that_one_rank_does_not_have() -> None:
    other = rank(1)
    requests = requests_of(other)
    renamed = replace(requests, rids=("stranger", *requests.rids[1:]))
    findings = compare_ranks([rank(0), replace(other, requests=renamed)])
    assert [(finding.requests, finding.details["absent_ranks"]) for finding in findings] == [
        (("chat-0",), [1]),
        (("stranger",), [0]),
    ]
    assert findings[0].summary == "In step 14, chat-0 is live on rank 0 but not on rank 1."
    assert [finding.positions for finding in findings] == [{}, {}]
    (without,) = {f.requests for f in compare_ranks([rank(0), replace(other, requests=None)])} & {("doc-1",)}
    assert without == ("doc-1",)


@pytest.mark.parametrize(
    "context",
    [
        {"step": 15},
        {"tp_size": 3},
        {"tp_rank": 0},
        {"tp_rank": 2},
        {"tp_rank": -1},
        {"tp_rank": "1"},
        {"tp_rank": True},
        {"tp_rank": None},
        {"pp_rank": 1},
        {"dp_rank": 1},
        {"model": "another"},
    ],
)
def test_dumps_that_are_not_ranks_of_one_step(context: dict[str, Any]) -> None:
    other = with_field(load_dump(CLEAN), 5, CANARY_FIELD_TOKEN, 1)
    other = with_field(other, slot_at(other, "doc-1", 5), CANARY_FIELD_TOKEN, 10**6)
    assert len(compare_ranks([rank(0), rank(1, dump=other)])) == 1
    assert compare_ranks([rank(0), rank(1, dump=replace(other, context={**other.context, **context}), **context)]) == ()


def test_the_window_pool(shared: Path) -> None:
    clean = load_dump(shared / "dumps" / "clean_swa.pt")
    assert compare_ranks([rank(0, dump=clean), rank(1, dump=clean)]) == ()
    full, window = clean.groups
    assert window.full_to_swa_index_mapping is not None
    requests = requests_of(clean)
    length = int(requests.prefix_lens[0])
    for position, found in ((length - 1, {"chat-0": (length - 1,)}), (0, None)):
        mapping = window.full_to_swa_index_mapping.clone()
        mapping[slot_at(clean, "chat-0", position)] = 1000
        other = replace(clean, groups=(full, replace(window, full_to_swa_index_mapping=mapping)))
        findings = compare_ranks([rank(0, dump=clean), rank(1, dump=other)])
        assert [finding.positions for finding in findings] == ([] if found is None else [found])


def test_missing_ranks_of_an_absurd_size() -> None:
    (ranks,) = group_ranks([rank(3, 10**9)])
    assert len(ranks.missing) == 4095
    assert 3 not in ranks.missing
