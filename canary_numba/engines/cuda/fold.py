"""Folding K/V bytes in a kernel: 32 slots a warp, one slot a lane.

The fold of a slot is serial (``acc = splitmix64(acc ^ word)``), so a lane must see its slot's words in order; but
lanes that each read their own row use 8 of every 32 bytes they fetch. So a warp works on a tile of 32 rows by
``width`` words::

          width words (256 bytes)
        +------------------------+
  row 0 | lanes 0..15, 16 bytes  |    global -> registers: each instruction reads 2 whole row pieces, coalesced
  row 1 | lanes 16..31           |
  ...   |                        |    registers -> shared memory: rows one pair longer than the tile, so that
 row 31 |                        |    neither the stores along rows nor the loads along columns conflict in a bank
        +------------------------+
          each lane folds one row     shared memory -> registers, 16 bytes at a time

and the loads of the next tile are issued before the fold of this one, which hides their latency. Bytes moved per tile:
``32 * width * 8`` from memory, once. All shapes are compile-time constants: a kernel is built for the layout at hand,
so loops unroll and indices become immediates. Indices are unsigned, since a signed one costs a wrap-around test.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numba import uint64

from canary_numba.engines.cuda.device import (
    WARP,
    cuda,
    device_function,
    fold_word,
    load_pair,
    store_pair,
    warp_sync,
)
from canary_numba.engines.cuda.fold_shapes import DIRECT_WORDS, SourceShape, warp_tile_words
from canary_numba.layout import MAX_REAL_KV_SOURCES

_ZERO = np.uint64(0)
_ONE = np.uint64(1)
_EIGHT = np.uint64(8)
_LANES = np.uint64(WARP)


@device_function
def _no_source(data: Any, slot: Any, tile: Any, rows: Any, warp: Any, lane: Any) -> Any:
    return _ZERO


def _start_of(shape: SourceShape) -> Callable[..., Any]:
    page_size = np.uint64(shape.page_size)
    row_stride = np.uint64(shape.row_stride)
    token_size = np.uint64(shape.token_size)

    @device_function
    def start_of(slot: Any) -> Any:
        return (slot // page_size) * row_stride + (slot % page_size) * token_size

    return start_of


def _byte_fold(shape: SourceShape) -> Callable[..., Any]:
    start_of = _start_of(shape)
    read_bytes = np.uint64(shape.read_size)

    @device_function
    def fold_bytes(data: Any, slot: Any, tile: Any, rows: Any, warp: Any, lane: Any) -> Any:
        start = start_of(slot)
        acc = _ZERO
        at = _ZERO
        while at < read_bytes:
            word = _ZERO
            shift = _ZERO
            while shift < _EIGHT and at + shift < read_bytes:
                word |= np.uint64(data[start + at + shift]) << (shift * _EIGHT)
                shift += _ONE
            acc = fold_word(acc, word)
            at += _EIGHT
        return acc

    return fold_bytes


def _direct_fold(shape: SourceShape) -> Callable[..., Any]:
    start_of = _start_of(shape)
    pair = shape.pairs and shape.read_size == DIRECT_WORDS
    read_words = shape.read_size

    @device_function
    def fold_direct(data: Any, slot: Any, tile: Any, rows: Any, warp: Any, lane: Any) -> Any:
        start = start_of(slot)
        if pair:
            first, second = load_pair(data, start)
            return fold_word(fold_word(_ZERO, first), second)
        acc = _ZERO
        for k in range(read_words):
            acc = fold_word(acc, data[start + np.uint64(k)])
        return acc

    return fold_direct


def _tile_fold(shape: SourceShape, tile_words: int) -> Callable[..., Any]:
    start_of = _start_of(shape)
    pairs = shape.pairs
    per_load = 2 if pairs else 1
    width = shape.tile_width
    lanes_per_row = np.uint64(width // per_load)
    rows_per_load = np.uint64(WARP * per_load // width)
    loads = width // per_load
    registers = width
    full_tiles = np.uint64(shape.read_size // width)
    rest = shape.read_size % width
    rest_words = np.uint64(rest)
    tile_step = np.uint64(width)
    # An odd number of accesses from row to row puts a column of the tile into distinct banks.
    pitch = np.uint64(width + per_load)
    warp_words = np.uint64(tile_words)
    step = np.uint64(per_load)

    @device_function
    def load_tile(data: Any, rows: Any, row: Any, offset: Any, held: Any) -> None:
        # Row starts are read from shared memory each time: kept in registers they cost a third of the warps.
        for i in range(loads):
            place = rows[row + np.uint64(i) * rows_per_load] + offset
            if pairs:
                held[2 * i], held[2 * i + 1] = load_pair(data, place)
            else:
                held[i] = data[place]

    @device_function
    def load_rest(data: Any, rows: Any, row: Any, offset: Any, column: Any, held: Any) -> None:
        # Past the end of the row lies the next slot, or, for the last slot, nothing at all.
        if column < rest_words:
            load_tile(data, rows, row, offset, held)

    @device_function
    def store_tile(tile: Any, at: Any, held: Any) -> None:
        for i in range(loads):
            place = at + np.uint64(i) * rows_per_load * pitch
            if pairs:
                store_pair(tile, place, held[2 * i], held[2 * i + 1])
            else:
                tile[place] = held[i]

    @device_function
    def fold_tile(data: Any, slot: Any, tile: Any, rows: Any, warp: Any, lane: Any) -> Any:
        held = cuda.local.array(registers, uint64)
        column = (lane % lanes_per_row) * step
        first_row = lane // lanes_per_row
        rows[warp * _LANES + lane] = start_of(slot)
        warp_sync()
        row = warp * _LANES + first_row
        store_at = warp * warp_words + first_row * pitch + column
        fold_at = warp * warp_words + lane * pitch
        acc = _ZERO
        offset = column
        if full_tiles > _ZERO:
            load_tile(data, rows, row, offset, held)
        else:
            load_rest(data, rows, row, offset, column, held)
        done = _ZERO
        while done < full_tiles:
            store_tile(tile, store_at, held)
            warp_sync()
            done += _ONE
            offset += tile_step
            if done < full_tiles:
                load_tile(data, rows, row, offset, held)
            elif rest > 0:
                load_rest(data, rows, row, offset, column, held)
            # Keeps the compiler from moving the loads behind the fold, where nothing would hide their latency.
            warp_sync()
            if pairs:
                for k in range(width // 2):
                    first, second = load_pair(tile, fold_at + np.uint64(2 * k))
                    acc = fold_word(fold_word(acc, first), second)
            else:
                for k in range(width):
                    acc = fold_word(acc, tile[fold_at + np.uint64(k)])
            warp_sync()
        if rest > 0:
            store_tile(tile, store_at, held)
            warp_sync()
            for k in range(rest):
                acc = fold_word(acc, tile[fold_at + np.uint64(k)])
            warp_sync()
        return acc

    return fold_tile


def _fold_of(shape: SourceShape, tile_words: int) -> Callable[..., Any]:
    if shape.unit == 1:
        return _byte_fold(shape)
    if shape.tile_width == 0:
        return _direct_fold(shape)
    return _tile_fold(shape, tile_words)


@lru_cache(maxsize=256)
def make_real_kv_fold(shapes: tuple[SourceShape, ...]) -> Callable[..., Any]:
    """Build the device function that continues a real-KV hash over sources of these shapes.

    Its arguments: ``acc`` uint64, the four source arrays, ``slot`` uint64 (inside every source), the block's shared
    ``tile`` (``warp_tile_words`` uint64 a warp) and ``rows`` (a uint64 a thread), ``warp`` and ``lane``
    uint64. All lanes of the warp must call it together.
    """
    folds = [_fold_of(shape, warp_tile_words(shapes)) for shape in shapes] + [_no_source] * (
        MAX_REAL_KV_SOURCES - len(shapes)
    )
    fold0, fold1, fold2, fold3 = folds
    count = len(shapes)

    @device_function
    def real_kv_fold(
        acc: Any, src0: Any, src1: Any, src2: Any, src3: Any, slot: Any, tile: Any, rows: Any, warp: Any, lane: Any
    ) -> Any:
        if count > 0:
            acc = fold_word(acc, fold0(src0, slot, tile, rows, warp, lane))
        if count > 1:
            acc = fold_word(acc, fold1(src1, slot, tile, rows, warp, lane))
        if count > 2:
            acc = fold_word(acc, fold2(src2, slot, tile, rows, warp, lane))
        if count > 3:
            acc = fold_word(acc, fold3(src3, slot, tile, rows, warp, lane))
        return acc

    return real_kv_fold
