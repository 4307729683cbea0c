"""What all ranks must agree on about a request, position by position."""

from __future__ import annotations

import numpy as np
import torch

from canary_numba.check_plans import map_slots
from canary_numba.dump.model import Dump, Group, Requests
from canary_numba.layout import (
    CANARY_FIELD_POSITION,
    CANARY_FIELD_PREV_HASH,
    CANARY_FIELD_TOKEN,
    REQ_POOL_IDX_PADDING,
)

FIELDS = {"tokens": CANARY_FIELD_TOKEN, "positions": CANARY_FIELD_POSITION, "chain": CANARY_FIELD_PREV_HASH}
"""Fields of a record, by what they are called in a finding. The real-KV hash is left out: heads are sharded."""


def columns_of(dump: Dump, index: int) -> dict[str, np.ndarray]:
    """Collect what is known of request number ``index``, each as int64 ``[positions, columns]``.

    ``slots`` (as the table has them, of cached and new tokens), ``expected tokens`` (where the dump has them), and by
    pool the tokens, positions and chain hashes of the records at the cached slots. Slots outside a pool or its mapping
    have records of zeros.
    """
    requests = dump.requests
    assert requests is not None
    slots = _slots(requests, index)
    columns = {"slots": slots[:, None].numpy()}
    if requests.expected_tokens is not None and requests.expected_tokens_valid_lens is not None:
        row = int(requests.req_pool_indices[index])
        valid = int(requests.expected_tokens_valid_lens[index])
        there = 0 <= row < requests.expected_tokens.shape[0]
        tokens = requests.expected_tokens[row, :valid] if there else requests.expected_tokens.new_empty(0)
        # By cached position: a draft pool's slots hold the token of the next one.
        offset = min(group.kv_token_id_vs_position_offset for group in dump.groups)
        columns["expected tokens"] = tokens[offset:].to(torch.int64)[:, None].numpy()
    for group in dump.groups:
        columns |= _records(group, slots[: int(requests.prefix_lens[index])])
    return columns


def _slots(requests: Requests, index: int) -> torch.Tensor:
    row, length = (
        int(requests.req_pool_indices[index]),
        int(requests.prefix_lens[index] + requests.extend_seq_lens[index]),
    )
    there = row != REQ_POOL_IDX_PADDING and 0 <= row < requests.req_to_token.shape[0]
    return requests.req_to_token[row, :length].to(torch.int64) if there else torch.empty(0, dtype=torch.int64)


def _records(group: Group, slots: torch.Tensor) -> dict[str, np.ndarray]:
    own = map_slots(slots, group.full_to_swa_index_mapping)
    if group.swa_window_size:
        # Slots before the window are given up at leisure: each rank may be at another point of that.
        own = torch.where(torch.arange(own.shape[0]) < own.shape[0] - group.swa_window_size, -1, own)
    columns = {}
    if group.full_to_swa_index_mapping is not None:
        columns[f"slots of {group.kind}"] = own[:, None].numpy()
    for name, half in group.halves.items():
        records = next(reversed(half.buffers.values())).view(torch.int64)
        inside = (own > 0) & (own < half.num_slots)
        found = torch.where(inside[:, None], records[own.where(inside, 0)], 0)
        for field, column in FIELDS.items():
            columns[f"{field} of {name} {group.kind}"] = found[:, column : column + 1].numpy()
    return columns
