"""Fingerprints of slots on their own, on every engine, against the naive oracle."""

from __future__ import annotations

import harness
import naive
import strategies
from hypothesis import given
from hypothesis import strategies as st

from canary_numba.launch import launch_real_kv_hash_kernel
from canary_numba.layout import RealKvHashMode

MODES = st.sampled_from([RealKvHashMode.PARTIAL, RealKvHashMode.ALL])


@given(data=st.data(), mode=MODES)
def test_hashes_match_the_oracle(engine: str, data: st.DataObject, mode: RealKvHashMode) -> None:
    num_slots = data.draw(st.integers(0, 9))
    sources = tuple(data.draw(st.lists(strategies.sources(num_slots), min_size=1, max_size=4)))
    # More slots than a thread or a group of them takes at once, of the pool and beside it, and some twice.
    slots = data.draw(st.lists(st.integers(-1, num_slots + 1) | strategies.int64s, max_size=140))
    before = data.draw(st.lists(strategies.int64s, min_size=len(slots), max_size=len(slots)))
    device = harness.device_of(engine)
    out = strategies.int64_tensor(before).to(device)
    launch_real_kv_hash_kernel(
        real_kv_sources=harness.copy_to(device, sources),
        real_kv_hash_mode=mode,
        slot_indices=strategies.int64_tensor(slots).to(device),
        hashes_out=out,
        engine=engine,
    )
    plain = [harness.source_of(source) for source in sources]
    expected = [naive.fold_sources(acc, plain, int(mode), slot) for slot, acc in zip(slots, before, strict=True)]
    assert out.tolist() == expected
