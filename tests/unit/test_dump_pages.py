"""Pages of mapped files are handed back, and nothing else ever is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from canary_numba.dump import load_dump, pages, save_dump
from canary_numba.dump.pages import forget

SIZE = 8 << 20
CLEAN = Path(__file__).parents[2] / "examples" / "dumps" / "clean.pt"

pytestmark = pytest.mark.skipif(not Path("/proc/self/pagemap").exists(), reason="Linux only")


def resident(tensor: torch.Tensor) -> int:
    """Bytes of the mapping around ``tensor`` that this process holds."""
    text = Path("/proc/self/smaps").read_text()
    for block in re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", text):
        start, end = (int(part, 16) for part in block.split(" ", 1)[0].split("-"))
        if start <= tensor.data_ptr() < end:
            found = re.search(r"^Rss:\s+(\d+) kB", block, re.MULTILINE)
            assert found is not None
            return int(found[1]) << 10
    raise AssertionError("the tensor lies in no mapping")


@pytest.fixture
def mapped(tmp_path: Path) -> torch.Tensor:
    path = tmp_path / "bytes"
    path.write_bytes(bytes(range(256)) * (SIZE // 256))
    return torch.from_file(str(path), shared=False, size=SIZE, dtype=torch.uint8)


def test_a_mapped_file_that_was_read(mapped: torch.Tensor) -> None:
    whole = int(mapped.sum(dtype=torch.int64))
    assert resident(mapped) == SIZE
    forget(mapped.data_ptr(), SIZE)
    assert resident(mapped) == 0
    assert int(mapped.sum(dtype=torch.int64)) == whole


def test_only_whole_pages_of_the_piece(mapped: torch.Tensor) -> None:
    mapped.sum()
    forget(mapped.data_ptr() + 1, SIZE // 2)
    # Where the file is mapped in huge pages, the system lets go of the one that is cut as a whole.
    assert SIZE // 4 < resident(mapped) <= SIZE // 2 + 4096


def test_what_was_written_stays(mapped: torch.Tensor) -> None:
    mapped[SIZE // 2] = 77
    before = resident(mapped)
    forget(mapped.data_ptr(), SIZE)
    assert resident(mapped) == before
    assert int(mapped[SIZE // 2]) == 77


def test_memory_that_is_no_file_stays() -> None:
    for tensor in (torch.full((SIZE,), 7, dtype=torch.uint8), torch.zeros(SIZE, dtype=torch.uint8)):
        copy = tensor.clone()
        forget(tensor.data_ptr(), SIZE)
        assert tensor.equal(copy)


def test_small_pieces_are_left_alone(mapped: torch.Tensor) -> None:
    mapped.sum()
    forget(mapped.data_ptr(), pages.MIN_BYTES - 1)
    forget(mapped.data_ptr(), 0)
    assert resident(mapped) == SIZE


def test_nothing_happens_where_the_system_cannot_be_asked(
    mapped: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise FileNotFoundError

    mapped.sum()
    monkeypatch.setattr(pages, "_pagemap", fail)
    forget(mapped.data_ptr(), SIZE)
    assert resident(mapped) == SIZE


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_a_tensor_changed_in_memory_is_saved_as_it_is(suffix: str, tmp_path: Path) -> None:
    dump = load_dump(CLEAN)
    tail = dump.groups[0].halves["K"].tail
    assert tail is not None
    tail[3] = 9
    save_dump(dump, tmp_path / f"a{suffix}")
    again = load_dump(tmp_path / f"a{suffix}").groups[0].halves["K"].tail
    assert again is not None
    assert again.equal(tail)
