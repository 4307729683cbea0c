"""What the kernels hand to their device functions together; the compiler takes the tuples apart again."""

from __future__ import annotations

from typing import Any, NamedTuple


class Pool(NamedTuple):
    """The records: flat uint64 words, words from one record to the next, number of slots."""

    records: Any
    stride: Any
    num_slots: Any


class Tokens(NamedTuple):
    """What a write is given for each flat entry, int32 or int64, and whether the expected ones count."""

    tokens: Any
    positions: Any
    slots: Any
    expected_tokens: Any
    expected_positions: Any
    assert_input: Any


class Requests(NamedTuple):
    """What a plan is given for each request: row of the tables, cached and new tokens; and the window of them all."""

    rows: Any
    prefix_lens: Any
    extend_lens: Any
    window: Any


class Table(NamedTuple):
    """The flat cells of ``req_to_token``, row stride, rows and columns, and the mapping that its slots go through."""

    cells: Any
    stride: Any
    rows: Any
    width: Any
    mapping: Any
    has_mapping: Any


class KnownTokens(NamedTuple):
    """The flat cells of the expected tokens, row stride, rows and columns; how many each request has; if there are any.

    ``offset``: the column of a token is its position and this.
    """

    cells: Any
    stride: Any
    rows: Any
    width: Any
    valid_lens: Any
    present: Any
    offset: Any


class Starts(NamedTuple):
    """Where each request's verify entries begin: in its chunk of 2**shift requests, and that chunk's among all."""

    in_chunk: Any
    of_chunk: Any
    shift: Any


class Entries(NamedTuple):
    """The arrays of verify entries that a plan fills, as uint64."""

    slots: Any
    tokens: Any
    positions: Any
    prevs: Any


class Log(NamedTuple):
    """Where violations of a launch of ``kind`` go: ring, its write index, the aggregate's table (0 rows for none)."""

    kind: Any
    ring: Any
    write_index: Any
    aggregate: Any
