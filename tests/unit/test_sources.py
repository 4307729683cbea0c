"""Flattened K/V sources: where a slot's bytes lie, how they are aligned, how many are read."""

from __future__ import annotations

from dataclasses import replace

import harness
import hypothesis.strategies as st
import pytest
import strategies
import torch
from hypothesis import given

from canary_numba.context import RealKvSource, ViolationLog
from canary_numba.errors import ArgumentError
from canary_numba.layout import CanaryLaunchTag, RealKvHashMode
from canary_numba.sources import active_sources, flatten_source, read_bytes_of

MODES = st.sampled_from([RealKvHashMode.PARTIAL, RealKvHashMode.ALL])


def source(tensor: torch.Tensor, width: int, *, read: int | None = None, page_size: int = 1) -> RealKvSource:
    return RealKvSource(tensor=tensor, page_size=page_size, num_bytes_per_token=width, read_bytes=read or width)


@given(used=strategies.sources(7), mode=MODES)
def test_a_slots_bytes_are_where_the_formula_says(used: RealKvSource, mode: RealKvHashMode) -> None:
    flat = flatten_source(used, mode)
    oracle = harness.source_of(used)
    assert flat.num_slots == oracle.num_slots >= 7
    memory = flat.flat.numpy().tobytes()
    for slot in range(flat.num_slots):
        start = (slot // flat.page_size) * flat.row_stride + (slot % flat.page_size) * flat.token_bytes
        assert memory[start : start + flat.read_bytes] == oracle.read(slot, int(mode))


@given(used=strategies.sources(7), mode=MODES)
def test_alignment_holds_for_every_slot(used: RealKvSource, mode: RealKvHashMode) -> None:
    flat = flatten_source(used, mode)
    starts = [
        (slot // flat.page_size) * flat.row_stride + (slot % flat.page_size) * flat.token_bytes
        for slot in range(flat.num_slots)
    ]
    assert flat.alignment in (1, 8, 16)
    assert all((flat.flat.data_ptr() + start) % flat.alignment == 0 for start in starts)
    assert flat.read_bytes % flat.alignment == 0
    if flat.alignment > 1:
        words = flat.words.numpy().tobytes()
        assert all(start + flat.read_bytes <= len(words) for start in starts)
        assert words == flat.flat.numpy().tobytes()[: len(words)]


def test_nothing_is_copied() -> None:
    tensor = torch.zeros((4, 32), dtype=torch.bfloat16)
    flat = flatten_source(source(tensor, 64), RealKvHashMode.ALL)
    assert flat.flat.data_ptr() == tensor.data_ptr()
    flat.flat[64] = 1
    assert tensor[1, 0] != 0


class TestAlignment:
    def memory(self, nbytes: int = 4096) -> torch.Tensor:
        return torch.zeros(nbytes // 8, dtype=torch.int64).view(torch.uint8)

    @pytest.mark.parametrize(
        ("width", "read", "page_size", "start", "gap", "alignment"),
        [
            pytest.param(64, 64, 1, 0, 0, 16, id="all_sixteen"),
            pytest.param(64, 48, 16, 0, 0, 16, id="pages"),
            pytest.param(64, 64, 1, 8, 0, 8, id="start"),
            pytest.param(64, 64, 1, 4, 0, 1, id="odd_start"),
            pytest.param(64, 40, 1, 0, 0, 8, id="read_bytes"),
            pytest.param(64, 63, 1, 0, 0, 1, id="odd_read_bytes"),
            pytest.param(64, 64, 1, 0, 8, 8, id="row_stride"),
            pytest.param(64, 64, 1, 0, 2, 1, id="odd_row_stride"),
            pytest.param(24, 16, 2, 0, 0, 8, id="slots_in_a_page"),
            pytest.param(20, 16, 4, 0, 0, 1, id="odd_slots_in_a_page"),
            pytest.param(61, 16, 1, 0, 3, 16, id="a_lone_slot_may_have_any_width"),
        ],
    )
    def test_the_worst_of_address_strides_and_length(
        self, width: int, read: int, page_size: int, start: int, gap: int, alignment: int
    ) -> None:
        row = width * page_size
        tensor = self.memory().as_strided((3, row), (row + gap, 1), start)
        assert tensor.data_ptr() % 16 == start % 16, "torch hands out memory in multiples of 16 bytes"
        flat = flatten_source(source(tensor, width, read=read, page_size=page_size), RealKvHashMode.ALL)
        assert flat.alignment == alignment


class TestReadBytes:
    @pytest.mark.parametrize(("width", "read", "partial"), [(64, 40, 16), (64, 8, 16), (16, 16, 16), (9, 3, 9)])
    def test_by_mode(self, width: int, read: int, partial: int) -> None:
        used = source(torch.zeros((2, width), dtype=torch.uint8), width, read=read)
        assert read_bytes_of(used, RealKvHashMode.ALL) == read
        assert read_bytes_of(used, RealKvHashMode.PARTIAL) == partial


class TestRefused:
    def test_a_row_that_is_not_contiguous(self) -> None:
        used = source(torch.zeros((4, 2, 8), dtype=torch.uint8).transpose(1, 2), 16)
        with pytest.raises(ArgumentError, match="contiguous rows"):
            flatten_source(used, RealKvHashMode.ALL)

    def test_columns_of_a_wider_tensor(self) -> None:
        used = source(torch.zeros((4, 64), dtype=torch.uint8)[:, ::2], 32)
        with pytest.raises(ArgumentError, match="contiguous rows"):
            flatten_source(used, RealKvHashMode.ALL)


@pytest.mark.parametrize("rows", [0, 1])
def test_few_rows(rows: int) -> None:
    flat = flatten_source(source(torch.zeros((rows, 32), dtype=torch.uint8), 16, page_size=2), RealKvHashMode.ALL)
    assert flat.num_slots == 2 * rows
    assert flat.flat.shape[0] == 32 * rows


def test_gradients_do_not_matter() -> None:
    tensor = torch.zeros((2, 8), requires_grad=True)
    assert not flatten_source(source(tensor, 32), RealKvHashMode.ALL).flat.requires_grad


def test_active_sources() -> None:
    used = (source(torch.zeros((4, 8), dtype=torch.uint8), 8), source(torch.zeros((4, 32), dtype=torch.uint8), 32))
    context = ViolationLog.allocate(ring_capacity=1, device="cpu").context(
        canary_buf=torch.zeros((4, 32), dtype=torch.uint8),
        kernel_kind=CanaryLaunchTag.HEAD_K_FULL,
        real_kv_sources=used,
        real_kv_hash_mode=RealKvHashMode.PARTIAL,
    )
    assert [flat.read_bytes for flat in active_sources(context)] == [8, 16]
    assert active_sources(replace(context, real_kv_hash_mode=RealKvHashMode.NONE)) == []
