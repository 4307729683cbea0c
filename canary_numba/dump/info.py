"""What is inside a dump, in numbers: frozen data, rendered elsewhere; no record is verified and no K/V byte is read."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from canary_numba.dump.dtypes import dtype_name
from canary_numba.dump.files import file_kind
from canary_numba.dump.model import Dump, Group, Half, Radix, Source
from canary_numba.dump.prefixes import SharedPrefix, longest_shared, shared_prefixes
from canary_numba.dump.tensors import nbytes
from canary_numba.layout import CanaryLaunchTag

INFO_SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceInfo:
    """One K/V source. ``layer``: the first number in its name; ``shape``: of the tensor; ``nbytes``: without gaps."""

    name: str
    layer: int | None
    dtype: str
    shape: tuple[int, ...]
    page_size: int
    num_bytes_per_token: int
    read_bytes: int
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfInfo:
    """The K or V half of a pool.

    ``records``: bytes of a slot in each buffer that is there, by stage. ``kept_slots``: of how many slots the K/V bytes
    were kept, None = all.
    """

    name: str
    records: Mapping[str, int]
    sources: tuple[SourceInfo, ...]
    source_hashes: bool
    kept_slots: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupInfo:
    """A pool. ``mapped_slots``: FULL slots that have a slot of this pool (None = it is the FULL pool itself)."""

    kind: str
    num_slots: int
    swa_window_size: int
    mapped_slots: int | None
    kv_token_id_vs_position_offset: int
    halves: tuple[HalfInfo, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestInfo:
    """A live request: its table row, its lengths in tokens, and how many leading slots it shares with whom at most."""

    rid: str
    row: int
    prefix_len: int
    extend_seq_len: int
    committed_len: int | None
    allocated_len: int | None
    extra_key: str | None
    shared_slots: int
    shared_with: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeInfo:
    """The free lists: entries of each and slots of its pool, SWA None where there is none."""

    page_size: int
    size: int
    free: int
    swa_size: int | None
    swa_free: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RadixInfo:
    """The prefix cache: ``tokens`` in it, ``roots`` at the start of a prefix, tokens of the longest (``depth``)."""

    tokens: int
    roots: int
    depth: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpInfo:
    """Everything ``canary-check info`` says of a dump; parts that the dump lacks are None or empty."""

    path: str
    container: str | None
    file_bytes: int | None
    hash_mode: str
    producer: Mapping[str, str]
    context: Mapping[str, Any]
    groups: tuple[GroupInfo, ...]
    requests: tuple[RequestInfo, ...] | None
    expected_tokens: bool
    kv_indices: bool
    shared_prefixes: tuple[SharedPrefix, ...]
    free_slots: FreeInfo | None
    prefix_cache: RadixInfo | None
    live_ring: Mapping[str, int] | None
    finished: Mapping[str, int] | None
    events: Mapping[str, int]
    counters: Mapping[str, Mapping[str, int]] | None

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        return asdict(self)


def describe_dump(dump: Dump) -> DumpInfo:
    """Count what a dump holds.

    Parameters
    ----------
    dump
        The dump. Tables and lists are read; K/V bytes are not.
    """
    requests = dump.requests
    on_disk = dump.path is not None and os.path.exists(dump.path)
    return DumpInfo(
        path=dump.path or "<memory>",
        container=file_kind(dump.path) if on_disk and dump.path else None,
        file_bytes=os.stat(dump.path).st_size if on_disk and dump.path else None,
        hash_mode=dump.hash_mode.name.lower(),
        producer=dict(dump.producer),
        context=dict(dump.context),
        groups=tuple(_group(group) for group in dump.groups),
        requests=None if requests is None else _requests(dump),
        expected_tokens=requests is not None and requests.expected_tokens is not None,
        kv_indices=requests is not None and requests.kv_indices is not None,
        shared_prefixes=() if requests is None else shared_prefixes(requests),
        free_slots=_free(dump),
        prefix_cache=None if dump.radix is None else _radix(dump.radix),
        live_ring=_live_ring(dump),
        finished=_finished(dump),
        events=dict(sorted(Counter(event.kind for event in dump.events).items())),
        counters=_counters(dump),
    )


def _group(group: Group) -> GroupInfo:
    mapping = group.full_to_swa_index_mapping
    return GroupInfo(
        kind=group.kind,
        num_slots=next(iter(group.halves.values())).num_slots,
        swa_window_size=group.swa_window_size,
        mapped_slots=None if mapping is None else int((mapping > 0).sum()),
        kv_token_id_vs_position_offset=group.kv_token_id_vs_position_offset,
        halves=tuple(_half(name, half) for name, half in group.halves.items()),
    )


def _half(name: str, half: Half) -> HalfInfo:
    return HalfInfo(
        name=name,
        records={stage: int(buffer.shape[1]) for stage, buffer in half.buffers.items()},
        sources=tuple(_source(source) for source in half.sources),
        source_hashes=half.source_hashes is not None,
        kept_slots=None if half.source_slots is None else half.source_slots.shape[0],
    )


def _source(source: Source) -> SourceInfo:
    number = re.search(r"\d+", source.name)
    return SourceInfo(
        name=source.name,
        # Longer runs of digits are no layer, and Python refuses to convert the longest.
        layer=int(number[0]) if number is not None and len(number[0]) <= 6 else None,
        dtype=dtype_name(source.tensor.dtype),
        shape=tuple(source.tensor.shape),
        page_size=source.page_size,
        num_bytes_per_token=source.num_bytes_per_token,
        read_bytes=source.read_bytes,
        nbytes=nbytes(source.tensor),
    )


def _requests(dump: Dump) -> tuple[RequestInfo, ...]:
    requests = dump.requests
    assert requests is not None
    absent = [None] * len(requests.rids)
    committed = absent if requests.committed_lens is None else requests.committed_lens.tolist()
    allocated = absent if requests.allocated_lens is None else requests.allocated_lens.tolist()
    columns = zip(
        requests.rids,
        requests.req_pool_indices.tolist(),
        requests.prefix_lens.tolist(),
        requests.extend_seq_lens.tolist(),
        committed,
        allocated,
        requests.extra_keys or absent,
        longest_shared(requests),
        strict=True,
    )
    return tuple(
        RequestInfo(
            rid=rid,
            row=row,
            prefix_len=prefix,
            extend_seq_len=extend,
            committed_len=commit,
            allocated_len=alloc,
            extra_key=key,
            shared_slots=count,
            shared_with=peer,
        )
        for rid, row, prefix, extend, commit, alloc, key, (count, peer) in columns
    )


def _free(dump: Dump) -> FreeInfo | None:
    lists = dump.allocator
    if lists is None:
        return None
    return FreeInfo(
        page_size=lists.page_size,
        size=lists.size,
        free=int(lists.free_slots.shape[0]),
        swa_size=lists.swa_size,
        swa_free=None if lists.swa_free_slots is None else int(lists.swa_free_slots.shape[0]),
    )


def _radix(radix: Radix) -> RadixInfo:
    tokens = int(radix.slot_indices.shape[0])
    return RadixInfo(
        tokens=tokens,
        roots=int((radix.prev_slot_indices < 0).sum()),
        depth=int(radix.positions.max()) + 1 if tokens else 0,
    )


def _live_ring(dump: Dump) -> dict[str, int] | None:
    log = dump.violation_log
    if log is None:
        return None
    capacity = int(log.ring.shape[0])
    return {"reported": log.write_index, "kept": min(max(log.write_index, 0), capacity), "capacity": capacity}


def _finished(dump: Dump) -> dict[str, int] | None:
    if dump.finished is None:
        return None
    return {"requests": len(dump.finished.rids), "tokens": int(dump.finished.tokens.shape[0])}


def _counters(dump: Dump) -> dict[str, dict[str, int]] | None:
    if dump.counters is None:
        return None
    pairs: torch.Tensor = torch.stack([dump.counters.kernel_run, dump.counters.slot_run], dim=1)
    return {
        tag.name: {"launches": launches, "slots": slots}
        for tag, (launches, slots) in zip(CanaryLaunchTag, pairs.tolist(), strict=True)
        if launches or slots
    }
