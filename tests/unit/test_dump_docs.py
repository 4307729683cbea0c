"""docs/dump-format.md names every key, states the reader's limits, and its example runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from dump_samples import sample

from canary_numba.dump import (
    archive,
    groups,
    pickle_machine,
    pt,
    requests,
    safetensors,
    section,
    tensors,
    unpickle,
    validate,
)

DOCUMENT = (Path(__file__).parents[2] / "docs" / "dump-format.md").read_text()
FREE_KEYS = {"lr", "draft", "ranks"}


def keys(node: Any) -> set[str]:
    if isinstance(node, dict):
        return {*node, *(key for child in node.values() for key in keys(child))}
    return {key for child in node for key in keys(child)} if isinstance(node, list) else set()


def test_every_key_is_documented() -> None:
    named = set(re.findall(r"[`.]([A-Za-z_]+)`", DOCUMENT)) | set(re.findall(r"`([a-z_]+) int64", DOCUMENT))
    assert keys(sample()) - FREE_KEYS - named == set()


@pytest.mark.parametrize(
    ("phrase", "limit"),
    [
        ("pickle of a `.pt` file, header of a safetensors file", pt.MAX_PICKLE_BYTES),
        ("pickle of a `.pt` file, header of a safetensors file", safetensors.MAX_HEADER_BYTES),
        ("instructions in the pickle", pickle_machine.MAX_INSTRUCTIONS),
        ("values in a safetensors header", safetensors.MAX_HEADER_VALUES),
        ("tensors", safetensors.MAX_TENSORS),
        ("tensors", archive.MAX_MEMBERS),
        ("depth of nesting", unpickle.MAX_DEPTH),
        ("live requests", requests.MAX_REQUESTS),
        ("events", validate.MAX_EVENTS),
        ("sources of a half", groups.MAX_SOURCES),
        ("entries of `context`, of `producer`, and of a list in `context`", validate.MAX_FACTS),
        ("characters of a string", section.MAX_TEXT),
        ("records and tables that are not in one aligned piece (they are copied)", section.MAX_COPIED_BYTES),
    ],
)
def test_the_limits_are_those_of_the_reader(phrase: str, limit: int) -> None:
    stated = re.search(rf"^\| {re.escape(phrase)} \| (\d+)", DOCUMENT, re.MULTILINE)
    assert stated is not None
    assert int(stated[1]) == limit


def test_the_other_limits_are_stated() -> None:
    assert f"{safetensors.MAX_DEPTH} in a safetensors file" in DOCUMENT
    assert f"up to {tensors.MAX_EXPANDED_BYTES} bytes are unrolled" in DOCUMENT


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = re.search(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
    assert example is not None
    monkeypatch.chdir(tmp_path)
    exec(example[1], {})
    assert (tmp_path / "smallest.pt").exists()
