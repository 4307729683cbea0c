"""Redaction: the same diagnosis without the content."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from canary_numba.check import check_dump
from canary_numba.diagnosis import diagnose
from canary_numba.dump import Dump, load_dump
from canary_numba.layout import CANARY_CHAIN_ANCHOR
from canary_numba.mixing import splitmix64
from canary_numba.redact import redact_dump
from canary_numba.redact.secret import Secret
from canary_numba.report import build_dump_report

NAMES = [
    "canary_prev_hash_flip",
    "canary_token_flip",
    "clean",
    "clean_hash_none_fp8",
    "clean_partial_no_tokens",
    "clean_swa",
    "double_allocation",
    "freed_while_in_use",
    "kv_bit_flip",
    "kv_nan_region",
    "kv_row_overwritten",
    "kv_written_late",
    "many_violations",
    "orphan_in_radix",
    "page_lost_in_transfer",
    "pages_exchanged",
    "position_off_by_one",
    "swa_evicted_in_window",
    "swa_mapping_stale",
    "table_entry_out_of_range",
    "table_entry_swapped",
    "table_row_stale",
    "tp_pair_rank0",
    "two_faults",
    "wrong_prefix_reused",
    "wrong_tokens_written",
]


def seen(dump: Dump) -> tuple[Any, ...]:
    result = check_dump(dump, engine="cpu")
    report = build_dump_report(dump, result, diagnose(dump, result))
    return (
        [(v.tag, v.slot, v.position, v.reasons, v.request, v.table_position) for v in report.violations],
        [(f.fault, f.severity, f.confidence, f.requests, f.positions, f.slots) for f in report.findings],
        report.live.reproduced,
        report.skipped,
    )


def hashes(dump: Dump) -> set[int]:
    buffers = [buf for group in dump.groups for half in group.halves.values() for buf in half.buffers.values()]
    found = {int(word) for buf in buffers for word in buf.numpy().view(np.int64)[:, 2:4].ravel()}
    if dump.violation_log is not None:
        found |= set(dump.violation_log.ring[:, 5:7].ravel().tolist())
    head = splitmix64(CANARY_CHAIN_ANCHOR)
    return found - {0, head, head - (1 << 64)} - set(range(-1, 1 << 16))


@pytest.mark.parametrize("keep_kv", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_it_checks_and_diagnoses_the_same(name: str, keep_kv: bool, shared: Path) -> None:
    dump = load_dump(shared / "dumps" / f"{name}.pt")
    assert seen(redact_dump(dump, b"some secret", keep_kv=keep_kv)) == seen(dump)


@pytest.mark.parametrize("name", NAMES)
def test_no_hash_and_no_byte_is_left(name: str, shared: Path) -> None:
    dump = load_dump(shared / "dumps" / f"{name}.pt")
    hidden = redact_dump(dump, b"some secret")
    assert not hashes(hidden) & hashes(dump)
    for group, other in zip(dump.groups, hidden.groups, strict=True):
        for half, again in zip(group.halves.values(), other.halves.values(), strict=True):
            for source, new in zip(half.sources, again.sources, strict=True):
                assert new.num_bytes_per_token == new.read_bytes == 8 < source.num_bytes_per_token


def test_tokens_are_hidden_and_stay_equal(shared: Path) -> None:
    dump = load_dump(shared / "dumps" / "clean.pt")
    hidden = redact_dump(dump, b"some secret")
    assert dump.requests is not None
    assert dump.requests.expected_tokens is not None
    assert hidden.requests is not None
    assert hidden.requests.expected_tokens is not None
    rows, lengths = dump.requests.req_pool_indices.tolist(), dump.requests.prefix_lens.tolist()
    pairs = [
        (old, new)
        for row, length in zip(rows, lengths, strict=True)
        for old, new in zip(
            dump.requests.expected_tokens[row, :length].tolist(),
            hidden.requests.expected_tokens[row, :length].tolist(),
            strict=True,
        )
    ]
    assert len({old for old, _ in pairs}) == len({new for _, new in pairs}) == len(set(pairs))
    assert sum(old == new for old, new in pairs) <= 1


def test_names_and_context(shared: Path) -> None:
    dump = load_dump(shared / "dumps" / "clean.pt")
    dump = replace(dump, context={**dump.context, "host": "node-17"})
    assert dump.requests is not None
    plain, hidden = redact_dump(dump, b"k"), redact_dump(dump, b"k", hide_names=True, keep_context=True)
    assert plain.requests is not None
    assert hidden.requests is not None
    assert plain.requests.rids == dump.requests.rids
    assert not set(hidden.requests.rids) & set(dump.requests.rids)
    assert len(set(hidden.requests.rids)) == len(set(dump.requests.rids))
    assert "host" not in plain.context
    assert "model" not in plain.context
    assert plain.context["step"] == dump.context["step"]
    assert hidden.context == dump.context


def test_one_key_gives_one_result(shared: Path) -> None:
    dump = load_dump(shared / "dumps" / "clean.pt")
    first, again, other = (redact_dump(dump, key) for key in (b"one", b"one", b"two"))
    tails = [one.groups[0].halves["K"].tail for one in (first, again, other)]
    assert all(tail is not None for tail in tails)
    assert (tails[0] == tails[1]).all()  # type: ignore[union-attr]
    assert not (tails[0] == tails[2]).all()  # type: ignore[union-attr]


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 2**31 - 1), unique=True, max_size=30))
def test_tokens_are_permuted(tokens: list[int]) -> None:
    hidden = Secret(b"k").tokens(np.array(tokens, dtype=np.int64)).tolist()
    for old, new in zip(tokens, hidden, strict=True):
        assert old >> 31 == new >> 31
        assert old == -1 or (old & 0x7FFFFFFF < 1 << 24) == (new & 0x7FFFFFFF < 1 << 24)
    kept = [new for old, new in zip(tokens, hidden, strict=True) if old != -1]
    assert len(set(kept)) == len(kept)
