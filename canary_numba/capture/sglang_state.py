"""What a dump needs from SGLang's objects, read by attribute: SGLang itself is never imported.

Written against SGLang 0.5.23. Attributes that a deployment may lack (a window pool, a prefix cache, the token lists of
requests) are optional; those of the canary itself are not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from canary_numba.capture.copies import SourceCopier, to_host, used_rows
from canary_numba.capture.hashes import SourceHasher, put_by_slot
from canary_numba.capture.snapshot import token_rows
from canary_numba.capture.suspects import changed_slots, keep_slots, reported_slots, with_neighbours
from canary_numba.check_plans import map_slots
from canary_numba.dump.model import Allocator, Group, Half, Radix, Requests, Source
from canary_numba.layout import RealKvHashMode

KV_BYTES = ("none", "suspect", "all")


def read_groups(
    manager: Any,
    pools: Any,
    *,
    referenced: torch.Tensor,
    ring: torch.Tensor,
    kv_bytes: str,
    heads: bool,
    engine: str,
) -> tuple[Group, ...]:
    """Copy the record buffers of every pool, and as much of the K/V bytes as asked for.

    Parameters
    ----------
    manager
        SGLang's ``CanaryManager``.
    pools
        Its K/V pool, for the names of layers, or None.
    referenced
        int64 ``[n]``, FULL slots that the dump's requests and prefix cache point at.
    ring
        int64 ``[n, 8]``, the violations so far, on the host.
    kv_bytes
        ``"none"``; ``"suspect"``: the hash of each source at each referenced slot, as the bytes are now, and the bytes
        of slots under suspicion and their neighbours; ``"all"``.
    heads
        Whether to copy the HEAD records.
    engine
        Who hashes.
    """
    mode = RealKvHashMode(int(manager.config.real_kv_hash_mode))
    groups = []
    for group in manager._buffer_groups:
        kind = str(group.kind.name)
        mapping = group.swa_index_lut
        slots = map_slots(referenced.to(group.k_tail.device), mapping)
        reported = reported_slots(ring, kind)
        found = {half: named_sources(group, half, sub_pool(pools, kind)) for half in ("K", "V")}
        copier = SourceCopier(source for sources in found.values() for source in sources)
        halves = {}
        for half, sources in found.items():
            head, tail = (getattr(group, f"{half.lower()}_{stage}") for stage in ("head", "tail"))
            if tail is None:
                continue
            records = Half(head=to_host(head) if heads and head is not None else None, tail=to_host(tail))
            if kv_bytes == "all":
                records = replace(records, sources=tuple(map(copier, sources)))
            elif kv_bytes == "suspect" and sources and mode != RealKvHashMode.NONE:
                records = _with_suspects(records, tail, SourceHasher(sources, mode, engine), slots, reported)
            halves[half] = records
        groups.append(
            Group(
                kind=kind,
                halves=halves,
                swa_window_size=int(manager._swa_window_size) if kind == "SWA" else 0,
                full_to_swa_index_mapping=None if mapping is None else to_host(mapping),
                kv_token_id_vs_position_offset=int(group.kv_token_id_vs_position_offset),
            )
        )
    return tuple(groups)


def _with_suspects(
    half: Half, tail: torch.Tensor, hasher: SourceHasher, slots: torch.Tensor, reported: torch.Tensor
) -> Half:
    single = hasher.single(slots)
    table = torch.zeros((tail.shape[0], single.shape[1]), dtype=torch.int64, device=slots.device)
    put_by_slot(table, slots, single)
    kept = with_neighbours(torch.cat([reported, changed_slots(tail, slots, single)]), tail.shape[0])
    half = replace(half, source_hashes=to_host(table))
    if not kept.shape[0]:
        return half
    return replace(half, sources=keep_slots(hasher.sources, kept), source_slots=kept)


def sub_pool(pools: Any, kind: str) -> Any:
    """Return the pool of one kind out of SGLang's K/V pool, which is either that pool or holds one of each."""
    return getattr(pools, "full_kv_pool" if kind == "FULL" else "swa_kv_pool", pools)


def named_sources(group: Any, half: str, pool: Any) -> tuple[Source, ...]:
    """Give each source the name of the layer whose buffer it is, else a number."""
    buffers = getattr(pool, f"{half.lower()}_buffer", None) or ()
    layers = getattr(pool, "model_layer_ids", None)
    if layers is None:
        start = getattr(pool, "start_layer", None) or 0
        layers = range(start, start + len(buffers))
    names = {buffer.data_ptr(): f"layer{layer}.{half.lower()}" for buffer, layer in zip(buffers, layers, strict=False)}
    return tuple(
        Source(
            name=names.get(source.tensor.data_ptr(), f"source{i}.{half.lower()}"),
            tensor=source.tensor.detach().flatten(1),
            page_size=int(source.page_size),
            num_bytes_per_token=int(source.num_bytes_per_token),
            read_bytes=int(source.read_bytes),
        )
        for i, source in enumerate(getattr(group, f"real_kv_sources_{half.lower()}"))
    )


def read_radix(radix_cache: Any) -> Radix | None:
    """Walk the prefix cache, with the walk that SGLang's own sweep uses; None where it has none."""
    core = getattr(radix_cache, "tree_core", None)
    if core is None:
        return None
    walk = core.walk_for_kv_canary(unlocked_only=False, swa_resident_only=False)
    return Radix(
        slot_indices=to_host(walk.slot_indices),
        positions=to_host(walk.positions),
        prev_slot_indices=to_host(walk.prev_slot_indices),
    )


def read_allocator(allocator: Any) -> Allocator | None:
    """Read the free lists; None without an allocator."""
    if allocator is None:
        return None
    full = getattr(allocator, "full_attn_allocator", None)
    if full is None:
        free = _free_slots(allocator)
        if free is None:
            return None
        return Allocator(page_size=int(allocator.page_size), size=int(allocator.size), free_slots=free)
    window = allocator.swa_attn_allocator
    free = _free_slots(full)
    return Allocator(
        page_size=int(allocator.page_size),
        size=int(full.size),
        free_slots=torch.empty(0, dtype=torch.int64) if free is None else free,
        swa_size=int(window.size),
        swa_free_slots=_free_slots(window),
    )


def _free_slots(allocator: Any) -> torch.Tensor | None:
    """Slots on the free list, whether sorted in or set aside for that: int64 ``[k]``."""
    pages = allocator.get_all_free_pages()
    if pages is None:
        return None
    first = to_host(pages).to(torch.int64) * int(allocator.page_size)
    return (first[:, None] + torch.arange(int(allocator.page_size))).flatten()


class LiveRequests:
    """The live requests: table rows, lengths, names, tokens.

    ``rows``, ``prefix_lens``, ``extend_seq_lens``: int64 ``[bs]`` on the host.
    """

    def __init__(
        self,
        *,
        rows: torch.Tensor,
        prefix_lens: torch.Tensor,
        extend_seq_lens: torch.Tensor,
        rids: Sequence[str],
        tokens: Sequence[Sequence[int]] | None = None,
        committed_lens: torch.Tensor | None = None,
        allocated_lens: torch.Tensor | None = None,
        extra_keys: Sequence[str | None] | None = None,
    ) -> None:
        self.rows, self.prefix_lens, self.extend_seq_lens = rows, prefix_lens, extend_seq_lens
        self.rids, self.tokens, self.extra_keys = tuple(rids), tokens, extra_keys
        self.committed_lens, self.allocated_lens = committed_lens, allocated_lens

    @classmethod
    def of_reqs(cls, reqs: Iterable[Any]) -> LiveRequests:
        """Read SGLang's ``Req`` objects, those that hold a table row: between two passes."""
        held = [req for req in reqs if req.kv.req_pool_idx is not None]
        committed = [int(req.kv.kv_committed_len) for req in held]
        tokens = [[*req.origin_input_ids, *req.output_ids] for req in held]
        return cls(
            rows=_ints(int(req.kv.req_pool_idx) for req in held),
            prefix_lens=_ints(committed),
            extend_seq_lens=_ints(0 for _ in held),
            rids=[str(req.rid) for req in held],
            tokens=tokens,
            committed_lens=_ints(committed),
            allocated_lens=_ints(int(req.kv.kv_allocated_len) for req in held),
            extra_keys=[getattr(req, "extra_key", None) for req in held],
        )

    @classmethod
    def of_batch(cls, batch: Any, *, computed: bool) -> LiveRequests:
        """Read a ``ForwardBatch``; ``computed``: its pass is over, so its new tokens count as cached."""
        rids = getattr(batch, "rids", None)
        count = int(batch.req_pool_indices.shape[0])
        bs = count if rids is None else min(count, len(rids))
        rows = to_host(batch.req_pool_indices[:bs]).to(torch.int64)
        prefix, extend, kept = (part.to(torch.int64) for part in _lengths(batch, bs))
        flat, lengths = getattr(batch, "req_all_ids_flat", None), getattr(batch, "req_all_ids_lens", None)
        tokens = None
        if flat is not None and lengths is not None:
            tokens = [part.tolist() for part in torch.split(to_host(flat), to_host(lengths).tolist())][:bs]
        return cls(
            rows=rows,
            prefix_lens=prefix + kept if computed else prefix,
            extend_seq_lens=torch.zeros_like(extend) if computed else extend,
            rids=[f"row {row}" for row in rows.tolist()] if rids is None else [str(rid) for rid in rids[:bs]],
            tokens=tokens,
        )

    def to_dump(self, table: torch.Tensor, row_ids: bool) -> Requests:
        """Make the dump's section; with ``row_ids`` of the table only the rows in use are kept."""
        used = used_rows(table, self.rows)
        rows = used.req_pool_indices if row_ids else self.rows
        kept = used.table if row_ids else to_host(table)
        pool = lengths = None
        if self.tokens is not None:
            pool, lengths = token_rows(rows, self.tokens, num_rows=kept.shape[0])
        return Requests(
            rids=self.rids,
            req_pool_indices=rows,
            prefix_lens=self.prefix_lens,
            extend_seq_lens=self.extend_seq_lens,
            req_to_token=kept,
            expected_tokens=pool,
            expected_tokens_valid_lens=lengths,
            row_ids=used.row_ids if row_ids else None,
            committed_lens=self.committed_lens,
            allocated_lens=self.allocated_lens,
            extra_keys=None if self.extra_keys is None else tuple(self.extra_keys),
        )

    def slots(self, table: torch.Tensor) -> torch.Tensor:
        """FULL slots of all cached tokens, int64 ``[n]``, on the host."""
        used = used_rows(table, self.rows)
        columns = torch.arange(used.table.shape[1])
        parts = [
            used.table[row][columns < length].to(torch.int64)
            for row, length in zip(used.req_pool_indices.tolist(), self.prefix_lens.tolist(), strict=True)
            if row >= 0
        ]
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64)


def _ints(values: Iterable[int]) -> torch.Tensor:
    return torch.tensor(list(values), dtype=torch.int64)


def _lengths(batch: Any, bs: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Cached tokens before the pass, tokens it computes, and how many of these it keeps; each on the host ``[bs]``."""
    mode = batch.forward_mode
    if mode.is_decode_or_idle():
        # Positions are where this pass writes; seq_lens lags or leads them by one, depending on the drafter.
        prefix = to_host(batch.positions[:bs]).to(torch.int64)
        return prefix, torch.ones_like(prefix), torch.ones_like(prefix)
    if mode.is_target_verify():
        prefix = to_host(batch.seq_lens[:bs])
        extend = torch.full_like(prefix, int(batch.spec_info.draft_token_num))
        return prefix, extend, torch.zeros_like(prefix)
    extend = to_host(batch.extend_seq_lens[:bs])
    if mode.is_draft_extend_v2():
        return to_host(batch.seq_lens[:bs]) - extend, extend, extend
    return to_host(batch.extend_prefix_lens[:bs]), extend, extend
