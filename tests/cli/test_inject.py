"""``canary-check inject``: a broken dump, its label, and a sound dump that stays sound."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from canary_cli import exit_codes, main

from canary_numba.fault_names import FAULT_NAMES

DUMPS = Path(__file__).parents[2] / "examples" / "dumps"
CLEAN = DUMPS / "clean.pt"
FITTING = ("slot_owned_twice", "table_points_elsewhere", "kv_bytes_changed", "slots_never_written", "double_free")


def inject(capsys: pytest.CaptureFixture[str], fault: str, target: Path, *options: str) -> dict[str, Any]:
    code = main.run(["inject", str(CLEAN), "--fault", fault, "-o", str(target), *options])
    captured = capsys.readouterr()
    assert code == exit_codes.CLEAN, captured.err
    label: dict[str, Any] = json.loads(captured.out)
    return label


def findings(capsys: pytest.CaptureFixture[str], *paths: Path) -> dict[str, Any]:
    main.run(["check", *map(str, paths), "--engine", "cpu", "--format", "json"])
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return report


@pytest.mark.parametrize("fault", FITTING)
def test_what_was_injected_is_what_check_finds(fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = CLEAN.read_bytes()
    target = tmp_path / "broken.safetensors"
    label = inject(capsys, fault, target, "--seed", "3")
    (report,) = findings(capsys, target)["dumps"]
    found = [(finding["fault"], sorted(finding["slots"])) for finding in report["findings"]]
    assert (fault, sorted(label["slots"])) in found
    assert label["severity"] in {"corrupt", "latent"}
    assert CLEAN.read_bytes() == before


def test_another_seed_strikes_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seeds = ("1", "2", "1")
    first, other, again = (
        inject(capsys, "kv_bytes_changed", tmp_path / f"{i}.pt", "--seed", seed) for i, seed in enumerate(seeds)
    )
    assert again == first != other


def test_ranks_that_disagree_are_two_dumps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    label = inject(capsys, "ranks_disagree", tmp_path / "pair.pt")
    report = findings(capsys, tmp_path / "pair.rank0.pt", tmp_path / "pair.pt")
    (finding,) = report["findings"]
    assert finding["fault"] == "ranks_disagree"
    assert finding["positions"] == label["positions"]


def test_an_output_that_exists_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "broken.pt"
    target.write_bytes(b"mine")
    arguments = ["inject", str(CLEAN), "--fault", "double_free", "-o", str(target)]
    assert main.run(arguments) == exit_codes.USAGE
    assert "--force replaces it" in capsys.readouterr().err
    assert target.read_bytes() == b"mine"
    assert main.run([*arguments, "--force"]) == exit_codes.CLEAN
    assert target.read_bytes() != b"mine"


def test_a_dump_without_a_place_for_the_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "broken.pt"
    code = main.run(["inject", str(CLEAN), "--fault", "swa_slot_evicted_in_window", "-o", str(target)])
    assert code == exit_codes.USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "no sliding-window pool" in captured.err
    assert not target.exists()


def test_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = str(tmp_path / "broken.pt")
    assert main.run(["inject", str(CLEAN), "--fault", "gremlins", "-o", target]) == exit_codes.USAGE
    said = capsys.readouterr().err
    assert all(name in said for name in FAULT_NAMES)
    assert main.run(["inject", str(CLEAN), "--fault", "double_free"]) == exit_codes.USAGE
    assert "--output" in capsys.readouterr().err
    assert main.run(["inject", str(tmp_path / "none.pt"), "--fault", "double_free", "-o", target]) == exit_codes.USAGE
    assert "none.pt" in capsys.readouterr().err
