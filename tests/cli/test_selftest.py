"""``canary-check selftest``: its table, what makes it fail, and the copy of it in the documentation."""

from __future__ import annotations

from pathlib import Path

import pytest
from canary_cli import exit_codes, main
from canary_cli.render import coverage as render

from canary_numba.fault_names import FAULT_NAMES
from canary_numba.faults import coverage
from canary_numba.faults.coverage import COLUMNS, Cell, Coverage

PAGE = Path(__file__).parents[2] / "docs" / "coverage.md"


def cell(named: int = 0, seen: int = 0, missed: int = 0, wrong: int = 0, signature: bool = True) -> Cell:
    return Cell(named=named, seen=seen, missed=missed, wrong=wrong, signature=signature)


def table_of(**changed: Cell) -> Coverage:
    return Coverage(
        seeds=3, cells={fault: dict.fromkeys(COLUMNS, changed.get(fault, cell(3))) for fault in FAULT_NAMES}
    )


def test_the_table_fits_80_columns_and_says_how_each_fault_did() -> None:
    found = table_of(
        double_free=cell(2, 1),
        canary_stale=cell(seen=3),
        padding_write=cell(missed=3),
        row_recycled=cell(missed=3, signature=False),
        kv_bytes_copied=cell(),
    )
    text = render.table(found, color=False, width=80)
    lines = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line}
    assert max(map(len, text.splitlines())) <= 80
    assert lines["fault"] == ["none+", "none", "part+", "part", "all+", "all"]
    assert set(FAULT_NAMES) <= set(lines)
    expected = {
        "slot_owned_twice": "named",
        "double_free": "2/3",
        "canary_stale": "seen",
        "padding_write": "MISS",
        "row_recycled": "blind",
        "kv_bytes_copied": "-",
    }
    assert {fault: set(lines[fault]) for fault in expected} == {fault: {text} for fault, text in expected.items()}
    page = render.markdown(found)
    assert "| `double_free` | 2/3 | 2/3 | 2/3 | 2/3 | 2/3 | 2/3 |" in page.splitlines()


def test_what_counts_as_failure() -> None:
    assert table_of().failures == ()
    assert table_of(row_recycled=cell(missed=1, signature=False)).failures == ()
    assert table_of(row_recycled=cell(seen=3)).failures == ()
    assert len(table_of(double_free=cell(2, missed=1)).failures) == len(COLUMNS)
    (first, *_) = table_of(double_free=cell(3, wrong=2)).failures
    assert first == "double_free (hash mode none, tokens known): 2 wrong findings called certain"


def test_the_exit_code_says_whether_something_was_missed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for found, code in ((table_of(), exit_codes.CLEAN), (table_of(double_free=cell(missed=3)), exit_codes.CORRUPT)):
        monkeypatch.setattr(coverage, "measure", lambda *args, found=found, **more: found)
        assert main.run(["selftest", "--engine", "cpu"]) == code
        captured = capsys.readouterr()
        assert "double_free" in captured.out
        assert ("missed 3 of 3" in captured.err) == (code == exit_codes.CORRUPT)


def test_a_real_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    # Two columns of one fault that a hash must show, and one that only tokens do: the whole table takes a while.
    monkeypatch.setattr(coverage, "FAULT_NAMES", ("kv_bytes_changed", "tokens_differ_from_request"))
    monkeypatch.setattr(coverage, "COLUMNS", (("none", False), ("all", True)))
    target = tmp_path / "coverage.md"
    arguments = ["selftest", "--engine", "cpu", "--seeds", "2", "--format", "markdown", "-o", str(target)]
    assert main.run(arguments) == exit_codes.CLEAN
    rows = [line for line in target.read_text().splitlines() if line.startswith("| `")]
    assert rows == ["| `kv_bytes_changed` | - | named |", "| `tokens_differ_from_request` | blind | named |"]
    assert capsys.readouterr().out == ""
    assert main.run(arguments) == exit_codes.USAGE


def test_the_documentation_holds_the_table() -> None:
    text = PAGE.read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == list(FAULT_NAMES)
    assert "MISS |" not in text
    assert "canary-check selftest --seeds" in text
