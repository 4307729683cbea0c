"""Validates what a dump says of requests: the live ones with their table, and those that ended lately."""

from __future__ import annotations

from typing import Final

import torch

from canary_numba.dump.model import Finished, KvIndices, Requests
from canary_numba.dump.section import Section
from canary_numba.dump.tensors import describe

MAX_REQUESTS: Final[int] = 1 << 20
"""Live requests of one rank. Engines run some thousand; names are made for each, so a sparse file must not ask more."""


def decode_requests(section: Section) -> Requests:
    """Validate ``requests``: every per-request array has as many entries as ``req_pool_indices``.

    Row numbers, slots and prefixes longer than the table are taken as they are: they are findings, not format errors.
    """
    stored = section.tensor("req_pool_indices", torch.int64, "bs")
    bs = stored.shape[0]
    if bs > MAX_REQUESTS:
        raise section.error("req_pool_indices", f"at most {MAX_REQUESTS} requests", describe(stored))
    rows_of_requests = section.packed("req_pool_indices", torch.int64, "bs")
    table = section.rows("req_to_token", torch.int32, "rows", "width")
    rows = table.shape[0]
    row_ids = section.packed("row_ids", torch.int64, ("rows", rows)) if section.has("row_ids") else None
    expected_tokens, valid_lens = _expected_tokens(section, bs=bs, rows=rows)
    extend_seq_lens = _optional_lengths(section, "extend_seq_lens", bs)
    return Requests(
        rids=section.texts("rids", count=bs) if section.has("rids") else _row_names(rows_of_requests, row_ids),
        req_pool_indices=rows_of_requests,
        prefix_lens=section.lengths("prefix_lens", bs),
        extend_seq_lens=torch.zeros(bs, dtype=torch.int64) if extend_seq_lens is None else extend_seq_lens,
        req_to_token=table,
        expected_tokens=expected_tokens,
        expected_tokens_valid_lens=valid_lens,
        row_ids=row_ids,
        committed_lens=_optional_lengths(section, "committed_lens", bs),
        allocated_lens=_optional_lengths(section, "allocated_lens", bs),
        extra_keys=_extra_keys(section, bs) if section.has("extra_keys") else None,
        kv_indices=_kv_indices(section.section("kv_indices"), bs) if section.has("kv_indices") else None,
    )


def decode_finished(section: Section) -> Finished:
    """Validate ``finished``: names, and the range of ``tokens`` that each request had."""
    rids = section.texts("rids")
    tokens = section.packed("tokens", torch.int32, "tokens")
    return Finished(rids=rids, indptr=section.indptr("indptr", count=len(rids), total=tokens.shape[0]), tokens=tokens)


def _optional_lengths(section: Section, name: str, bs: int) -> torch.Tensor | None:
    return section.lengths(name, bs) if section.has(name) else None


def _expected_tokens(section: Section, *, bs: int, rows: int) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    given = {name: section.has(name) for name in ("expected_tokens", "expected_tokens_valid_lens")}
    if not any(given.values()):
        return None, None
    for name, there in given.items():
        if not there:
            other = next(other for other in given if other != name)
            raise section.error(name, f"to be there, since {other} is", "nothing: the key is missing")
    pool = section.rows("expected_tokens", torch.int32, ("rows", rows), "width")
    return pool, section.lengths("expected_tokens_valid_lens", bs)


def _row_names(rows_of_requests: torch.Tensor, row_ids: torch.Tensor | None) -> tuple[str, ...]:
    rows: list[int] = rows_of_requests.tolist()
    if row_ids is None:
        return tuple(f"row {row}" for row in rows)
    count = row_ids.shape[0]
    return tuple(f"row {int(row_ids[row]) if 0 <= row < count else row}" for row in rows)


def _extra_keys(section: Section, bs: int) -> tuple[str | None, ...]:
    values = section.items("extra_keys", count=bs)
    for i, value in enumerate(values):
        if value is not None:
            section.require_text(f"extra_keys[{i}]", value)
    return tuple(values)


def _kv_indices(section: Section, bs: int) -> KvIndices:
    indices = section.packed("indices", torch.int64, "n")
    return KvIndices(indptr=section.indptr("indptr", count=bs, total=indices.shape[0]), indices=indices)
