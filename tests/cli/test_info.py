"""``canary-check info``: what is inside, as text and as JSON."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from canary_cli import exit_codes, main
from canary_cli.render import info as table
from dump_samples import sample
from rich.cells import cell_len

from canary_numba.dump import decode, load_dump
from canary_numba.dump.info import describe_dump

DUMPS = Path(__file__).parents[2] / "examples" / "dumps"
CLEAN = DUMPS / "clean.pt"
EXPECTED = Path(__file__).parent / "expected"


def described(path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main.run(["info", str(path), "--format", "json"]) == exit_codes.CLEAN
    data = json.loads(capsys.readouterr().out)
    assert data["schema_version"] == 1
    (dump,) = data["dumps"]
    return dump  # type: ignore[no-any-return]


def test_json_of_a_real_dump(capsys: pytest.CaptureFixture[str]) -> None:
    dump = described(CLEAN, capsys)
    stored = torch.load(CLEAN, weights_only=True)
    assert (dump["path"], dump["container"], dump["file_bytes"]) == (str(CLEAN), "pt", CLEAN.stat().st_size)
    assert dump["context"] == stored["context"]
    assert dump["hash_mode"] == "all"
    (group,) = dump["groups"]
    assert (group["kind"], group["num_slots"]) == ("FULL", 513)
    assert [half["name"] for half in group["halves"]] == ["K", "V"]
    assert group["halves"][0]["kept_slots"] is None
    (source,) = group["halves"][0]["sources"]
    assert (source["name"], source["layer"], source["dtype"], source["nbytes"]) == ("layer0.k", 0, "uint8", 513 * 64)
    requests = {request["rid"]: request for request in dump["requests"]}
    assert [request["prefix_len"] for request in dump["requests"]] == stored["requests"]["prefix_lens"].tolist()
    assert (requests["chat-0"]["shared_slots"], requests["chat-0"]["shared_with"]) == (28, "chat-3")
    assert (requests["doc-1"]["shared_slots"], requests["doc-1"]["shared_with"]) == (0, None)
    assert dump["shared_prefixes"] == [{"slots": 28, "requests": ["chat-0", "chat-3"]}]
    assert dump["free_slots"]["free"] == len(stored["allocator"]["free_slots"])
    assert dump["prefix_cache"]["tokens"] == len(stored["radix"]["slot_indices"])


def test_json_of_every_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.pt"
    torch.save(sample(), path)
    dump = described(path, capsys)
    assert dump["groups"][1]["mapped_slots"] == 8
    assert dump["groups"][0]["halves"][0]["source_hashes"] is True
    assert dump["groups"][0]["halves"][0]["kept_slots"] == 9
    assert dump["groups"][0]["halves"][0]["records"] == {"HEAD": 32, "TAIL": 40}
    assert [source["layer"] for source in dump["groups"][0]["halves"][0]["sources"]] == [0, None]
    assert dump["requests"][1]["extra_key"] == "adapter-7"
    assert (dump["requests"][1]["committed_len"], dump["requests"][1]["allocated_len"]) == (4, 4)
    assert dump["live_ring"] == {"reported": 5, "kept": 2, "capacity": 2}
    assert dump["finished"] == {"requests": 2, "tokens": 3}
    assert dump["events"] == {"alloc": 1, "restore": 1}
    assert dump["counters"]["HEAD_V_FULL"] == {"launches": 1, "slots": 7}
    assert dump["kv_indices"] is True


def test_a_dump_with_almost_nothing_in_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.pt"
    bare = {key: sample()[key] for key in ("format", "version", "hash_mode", "groups")}
    del bare["groups"][0]["halves"]["K"]["sources"][1:], bare["groups"][0]["halves"]["K"]["source_hashes"]
    torch.save(bare, path)
    dump = described(path, capsys)
    for part in ("requests", "free_slots", "prefix_cache", "live_ring", "finished", "counters"):
        assert dump[part] is None
    assert main.run(["info", str(path)]) == exit_codes.CLEAN
    assert ["requests", "none", "in", "the", "dump"] in [line.split() for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_no_line_is_longer_than_the_terminal(width: int) -> None:
    mapping = sample()
    mapping["requests"]["rids"] = ["chatcmpl-" + "0123456789abcdef" * 4, "b\x1b[2J"]
    mapping["context"]["long"] = "x" * 300
    for dump in (decode(mapping), load_dump(CLEAN)):
        lines = table.render([describe_dump(dump)], 0, color=False, width=width).splitlines()
        assert max(cell_len(line) for line in lines[1:]) <= width
        assert not any("\x1b" in line or "…" in line for line in lines)


def test_layers_that_look_alike_are_one_line() -> None:
    mapping = sample()
    half = mapping["groups"][0]["halves"]["K"]
    first = half["sources"][0]
    half["sources"] = [{**first, "name": f"model.layers.{i}.k"} for i in (0, 1, 2, 7)]
    half["sources"].append({**first, "name": "index", "read_bytes": 3})
    del half["source_hashes"]
    text = table.render([describe_dump(decode(mapping))], 0, color=False, width=120)
    (line,) = [line.split() for line in text.splitlines() if "model.layers.0.k" in line]
    assert line[:5] == ["K", "FULL", "4", "0-2,", "7"]
    assert f"{4 * 5 * 14 * 2}" in line
    assert any(line.split()[:4] == ["K", "FULL", "1", "-"] for line in text.splitlines())


def test_the_text(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(DUMPS.parents[1])
    assert main.run(["info", "examples/dumps/clean.pt"]) == exit_codes.CLEAN
    text = capsys.readouterr().out
    expected = EXPECTED / "info-80.txt"
    if os.environ.get("CANARY_WRITE_EXPECTED"):
        expected.write_text(text, encoding="utf-8")
    assert text == expected.read_text(encoding="utf-8")


def test_as_many_requests_as_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    main.run(["info", str(CLEAN), "--max-requests", "2"])
    out = capsys.readouterr().out
    assert "Requests (2 of 4)" in out
    assert "code-4" not in out
    main.run(["info", str(CLEAN), "--max-requests", "0"])
    assert "Requests (4 of 4)" in capsys.readouterr().out


def test_no_colour_in_a_pipe(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    main.run(["info", str(CLEAN)])
    assert "\x1b" not in capsys.readouterr().out


def test_several_and_unreadable_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["info", str(DUMPS), "none.pt", str(tmp_path)]) == exit_codes.USAGE
    captured = capsys.readouterr()
    names = sorted(path.name for path in DUMPS.glob("*.pt"))
    assert [line for line in captured.out.splitlines() if line.startswith("/")] == [str(DUMPS / name) for name in names]
    said = captured.err.splitlines()
    assert [line.split(": ")[2] for line in said] == [str(tmp_path), "none.pt"]
    assert main.run(["info", str(tmp_path)]) == exit_codes.USAGE
    assert capsys.readouterr().out == ""
