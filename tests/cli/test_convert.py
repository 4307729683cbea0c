"""``canary-check convert``: both ways without loss, whole or not at all, in bounded memory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from canary_cli import exit_codes, main
from dump_samples import same, sample

from canary_numba.dump import encode, load_dump, pt, safetensors

DUMPS = Path(__file__).parents[2] / "examples" / "dumps"
CLEAN = DUMPS / "clean.pt"


def convert(source: Path, target: Path, *options: str) -> int:
    return main.run(["convert", str(source), str(target), *options])


def report_of(path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    main.run(["check", str(path), "--engine", "cpu", "--format", "json", "--max-violations", "0"])
    (report,) = json.loads(capsys.readouterr().out)["dumps"]
    del report["path"], report["seconds"]
    return report  # type: ignore[no-any-return]


def test_every_dump_there_and_back(shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = sorted((shared / "dumps").glob("*.pt"))
    assert len(paths) > 20
    for path in paths:
        there, back = tmp_path / f"{path.stem}.safetensors", tmp_path / f"{path.stem}.pt"
        assert convert(path, there) == convert(there, back) == exit_codes.CLEAN
        assert same(load_dump(path), load_dump(there))
        assert same(load_dump(path), load_dump(back))
        assert report_of(path, capsys) == report_of(there, capsys) == report_of(back, capsys)


def test_every_key_there_and_back(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.pt", "b.safetensors", "c.pt")]
    torch.save(sample(), paths[0])
    assert convert(paths[0], paths[1]) == convert(paths[1], paths[2]) == exit_codes.CLEAN
    dumps = [load_dump(path) for path in paths]
    assert same(dumps[0], dumps[1])
    assert same(dumps[0], dumps[2])


def test_torch_reads_what_was_written(tmp_path: Path) -> None:
    target = tmp_path / "b.pt"
    assert convert(CLEAN, target) == exit_codes.CLEAN
    for mapped in (False, True):
        assert same(torch.load(target, weights_only=True, mmap=mapped), encode(load_dump(CLEAN)))
    assert zipfile.ZipFile(target).testzip() is None


def test_interleaved_layers_are_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pt, "CHUNK_BYTES", 1000)
    dump = torch.load(CLEAN, weights_only=True)
    half = dump["groups"][0]["halves"]["K"]
    both = torch.randint(0, 256, (513, 2, 64)).to(torch.uint8)
    half["sources"] = [{**half["sources"][0], "tensor": both[:, i]} for i in range(2)]
    torch.save(dump, tmp_path / "a.pt")
    assert convert(tmp_path / "a.pt", tmp_path / "b.pt") == exit_codes.CLEAN
    assert same(load_dump(tmp_path / "a.pt"), load_dump(tmp_path / "b.pt"))
    assert (tmp_path / "b.pt").stat().st_size <= (tmp_path / "a.pt").stat().st_size + 4096


def test_what_cannot_be_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = tmp_path / "b.pt"
    there.write_text("mine")
    for source, target, said in (
        (CLEAN, there, f"{there}: exists already; --force replaces it"),
        (CLEAN, tmp_path / "b.json", "path: expected a name that ends in .pt or .safetensors"),
        (tmp_path / "none.pt", tmp_path / "c.pt", f"{tmp_path / 'none.pt'}: cannot be read: No such file"),
        (CLEAN, tmp_path / "no folder" / "c.pt", "cannot be written: No such file or directory"),
    ):
        assert convert(source, target) == exit_codes.USAGE
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("canary-check: error: ")
        assert said in captured.err
    assert there.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [there]
    assert convert(CLEAN, there, "--force") == exit_codes.CLEAN
    assert same(load_dump(there), load_dump(CLEAN))


def test_a_dtype_that_safetensors_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump = torch.load(CLEAN, weights_only=True)
    source = dump["groups"][0]["halves"]["K"]["sources"][0]
    source["tensor"] = source["tensor"].view(torch.complex64)
    torch.save(dump, tmp_path / "a.pt")
    assert convert(tmp_path / "a.pt", tmp_path / "b.safetensors") == exit_codes.USAGE
    assert "a dtype that safetensors has (a .pt file takes others), got complex64" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["a.pt"]


@pytest.mark.parametrize(("module", "name"), [(pt, "b.pt"), (safetensors, "b.safetensors")])
def test_an_interruption_leaves_nothing(
    module: Any, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> Any:
        yield memoryview(b"some bytes")
        assert len(list(tmp_path.iterdir())) == 1
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_chunks", interrupted)
    assert convert(CLEAN, tmp_path / name) == exit_codes.INTERRUPTED
    assert capsys.readouterr().err.strip() == "canary-check: error: interrupted"
    assert list(tmp_path.iterdir()) == []


def test_control_c_in_the_middle_of_a_file(tmp_path: Path) -> None:
    # Slow enough to be caught in the act, whatever the machine.
    program = (
        "import sys, time; from canary_numba.dump import pt; from canary_cli.main import main\n"
        "chunks = pt._chunks\n"
        "def slow(storage):\n"
        "    for chunk in chunks(storage):\n"
        "        print('writing', flush=True); time.sleep(60); yield chunk\n"
        "pt._chunks = slow; main()"
    )
    command = [sys.executable, "-c", program, "convert", str(CLEAN), str(tmp_path / "b.pt")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        os.kill(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == exit_codes.INTERRUPTED
    assert err.strip() == "canary-check: error: interrupted"
    assert list(tmp_path.iterdir()) == []
