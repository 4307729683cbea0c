"""Names of the faults that can be injected, without torch or numba, for the command line.

The order is that of the faults' causes: allocator, table, contents, records, bytes, window, ranks, notes.
"""

from __future__ import annotations

from typing import Final

FAULT_NAMES: Final[tuple[str, ...]] = (
    "slot_owned_twice",
    "live_slot_on_free_list",
    "double_free",
    "duplicate_slot_in_request",
    "unlawful_sharing",
    "table_points_elsewhere",
    "stale_table_row",
    "row_recycled",
    "row_owned_twice",
    "stale_row_tail",
    "index_copy_stale",
    "slot_out_of_range",
    "unallocated_slot_in_prefix",
    "slots_never_written",
    "slots_exchanged",
    "foreign_block",
    "positions_shifted",
    "tokens_differ_from_request",
    "wrong_prefix_hit",
    "canary_field_bit_flip",
    "kv_bytes_changed",
    "restore_mismatch",
    "kv_bytes_copied",
    "canary_stale",
    "physical_range_overwritten",
    "padding_write",
    "swa_slot_evicted_in_window",
    "swa_mapping_points_elsewhere",
    "component_missing",
    "ranks_disagree",
    "nonfinite_kv",
    "stale_violation_log",
)
"""Every fault with a signature of its own; ``unexplained`` has none."""
