"""Folders, patterns and ranks: one report a dump, one summary, and what no single dump shows."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from canary_cli import exit_codes, main
from canary_cli.render import table

from canary_numba.findings import LATENT, Finding
from canary_numba.report import Report

DUMPS = Path(__file__).parents[2] / "examples" / "dumps"
CLEAN = DUMPS / "clean.pt"
CORRUPT = DUMPS / "double_allocation.pt"


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main.run([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """Dumps of both kinds beside other files and a folder."""
    folder = tmp_path / "run"
    (folder / "inner.pt").mkdir(parents=True)
    shutil.copy(CORRUPT, folder / "inner.pt" / "x.pt")
    shutil.copy(CLEAN, folder / "b.pt")
    (folder / "notes.txt").write_text("no dump")
    assert main.run(["convert", str(CORRUPT), str(folder / "a.safetensors")]) == exit_codes.CLEAN
    capsys.readouterr()
    return folder


def test_a_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, folder, "-q")
    assert (code, err) == (exit_codes.CORRUPT, "")
    assert out == f"CORRUPT {folder / 'a.safetensors'}\nCLEAN {folder / 'b.pt'}\n"
    _, out, err = run(capsys, folder)
    assert len(err.splitlines()) == 1
    assert err.startswith("canary-check: 2 dumps checked, 1 corrupt, 12 violations;")
    assert out.index("a.safetensors") < out.index("b.pt")


def test_patterns(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, folder / "?.pt", "-q") == (exit_codes.CLEAN, f"CLEAN {folder / 'b.pt'}\n", "")
    assert run(capsys, folder / "[ab].*", "-q")[1].splitlines() == [
        f"CORRUPT {folder / 'a.safetensors'}",
        f"CLEAN {folder / 'b.pt'}",
    ]


def test_a_name_that_looks_like_a_pattern(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "dump[1]*.pt"
    shutil.copy(CLEAN, path)
    assert run(capsys, path, "-q") == (exit_codes.CLEAN, f"CLEAN {path}\n", "")


def test_what_stands_for_no_dump_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "notes.txt").touch()
    code, out, err = run(capsys, empty, CLEAN, tmp_path / "*.pt", "-q")
    assert (code, out) == (exit_codes.USAGE, f"CLEAN {CLEAN}\n")
    assert err.splitlines() == [
        f"canary-check: error: {empty}: a directory without dumps (*.pt, *.safetensors)",
        f"canary-check: error: {tmp_path / '*.pt'}: nothing fits this pattern",
    ]
    code, _, err = run(capsys, empty, CLEAN)
    assert "1 dump checked, 0 corrupt, 0 violations, 1 unreadable;" in err


def ranks(folder: Path, size: int, odd: int | None = None) -> None:
    for number in range(size):
        dump = torch.load(CLEAN, weights_only=True)
        dump["context"] |= {"tp_rank": number, "tp_size": size}
        if number == odd:
            row = dump["requests"]["req_pool_indices"][1]
            dump["requests"]["expected_tokens"][row, 102:110] += 1
            dump["requests"]["expected_tokens_valid_lens"][1] = 102
        torch.save(dump, folder / f"rank{number}.pt")


def test_ranks_that_disagree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ranks(tmp_path, 3, odd=1)
    code, out, err = run(capsys, tmp_path)
    assert code == exit_codes.CORRUPT
    assert out.count("✓ CLEAN") == 3
    assert "✗ CORRUPT  across dumps: ranks_disagree (doc-1), certain" in out
    assert "rank 1 differs from the others" in " ".join(out.split())
    assert "0 corrupt, 0 violations, 1 finding across dumps;" in err
    code, out, err = run(capsys, tmp_path, "-q")
    assert (code, err) == (exit_codes.CORRUPT, "")
    assert out.splitlines()[3:] == ["CORRUPT across dumps: ranks_disagree doc-1"]
    code, out, _ = run(capsys, tmp_path, "--format", "json")
    report = json.loads(out)
    assert report["verdict"] == "corrupt"
    assert [dump["verdict"] for dump in report["dumps"]] == ["clean"] * 3
    (finding,) = report["findings"]
    assert (finding["fault"], finding["requests"], finding["details"]["deviating_ranks"]) == (
        "ranks_disagree",
        ["doc-1"],
        [1],
    )


def test_missing_ranks_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ranks(tmp_path, 4)
    code, _, err = run(capsys, tmp_path)
    assert code == exit_codes.CLEAN
    assert "note:" not in err
    (tmp_path / "rank1.pt").unlink()
    (tmp_path / "rank3.pt").unlink()
    code, _, err = run(capsys, tmp_path)
    assert code == exit_codes.CLEAN
    assert err.splitlines()[0] == (
        "canary-check: note: step 14: no dump of ranks 1, 3 of 4, so not compared with the others"
    )


@pytest.mark.parametrize(("strict", "verdict"), [(False, "clean"), (True, "corrupt")])
def test_latent_findings_across_dumps_count_when_strict(strict: bool, verdict: str) -> None:
    finding = Finding(
        fault="ranks_disagree",
        severity=LATENT,
        confidence="possible",
        summary="Something spans.",
        requests=("a",),
        positions={"a": (*range(0, 40, 2), 99, 98, 97)},
    )
    report = Report(tool={}, dumps=(), findings=(finding,), strict=strict)
    assert report.verdict == verdict
    assert Report(tool={}, dumps=(), findings=(), strict=strict).verdict == "clean"
    text = table.render(report, 0, color=False, width=80)
    assert "LATENT  across dumps: ranks_disagree (a), possible" in text
    assert "a: 0, 2, 4, 6, 8, 10, 12, 14 and 13 more runs" in text
    assert max(map(len, text.splitlines())) <= 80
