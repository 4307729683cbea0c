"""The guarded Llama generates what transformers' own cache gives; its bug is found, dumped and named."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from canary_numba.check import check_dump
from canary_numba.diagnosis import diagnose
from canary_numba.dump import load_dump

pytest.importorskip("transformers")

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module("transformers_llama")


def run(example: Any, *options: str) -> str:
    done = CliRunner().invoke(example.main, list(options), catch_exceptions=False)
    assert done.exit_code == 0
    return done.output


def test_without_the_bug_it_generates_what_transformers_cache_gives(example: Any, tmp_path: Path) -> None:
    output = run(example, "--output", str(tmp_path / "dump.pt"))
    assert output.count("the same as transformers' own cache gives") == len(example.PROMPTS)
    assert f"{example.NEW_TOKENS} passes, 0 violations, all checked: True" in output
    assert not (tmp_path / "dump.pt").exists()


def test_the_bug_is_found_dumped_and_named(example: Any, tmp_path: Path) -> None:
    path = tmp_path / "dump.pt"
    output = run(example, "--bug", "--output", str(path))
    assert "canary violations, so far" in output
    assert "slot_owned_twice" in output
    dump = load_dump(path)
    result = check_dump(dump, engine="cpu")
    finding = diagnose(dump, result).findings[0]
    assert (finding.fault, finding.slots[0] // example.PAGE_SIZE) == ("slot_owned_twice", 1)
    assert set(finding.requests) == set(example.PROMPTS)


def test_a_layer_stores_and_gathers_through_the_table(example: Any) -> None:
    pages = example.Pages()
    pages.free = [9, 2, 5]
    taken: list[int] = []
    pages.grow(1, taken, 6)
    layer = example.PagedLayer(pages, 0, 1)
    heads, dim = example.CONFIG.num_key_value_heads, example.CONFIG.head_dim
    keys, values = torch.randn((1, heads, 6, dim)), torch.randn((1, heads, 6, dim))
    layer.update(keys[:, :, :5], values[:, :, :5])
    got_keys, got_values = layer.update(keys[:, :, 5:], values[:, :, 5:])
    assert torch.equal(got_keys, keys)
    assert torch.equal(got_values, values)
    assert taken == [9, 2]
    assert torch.equal(pages.keys[0][2, 1], keys[0, :, 5])
    assert int(pages.keys[0].count_nonzero()) == keys.numel()
    assert (layer.get_seq_length(), layer.get_mask_sizes(1)) == (6, (7, 0))
