"""docs/capture.md: its example runs, and what it says of limits and names is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from canary_numba.capture import suspects
from canary_numba.capture.guard import MODES
from canary_numba.capture.sglang_state import KV_BYTES
from canary_numba.check import check_dump
from canary_numba.dump import load_dump

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "capture.md").read_text()


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    example = re.search(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
    assert example is not None
    exec(compile(example.group(1), "docs/capture.md", "exec"), {"__name__": "example"})
    dump = load_dump(tmp_path / "dump.pt")
    assert dump.requests is not None
    assert dump.requests.prefix_lens.tolist() == [4]
    assert check_dump(dump, engine="cpu").num_violations == 0


def test_names_and_limits_are_those_of_the_code() -> None:
    assert f"at most {suspects.MAX_SUSPECTS:,} slots and {suspects.NEIGHBOURS} neighbours" in DOCUMENT
    assert [word for word in (*KV_BYTES, *MODES) if f'`"{word}"`' not in DOCUMENT] == []


def test_every_file_it_links_to_is_there() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", DOCUMENT)
    assert len(links) >= 3
    assert [link for link in links if not (ROOT / "docs" / link).exists()] == []
