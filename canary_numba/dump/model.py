"""A dump in memory: frozen dataclasses, one for each part of the format.

A ``Dump`` holds what one rank knew about its KV cache at one moment. Readers (:mod:`canary_numba.dump.pt`,
:mod:`canary_numba.dump.safetensors`) build it through :mod:`canary_numba.dump.validate`, captures build it directly;
everything downstream (checks, diagnosis, reports) takes only this.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from canary_numba.layout import RealKvHashMode

FORMAT_NAME = "canary-dump"
FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """K or V bytes of one layer. ``tensor``: 2-D, any dtype, possibly memory-mapped; seen as bytes.

    Slot s lives in row ``s // page_size`` from byte ``(s % page_size) * num_bytes_per_token`` on; mode ALL reads
    ``read_bytes`` of it.
    """

    name: str
    tensor: torch.Tensor
    page_size: int
    num_bytes_per_token: int
    read_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Half:
    """Records of the K or the V half. ``head``, ``tail``: uint8 ``[num_slots, stride]``, at least one is present.

    ``source_hashes``: int64 ``[num_slots, n_sources]``, the real-KV hash of each source alone; records hold only the
    combination of all. ``source_slots``: int64 ``[k]``, ascending: the sources hold the bytes of these slots only, as
    if they were slots 0 to k - 1; None = of all.
    """

    head: torch.Tensor | None = None
    tail: torch.Tensor | None = None
    sources: tuple[Source, ...] = ()
    source_hashes: torch.Tensor | None = None
    source_slots: torch.Tensor | None = None

    @property
    def buffers(self) -> dict[str, torch.Tensor]:
        """The record buffers that are present, by stage: ``HEAD``, ``TAIL``."""
        return {stage: buf for stage, buf in (("HEAD", self.head), ("TAIL", self.tail)) if buf is not None}

    @property
    def num_slots(self) -> int:
        """Slots of the half's pool, slot 0 included."""
        return int(next(iter(self.buffers.values())).shape[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One pool kind: FULL (every cached token) or SWA (a sliding window with slot numbers of its own).

    ``full_to_swa_index_mapping``: int64 ``[n]``, FULL slot -> SWA slot (0 = evicted), always present for SWA.
    """

    kind: str
    halves: Mapping[str, Half]
    swa_window_size: int = 0
    full_to_swa_index_mapping: torch.Tensor | None = None
    kv_token_id_vs_position_offset: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KvIndices:
    """The copy of the table that the attention kernel was given: ``indptr`` int64 ``[bs+1]``, ``indices`` int64 [n]."""

    indptr: torch.Tensor
    indices: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """The live requests.

    ``req_pool_indices``, ``prefix_lens`` (tokens already in the cache), ``extend_seq_lens`` (0 without one): int64
    ``[bs]``; ``req_to_token``: int32 ``[rows, width]``; ``rids``: one name a request ("row 7" where the dump has none).
    ``expected_tokens``: int32 ``[rows, w]`` with ``expected_tokens_valid_lens`` int64 ``[bs]``, both or neither.
    ``row_ids``: int64 ``[rows]``, original row numbers when a capture kept only the rows in use.
    """

    rids: tuple[str, ...]
    req_pool_indices: torch.Tensor
    prefix_lens: torch.Tensor
    extend_seq_lens: torch.Tensor
    req_to_token: torch.Tensor
    expected_tokens: torch.Tensor | None = None
    expected_tokens_valid_lens: torch.Tensor | None = None
    row_ids: torch.Tensor | None = None
    committed_lens: torch.Tensor | None = None
    allocated_lens: torch.Tensor | None = None
    extra_keys: tuple[str | None, ...] | None = None
    kv_indices: KvIndices | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Radix:
    """What the prefix cache holds: ``slot_indices`` (FULL numbers), ``positions``, ``prev_slot_indices`` int64 [n]."""

    slot_indices: torch.Tensor
    positions: torch.Tensor
    prev_slot_indices: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocator:
    """Free lists: ``free_slots`` int64 ``[k]``; ``swa_free_slots`` likewise for the window pool."""

    page_size: int
    size: int
    free_slots: torch.Tensor
    swa_size: int | None = None
    swa_free_slots: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveLog:
    """The violation ring as the live process left it: ``ring`` int64 ``[cap, 8]``, ``write_index`` = rows reported."""

    ring: torch.Tensor
    write_index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """Requests that ended lately: request i had ``tokens[indptr[i]:indptr[i+1]]`` (int32)."""

    rids: tuple[str, ...]
    indptr: torch.Tensor
    tokens: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something done to ``slots`` (int64 ``[k]``) at ``step``: alloc, free, evict, restore, receive or move."""

    kind: str
    slots: torch.Tensor
    step: int
    request: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Health counters by launch tag, int64 ``[12]``: launches, and slots processed."""

    kernel_run: torch.Tensor
    slot_run: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Dump:
    """The state of one rank's KV-cache bookkeeping at one moment.

    ``path`` is where it was read from (None = built in memory). ``context`` holds free facts such as ``step`` and
    ``tp_rank``, ``producer`` who wrote it.
    """

    hash_mode: RealKvHashMode
    groups: tuple[Group, ...]
    requests: Requests | None = None
    radix: Radix | None = None
    allocator: Allocator | None = None
    violation_log: LiveLog | None = None
    finished: Finished | None = None
    events: tuple[Event, ...] = ()
    counters: Counters | None = None
    producer: Mapping[str, str] = field(default_factory=dict)
    context: Mapping[str, Any] = field(default_factory=dict)
    path: str | None = None
