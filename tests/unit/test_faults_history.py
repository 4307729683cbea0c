"""The simulated server: what makes a history real, and that nothing in it is wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from canary_numba.check import check_dump
from canary_numba.dump import Dump, decode, encode
from canary_numba.faults import HistoryOptions, draw_options, simulate
from canary_numba.faults.pages import FreePages
from canary_numba.faults.prefix_cache import PrefixCache
from canary_numba.layout import RealKvHashMode

SERVERS = {
    "plain": HistoryOptions(),
    "pages of 4, window": HistoryOptions(page_size=4, window=16, dtype="float16", paged_sources=True),
    "pages of 16, float8": HistoryOptions(page_size=16, dtype="float8_e4m3fn", interleaved=True, in_flight=True),
    "no prefix cache, one half": HistoryOptions(prefix_cache=False, halves="K", hash_mode="partial", head=False),
    "idle V half, draft offset": HistoryOptions(halves="K-", offset=1, page_size=4, compact_rows=True),
    "no hashes, no tokens": HistoryOptions(hash_mode="none", tokens=False, window=24),
}


@pytest.fixture(scope="module", params=SERVERS)
def dump(request: pytest.FixtureRequest) -> Dump:
    return simulate(5, options=SERVERS[request.param])


def owned(dump: Dump) -> set[int]:
    requests = dump.requests
    assert requests is not None
    found: set[int] = set()
    for row, prefix, extend in zip(
        requests.req_pool_indices.tolist(),
        requests.prefix_lens.tolist(),
        requests.extend_seq_lens.tolist(),
        strict=True,
    ):
        found.update(requests.req_to_token[row, : prefix + extend].tolist())
    if dump.radix is not None:
        found.update(dump.radix.slot_indices.tolist())
    return found


def test_every_check_passes(dump: Dump) -> None:
    result = check_dump(dump, engine="cpu")
    assert result.num_violations == 0
    assert sum(check.num_entries for check in result.checks) > 50


def test_it_is_a_dump_of_the_format(dump: Dump) -> None:
    assert decode(encode(dump)).requests is not None


def test_the_free_list_holds_exactly_the_pages_nobody_refers_to(dump: Dump) -> None:
    allocator = dump.allocator
    assert allocator is not None
    free = allocator.free_slots.tolist()
    assert len(free) == len(set(free))
    page = allocator.page_size
    used = {slot // page for slot in owned(dump)}
    pages = set(range(1, allocator.size // page + 1))
    assert {slot // page for slot in free} == pages - used
    assert len(free) == page * len(pages - used)


def test_the_windows_free_list_holds_exactly_the_slots_that_nothing_maps_to(dump: Dump) -> None:
    allocator, window = dump.allocator, dump.groups[-1]
    if allocator is None or window.full_to_swa_index_mapping is None:
        pytest.skip("this server has no window")
    assert allocator.swa_free_slots is not None
    assert allocator.swa_size is not None
    mapped = window.full_to_swa_index_mapping[:-1]
    mapped = mapped[mapped > 0].tolist()
    assert len(mapped) == len(set(mapped))
    first = allocator.page_size
    everything = set(range(first, allocator.swa_size + first))
    assert set(allocator.swa_free_slots.tolist()) == everything - set(mapped)


def test_every_position_in_a_window_has_a_window_slot() -> None:
    dump = simulate(3, options=HistoryOptions(page_size=4, window=16))
    requests, window = dump.requests, dump.groups[1]
    assert requests is not None
    assert window.full_to_swa_index_mapping is not None
    evicted = 0
    for row, prefix in zip(requests.req_pool_indices.tolist(), requests.prefix_lens.tolist(), strict=True):
        mapped = window.full_to_swa_index_mapping[requests.req_to_token[row, :prefix].long()]
        assert (mapped[max(0, prefix - 16) :] > 0).all()
        evicted += int((mapped == 0).sum())
    assert evicted


def test_requests_share_prefixes_and_the_cache_outlives_requests() -> None:
    shared = cached_only = 0
    for seed in range(6):
        dump = simulate(seed, options=HistoryOptions())
        requests, radix = dump.requests, dump.radix
        assert requests is not None
        assert radix is not None
        rows = [
            requests.req_to_token[row, :n].tolist()
            for row, n in zip(requests.req_pool_indices.tolist(), requests.prefix_lens.tolist(), strict=True)
        ]
        shared += sum(a[0] == b[0] for i, a in enumerate(rows) for b in rows[:i])
        cached_only += len(set(radix.slot_indices.tolist()) - {slot for row in rows for slot in row})
    assert shared
    assert cached_only


def test_slots_are_reused_and_stale_records_lie_on_the_free_list() -> None:
    dump = simulate(1, options=HistoryOptions(steps=40))
    assert dump.allocator is not None
    assert dump.finished is not None
    records = dump.groups[0].halves["K"].buffers["TAIL"]
    assert records[dump.allocator.free_slots].any()
    assert dump.finished.rids
    assert {"evict", "free", "alloc"} & {event.kind for event in dump.events}


def test_a_step_in_flight_has_slots_without_records_yet() -> None:
    dump = simulate(2, options=HistoryOptions(in_flight=True))
    requests = dump.requests
    assert requests is not None
    assert int(requests.extend_seq_lens.sum()) > 0
    assert requests.kv_indices is not None
    total = int((requests.prefix_lens + requests.extend_seq_lens).sum())
    assert requests.kv_indices.indices.shape[0] == total
    assert simulate(2, options=HistoryOptions()).requests is not None


def test_the_same_seed_gives_the_same_history() -> None:
    first, second = encode(simulate(7)), encode(simulate(7))
    assert torch.equal(first["groups"][0]["halves"]["K"]["tail"], second["groups"][0]["halves"]["K"]["tail"])
    assert torch.equal(first["requests"]["req_to_token"], second["requests"]["req_to_token"])
    other = encode(simulate(8))
    assert first["requests"]["rids"] != other["requests"]["rids"] or not torch.equal(
        first["requests"]["prefix_lens"], other["requests"]["prefix_lens"]
    )


def test_options_reach_the_dump() -> None:
    options = HistoryOptions(hash_mode="partial", halves="K", tokens=False, layers=3, compact_rows=True)
    dump = simulate(0, options=options)
    assert dump.hash_mode == RealKvHashMode.PARTIAL
    assert set(dump.groups[0].halves) == {"K"}
    assert len(dump.groups[0].halves["K"].sources) == 3
    assert dump.requests is not None
    assert dump.requests.expected_tokens is None
    assert dump.requests.row_ids is not None


def test_drawn_options_are_of_all_kinds() -> None:
    drawn = [draw_options(seed) for seed in range(60)]
    assert {options.page_size for options in drawn} == {1, 4, 16}
    assert {options.hash_mode for options in drawn} == {"none", "partial", "all"}
    assert {options.halves for options in drawn} == {"KV", "K", "K-"}
    assert {bool(options.window) for options in drawn} == {True, False}
    assert {options.tokens for options in drawn} == {True, False}
    assert draw_options(4) == draw_options(4)


def test_broken_bytes_do_not_pass() -> None:
    # The simulation would prove nothing if the checks did not look at what it wrote.
    dump = simulate(0, options=replace(SERVERS["plain"], layers=1))
    assert dump.requests is not None
    slot = int(dump.requests.req_to_token[dump.requests.req_pool_indices[0], 3])
    tensor = dump.groups[0].halves["V"].sources[0].tensor
    tensor[slot, 0] += 1
    assert check_dump(dump, engine="cpu").num_violations > 0


def test_free_pages_are_handed_out_once() -> None:
    free = FreePages(np.random.default_rng(0), 5, 4)
    taken = free.take(5)
    assert sorted(taken) == [1, 2, 3, 4, 5]
    with pytest.raises(RuntimeError, match="too small"):
        free.take(1)
    free.give([3])
    assert free.slots() == [12, 13, 14, 15]


def test_the_prefix_cache_keeps_extra_keys_apart_and_evicts_the_oldest_leaf() -> None:
    cache = PrefixCache(2, 0)
    tokens = [1, 2, 3, 4]
    first = cache.add(cache.root(None), cache.key(tokens, 0), 7, used=1)
    cache.add(first, cache.key(tokens, 1), 8, used=2)
    cache.add(cache.root("adapter"), cache.key(tokens, 0), 9, used=3)
    assert [node.page for node in cache.match(tokens, 2, None)] == [7, 8]
    assert [node.page for node in cache.match(tokens, 2, "adapter")] == [9]
    assert cache.match([1, 2, 9, 9], 2, None) == [first]
    oldest = cache.remove_oldest()
    assert oldest is not None
    assert oldest.page == 8
    first.locks = 1
    left = cache.remove_oldest()
    assert left is not None
    assert left.page == 9
    assert cache.remove_oldest() is None
