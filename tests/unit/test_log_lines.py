"""SGLang's violation lines: written and read back, whatever a log puts around them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canary_numba.layout import CanaryLaunchTag
from canary_numba.log_lines import LogLine, format_line, parse_line, summarize_log
from canary_numba.violations import Violation, decode_row

INT64 = st.integers(-(2**63), 2**63 - 1)
LINE = (
    "kv_canary violation: launch_tag=TAIL_K_FULL fail_reason=verify_chain_hash+verify_position slot_idx=91 "
    "position=17 stored_token=5 expected_token=-1 stored_chain_hash=0x0123456789abcdef expected_aux=0x0000000000000000"
)


def same(line: LogLine, violation: Violation) -> bool:
    names = ("tag", "slot", "position", "stored_token", "expected_token", "stored_chain_hash", "expected_aux")
    return line.reasons == tuple(violation.reasons) and all(
        getattr(line, name) == getattr(violation, name) for name in names
    )


def test_the_line_is_sglangs() -> None:
    row = [int(CanaryLaunchTag.TAIL_K_FULL), 91, 17, 5, -1, 0x0123456789ABCDEF, 0, 3]
    assert format_line(decode_row(row)) == LINE


@given(st.lists(INT64, min_size=5, max_size=5), st.integers(-3, 20), st.integers(0, 255), st.text(max_size=20))
def test_a_line_reads_back_as_the_violation(numbers: list[int], tag: int, bits: int, before: str) -> None:
    slot, position, stored, chain, aux = numbers
    violation = decode_row([tag, slot, position, stored, -1, chain, aux, bits])
    line = parse_line(f"{before} \x1b[31m{format_line(violation)}\x1b[0m after")
    assert line is not None
    assert same(line, violation)


def test_colours_and_prefixes() -> None:
    coloured = LINE.replace("launch_tag", "\x1b[1;31mlaunch_tag\x1b[0m")
    line = parse_line(f"\x1b[2m[2026-01-02 03:04:05 TP1]\x1b[0m {coloured}\r\n", 7)
    assert line is not None
    assert (line.prefix, line.line, line.slot) == ("[2026-01-02 03:04:05 TP1]", 7, 91)


@pytest.mark.parametrize(
    "text",
    [
        "INFO: nothing here",
        LINE[:-40],
        LINE.replace("slot_idx=91 ", ""),
        LINE.replace("position=17", "position=x"),
        LINE + "0",
        "",
    ],
)
def test_what_is_no_whole_line(text: str) -> None:
    assert parse_line(text) is None


def test_summary() -> None:
    other = LINE.replace("TAIL_K_FULL", "HEAD_V_SWA").replace("verify_chain_hash+verify_position", "none")
    lines = ["start", LINE, "noise", LINE.replace("slot_idx=91", "slot_idx=4"), other, LINE[:60], "end"]
    summary = summarize_log(lines, max_violations=1)
    assert (summary.lines, summary.violations, len(summary.shown)) == (7, 3, 1)
    assert summary.unreadable == [6]
    assert summary.first is not None
    assert summary.last is not None
    assert (summary.first.line, summary.last.line) == (2, 5)
    data = summary.to_dict()
    assert data["tags"] == [
        {"tag": "HEAD_V_SWA", "violations": 1, "reasons": {}},
        {"tag": "TAIL_K_FULL", "violations": 2, "reasons": {"verify_chain_hash": 2, "verify_position": 2}},
    ]
    assert {(slot["pool"], slot["slot"]) for slot in data["slots"]} == {("FULL", 91), ("FULL", 4), ("SWA", 91)}
    assert data["first"]["stored_chain_hash"] == "0x0123456789abcdef"
