"""``canary-check show``: one request, one slot, and what is not there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from canary_cli import exit_codes, main

from canary_numba.dump import load_dump

DUMPS = Path(__file__).parents[2] / "examples" / "dumps"
BROKEN = str(DUMPS / "double_allocation.pt")


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main.run(["show", *arguments, "--engine", "cpu", "--format", "json"]) == exit_codes.CLEAN
    data: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert data["schema_version"] == 1
    return data


def test_the_ladder_of_a_damaged_request(capsys: pytest.CaptureFixture[str]) -> None:
    (ladder,) = shown(capsys, BROKEN, "--request", "doc-1")["ladders"]
    rungs = [(rung["state"], rung["first"], rung["last"]) for rung in ladder["rungs"]]
    assert rungs == [("sound", 0, 8), ("root", 9, 9), ("echo", 10, 10), ("sound", 11, 77)]
    root = ladder["rungs"][1]
    assert (root["slots"], root["faults"], root["shared"]) == ([165], ["slot_owned_twice"], 1)
    assert root["reasons"] == ["verify_chain_hash", "verify_position", "verify_token"]
    assert [len(rung["slots"]) for rung in ladder["rungs"]] == [9, 1, 1, 67]


def test_a_slot_with_two_owners(capsys: pytest.CaptureFixture[str]) -> None:
    slot = shown(capsys, BROKEN, "--slot", "165")
    table = [(one["request"], one["position"]) for one in slot["references"] if one["what"] == "table"]
    assert table == [("doc-1", 9), ("late-5", 0)]
    assert slot["writers"] == [{"kind": "live", "request": "late-5", "position": 0}]
    tail = next(record for record in slot["records"] if record["buffer"] == "TAIL_K")
    wrong = {one["position"]: one["wrong"] for one in tail["expectations"] if one["tag"] == "TAIL_K_FULL"}
    assert wrong == {9: ["token", "position", "prev_hash"], 0: []}
    right = next(one for one in tail["expectations"] if not one["wrong"])
    assert right["prev_hash"] == tail["prev_hash"]
    before = [one for one in slot["neighbours"] if one["relation"] == "token before"]
    assert [(one["slot"], one["stored_position"]) for one in before] == [(47, 8)]


def test_a_window_slot_names_its_full_slot(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = shared / "dumps" / "clean_swa.pt"
    mapping = next(group for group in load_dump(path).groups if group.kind == "SWA").full_to_swa_index_mapping
    assert mapping is not None
    full = int(mapping.nonzero()[0])
    window = int(mapping[full])
    slot = shown(capsys, str(path), "--slot", str(window), "--group", "SWA")
    assert f"FULL slot {full}" in [one["note"] for one in slot["references"] if one["what"] == "mapping"]
    back = shown(capsys, str(path), "--slot", str(full))
    assert f"SWA slot {window}" in [one["note"] for one in back["references"] if one["what"] == "mapping"]


def test_a_free_slot(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    latent = str(shared / "dumps" / "freed_while_in_use.pt")
    slot = shown(capsys, latent, "--slot", "122")
    assert {"table", "free list"} <= {one["what"] for one in slot["references"]}


@pytest.mark.parametrize("arguments", [["--request", "doc-1"], ["--slot", "165"], ["--slot", "0"]])
def test_the_table_fits_80_columns(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main.run(["show", BROKEN, *arguments, "--engine", "cpu"]) == exit_codes.CLEAN
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert "…" not in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--request", "nobody"], "--request nobody: not in requests.rids, which has chat-0, doc-1"),
        (["--slot", "513"], "--slot 513: the FULL pool has slots 0 to 512"),
        (["--slot", "-1"], "--slot -1"),
        (["--slot", "5", "--group", "SWA"], "--group SWA: not in the dump's groups, which have FULL"),
        ([], "either --request or --slot"),
        (["--slot", "5", "--request", "doc-1"], "either --request or --slot"),
    ],
)
def test_what_is_not_there(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["show", BROKEN, *arguments, "--engine", "cpu"]) == exit_codes.USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err
