"""The words of the catalog of faults, in order of cause: what a fault explains comes after it."""

from __future__ import annotations

from typing import Any, Final

_REQUESTS: Final = ["requests"]
_ANY: Final = ["requests or radix"]
_BYTES: Final = ["requests or radix", "groups[].halves.K.sources", "hash_mode other than none"]

TEXTS: Final[dict[str, dict[str, Any]]] = {
    "row_owned_twice": {
        "summary": "Two live requests share one row of the table, and each overwrites the other's slots.",
        "signature": "Equal req_pool_indices of two live requests.",
        "mistaken_for": ["row_recycled"],
        "next_steps": [
            "Look at the row allocator: which path frees a row while its request lives on (abort, retract)?"
        ],
        "keys": _REQUESTS,
    },
    "slot_out_of_range": {
        "summary": "A table, mapping or prefix-cache entry is no slot of the pool: garbage, read as an address.",
        "signature": "An entry below 0, or at least as large as the buffer.",
        "mistaken_for": [],
        "next_steps": [
            "Look for reads of the table before its asynchronous copy has ended, and for uninitialised rows.",
            "Compare the entry with -1, INT_MAX and float bit patterns: the value often names its writer.",
        ],
        "keys": _ANY,
    },
    "unallocated_slot_in_prefix": {
        "summary": "The table holds 0, the padding slot, inside a request's cached prefix.",
        "signature": "Entry 0 below prefix_lens; verify skips slot 0, so no check fails. Or cached > allocated tokens.",
        "mistaken_for": ["slots_never_written"],
        "next_steps": [
            "Look at who writes the row after allocation, and whether a shorter allocation was not noticed."
        ],
        "keys": _REQUESTS,
    },
    "duplicate_slot_in_request": {
        "summary": "One request holds a slot at two positions: the later write destroyed the earlier token.",
        "signature": "A repeated entry in one row within its prefix; the record fits one of the positions.",
        "mistaken_for": ["table_points_elsewhere", "slots_exchanged"],
        "next_steps": ["Look at the allocator's bookkeeping across retries and chunks: a slot was handed out again."],
        "keys": _REQUESTS,
    },
    "slot_owned_twice": {
        "summary": "The allocator handed out a slot that somebody still owns, or an earlier owner wrote into it late.",
        "signature": "Two owners outside a common prefix; chain, position and token fail for the loser, and the record "
        "that belongs there stands nowhere.",
        "mistaken_for": ["table_points_elsewhere", "foreign_block"],
        "next_steps": [
            "Look at every path that frees slots (finish, abort, retract, eviction) for one that runs too early.",
            "Look for kernels still in flight on another stream when their slots are freed.",
            "Dump again with the allocator's free list and an event log: they name the step.",
        ],
        "keys": _ANY,
    },
    "table_points_elsewhere": {
        "summary": "A table entry was overwritten with another slot; the right slot is sound, but nobody points at it.",
        "signature": "As slot_owned_twice, but an orphan copy of the record that belongs there exists.",
        "mistaken_for": ["slot_owned_twice"],
        "next_steps": [
            "Look at what writes req_to_token: in-place updates, copies on other streams, off-by-one ranges.",
            "The prefix cache may still hold the right slot: the request can be repaired by restoring the entry.",
        ],
        "keys": _REQUESTS,
    },
    "stale_table_row": {
        "summary": "A recycled table row kept entries of an earlier owner over a range of positions.",
        "signature": "A run whose records chain among themselves with another history, at their own positions: chain "
        "breaks at its start and just after it; others hold the slots, or orphan copies exist.",
        "mistaken_for": ["foreign_block", "wrong_prefix_hit", "slot_owned_twice"],
        "next_steps": ["Look at the code that fills a row from prefix and new slots: which range did it leave out?"],
        "keys": _REQUESTS,
    },
    "row_recycled": {
        "summary": "The whole row of a request belongs to another request.",
        "signature": "From position 0 on, every record fits one other request and is sound for it.",
        "mistaken_for": ["wrong_prefix_hit"],
        "next_steps": ["Look at when a row returns to its pool: was it recycled before the request was done with it?"],
        "keys": ["requests.expected_tokens"],
    },
    "wrong_prefix_hit": {
        "summary": "The prefix cache returned another prompt's slots.",
        "signature": "The chain is sound; the first positions' tokens are another's exactly, and the suffix chains on.",
        "mistaken_for": ["tokens_differ_from_request", "row_recycled"],
        "next_steps": [
            "Look at the cache key: does it hold the salt, the adapter and the image hashes? Can hashes collide?",
            "Flush the prefix cache: later requests hit the same entry until then.",
        ],
        "keys": ["requests.expected_tokens"],
    },
    "index_copy_stale": {
        "summary": "The attention kernel was given other slots than the table names.",
        "signature": "kv_indices differ from req_to_token of the same step.",
        "mistaken_for": ["table_points_elsewhere"],
        "next_steps": [
            "Look at the order of table update and index building, and at buffers captured in a CUDA graph.",
            "Check that the copy is refreshed for this batch size and after a retract.",
        ],
        "keys": ["requests.kv_indices"],
    },
    "slots_exchanged": {
        "summary": "The request's own tokens stand at other positions: pages arrived in each other's place, or twice.",
        "signature": "Records fit this same request at other positions; the delta is constant over a page.",
        "mistaken_for": ["positions_shifted", "foreign_block"],
        "next_steps": [
            "Look at the order of pages in the transfer or load-back: source and target lists sorted alike?"
        ],
        "keys": _REQUESTS,
    },
    "foreign_block": {
        "summary": "Whole pages hold another sequence's own sound chain, and that sequence is gone.",
        "signature": "A page-aligned run; chain breaks at its start and after its end only; bytes match records.",
        "mistaken_for": ["stale_table_row", "slot_owned_twice"],
        "next_steps": [
            "Look at the key under which blocks are offloaded: two contents may share it. Check the restore."
        ],
        "keys": _ANY,
    },
    "swa_mapping_points_elsewhere": {
        "summary": "The full-to-window mapping is stale or crossed.",
        "signature": "A window record fits another request, or two live slots map to one; the full pool is sound.",
        "mistaken_for": ["table_points_elsewhere", "component_missing"],
        "next_steps": ["Look at who updates the mapping when slots are freed and reused, and in which order."],
        "keys": ["groups of kind SWA", "requests"],
    },
    "swa_slot_evicted_in_window": {
        "summary": "A sliding-window slot was released while its position is still inside the window.",
        "signature": "Mapping entry 0 for a position inside the window; verify skips slot 0, so no check fails.",
        "mistaken_for": ["unallocated_slot_in_prefix"],
        "next_steps": ["Look at the eviction bound: window size, page rounding, and which length it is counted from."],
        "keys": ["groups of kind SWA", "requests"],
    },
    "component_missing": {
        "summary": "One pool or half was restored or moved, and another was not.",
        "signature": "At the same positions one group (or half) is sound, and the other zero or old.",
        "mistaken_for": ["slots_never_written", "swa_mapping_points_elsewhere"],
        "next_steps": ["Look at the restore or transfer path: does it list every pool of a hybrid model?"],
        "keys": ["a second group or half", "requests or radix"],
    },
    "slots_never_written": {
        "summary": "Slots count as cached, but nothing was ever written to them.",
        "signature": "All-zero records over a run: chain, position, token fail on the first, position and token on the "
        "rest (a chain of zeros looks sound), the chain just after.",
        "mistaken_for": ["component_missing", "unallocated_slot_in_prefix"],
        "next_steps": [
            "Look at skipped prefill, lost pages in a transfer, failed load-back: what counts tokens as cached?",
            "Check that completion is awaited for every page before the request is scheduled.",
        ],
        "keys": _ANY,
    },
    "positions_shifted": {
        "summary": "Positions are off by a constant from some point on.",
        "signature": "Only positions differ, by one constant; the chain is sound; it ends with a chunk or request.",
        "mistaken_for": ["canary_field_bit_flip", "slots_exchanged"],
        "next_steps": [
            "Look at how positions are computed for chunks: offset forgotten (delta = -start) or added twice."
        ],
        "keys": _REQUESTS,
    },
    "tokens_differ_from_request": {
        "summary": "Other token ids were fed or committed than the request owns.",
        "signature": "Tokens differ at some positions, and the chain is built on them.",
        "mistaken_for": ["wrong_prefix_hit"],
        "next_steps": [
            "Where does it begin: at a chunk's end (draft rotation), at the prompt's end (first token after a "
            "transfer), after it (rejected drafts kept)?",
        ],
        "keys": ["requests.expected_tokens"],
    },
    "physical_range_overwritten": {
        "summary": "A kernel wrote over a contiguous piece of the pool, whoever owns it.",
        "signature": "Failing slots are neighbours in slot number, not in a request's order; often one value.",
        "mistaken_for": ["kv_bytes_changed", "canary_field_bit_flip"],
        "next_steps": [
            "Find what else writes near these addresses: run the suspect kernels under compute-sanitizer.",
            "Slots in use by nobody may be hit as well: do not trust them before they are rewritten.",
        ],
        "keys": _ANY,
    },
    "padding_write": {
        "summary": "Padded rows of a batch were written into real slots.",
        "signature": "Failures only at the last slot, in slot 0's page, or at one offset of many pages.",
        "mistaken_for": ["physical_range_overwritten", "kv_bytes_changed"],
        "next_steps": [
            "Look at the out_cache_loc of padded rows, above all in captured graphs: it must be slot 0 or negative."
        ],
        "keys": _BYTES,
    },
    "canary_stale": {
        "summary": "K/V bytes were moved or restored without their records.",
        "signature": "Chain, position, token, bytes differ on a run, while the bytes hash to another record's value.",
        "mistaken_for": ["kv_bytes_copied", "slot_owned_twice"],
        "next_steps": ["Make the move copy the canary buffers too: the cache itself may be sound."],
        "keys": _BYTES,
    },
    "restore_mismatch": {
        "summary": "K/V bytes differ on exactly a restored or received range.",
        "signature": "Only bytes differ, and the range is a restore or receive event's: wiped, cut short, or whole.",
        "mistaken_for": ["kv_bytes_changed"],
        "next_steps": [
            "Compare the transfer's byte count, layer list and completion with the event; rerun with checksums."
        ],
        "keys": [*_BYTES, "events"],
    },
    "kv_bytes_copied": {
        "summary": "K/V holds another slot's bytes.",
        "signature": "Only bytes differ, and they hash to what another slot's record says.",
        "mistaken_for": ["kv_bytes_changed", "canary_stale"],
        "next_steps": [
            "Look at copies and defragmentation: the rule between source and target slots names the index bug."
        ],
        "keys": _BYTES,
    },
    "kv_bytes_changed": {
        "summary": "K/V bytes changed after they were fingerprinted.",
        "signature": "Only bytes differ: TAIL and SWEEP fail, HEAD does not.",
        "mistaken_for": ["physical_range_overwritten", "restore_mismatch"],
        "next_steps": [
            "One slot: memory error or stray write; check ECC counters. A run up to the newest token: a late "
            "write; look at stream order between the K/V write and the canary's tail.",
            "If the prefix cache holds the slot, flush it: later requests read the same bytes.",
        ],
        "keys": _BYTES,
    },
    "canary_field_bit_flip": {
        "summary": "A record itself was damaged: memory error or stray write.",
        "signature": "One field differs from what chain, neighbours and the other buffers say by one bit, or a few.",
        "mistaken_for": ["physical_range_overwritten", "tokens_differ_from_request"],
        "next_steps": [
            "Check ECC counters of the device. If it recurs at one slot, look for writes past a tensor's end there."
        ],
        "keys": _ANY,
    },
    "ranks_disagree": {
        "summary": "Tensor-parallel ranks processed different tokens, positions or slots.",
        "signature": "Same step and request, but ranks differ in records or tables (bytes may: heads are sharded).",
        "mistaken_for": ["tokens_differ_from_request"],
        "next_steps": [
            "Look for sampling or scheduling that is not the same on every rank: seeds, timeouts, unordered sets."
        ],
        "keys": ["a dump of another rank"],
    },
    "unexplained": {
        "summary": "A pattern that fits no known fault, with all that is known of it.",
        "signature": "None of the others'.",
        "mistaken_for": [],
        "next_steps": [
            "Dump again with requests' tokens, free lists, finished requests and K/V bytes: each names more faults."
        ],
        "keys": _ANY,
    },
    "live_slot_on_free_list": {
        "summary": "Slots in use are on the free list: the next allocation hands them out.",
        "signature": "Slots of a live request or of the prefix cache in free_slots; every check passes.",
        "mistaken_for": ["slot_owned_twice"],
        "next_steps": ["Look at every path that frees: a free without a reference count, or with a stale length."],
        "keys": ["allocator.free_slots"],
    },
    "double_free": {
        "summary": "A slot stands on the free list twice: it will be handed out to two requests.",
        "signature": "Duplicates in free_slots.",
        "mistaken_for": ["live_slot_on_free_list"],
        "next_steps": ["Look for two paths that free the same request, such as abort and finish in one step."],
        "keys": ["allocator.free_slots"],
    },
    "unlawful_sharing": {
        "summary": "A request is about to write into a slot that somebody else holds.",
        "signature": "A slot of this step's extend range is owned by another request or the prefix cache.",
        "mistaken_for": ["slot_owned_twice"],
        "next_steps": ["Stop before the step runs, if you can: the write will destroy the other's token."],
        "keys": ["requests.extend_seq_lens"],
    },
    "stale_row_tail": {
        "summary": "Entries past a row's length still point at others' slots.",
        "signature": "Non-zero entries at positions at or past prefix + extend that others own.",
        "mistaken_for": ["stale_table_row"],
        "next_steps": ["Harmless until a length grows over them without new slots. Clear rows when they are recycled."],
        "keys": _REQUESTS,
    },
    "nonfinite_kv": {
        "summary": "K/V bytes are NaN or Inf and were so when they were written.",
        "signature": "Bytes decode to non-finite in the source's dtype, with an intact fingerprint; slot 0 counts too.",
        "mistaken_for": ["physical_range_overwritten"],
        "next_steps": [
            "Look at the model's numerics (fp8 scales, overflow), and zero slots that masked attention still reads."
        ],
        "keys": ["groups[].halves.K.sources", "sources of a floating dtype", "at most 8 GiB of K/V bytes"],
    },
    "stale_violation_log": {
        "summary": "The live ring holds rows that no longer reproduce.",
        "signature": "Rows in violation_log whose slots now verify.",
        "mistaken_for": [],
        "next_steps": ["Dump at the first violation: later steps free and reuse the slots."],
        "keys": ["violation_log"],
    },
}
