"""A whole dump redacted, part by part."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import torch

from canary_numba.check import CheckResult, check_dump
from canary_numba.diagnosis.chains import Int64s
from canary_numba.diagnosis.view import DumpView
from canary_numba.dump.model import Dump, Finished, Group, LiveLog, Requests
from canary_numba.layout import (
    CANARY_FIELD_REAL_KV_HASH,
    CANARY_FIELDS_PER_SLOT,
    VIOLATION_FIELD_EXPECTED_AUX,
    VIOLATION_FIELD_EXPECTED_TOKEN,
    VIOLATION_FIELD_FAIL_REASON_BITS,
    VIOLATION_FIELD_STORED_CHAIN_HASH,
    VIOLATION_FIELD_STORED_TOKEN,
    FailReason,
)
from canary_numba.redact.chains import Known, hide_chains
from canary_numba.redact.kv import HiddenBytes
from canary_numba.redact.secret import Secret

CONTEXT_KEPT: Final[tuple[str, ...]] = ("step", "tp_rank", "tp_size", "pp_rank", "pp_size", "dp_rank", "dp_size")
"""Facts of the context that stay: they say which rank and step a dump is of, and comparing ranks needs them."""

_WRITE = int(FailReason.WRITE_TOKEN_MISMATCH | FailReason.WRITE_POSITION_MISMATCH)


def redact_dump(
    dump: Dump,
    key: bytes,
    *,
    keep_kv: bool = False,
    keep_context: bool = False,
    hide_names: bool = False,
    result: CheckResult | None = None,
) -> Dump:
    """Hide the content of a dump so that it checks and diagnoses the same.

    Parameters
    ----------
    dump
        The dump; it stays as it is.
    key
        The secret. Dumps redacted under one key can still be compared, such as the ranks of a step.
    keep_kv
        Leave K/V bytes, and the hashes of them, as they are. With the model's weights they tell the tokens.
    keep_context
        Keep every fact of the context, not only those of :data:`CONTEXT_KEPT`.
    hide_names
        Replace request ids and the sources of events by keyed hashes. (Extra keys always are.)
    result
        A check of the dump, if there is one already; else it is checked on the CPU.
    """
    secret = Secret(key)
    view = DumpView(dump, result or check_dump(dump, engine="cpu"))
    hidden, known = hide_chains(secret, dump, list(view.groups.values()))
    groups = tuple(
        _group(secret, dump, group, fields, keep_kv) for group, fields in zip(dump.groups, hidden, strict=True)
    )
    name = secret.name if hide_names else str
    return replace(
        dump,
        groups=groups,
        requests=None if dump.requests is None else _requests(secret, dump.requests, hide_names),
        finished=None if dump.finished is None else _finished(secret, dump.finished, hide_names),
        violation_log=None if dump.violation_log is None else _live_log(secret, known, dump.violation_log),
        events=tuple(
            replace(event, request=name(event.request) if event.request else "", source=name(event.source))
            if event.source
            else replace(event, request=name(event.request) if event.request else "")
            for event in dump.events
        ),
        context={fact: value for fact, value in dump.context.items() if keep_context or fact in CONTEXT_KEPT},
        path=None,
    )


def _group(secret: Secret, dump: Dump, group: Group, fields: dict[str, Int64s], keep_kv: bool) -> Group:
    halves = {}
    for half_name, half in group.halves.items():
        bytes_of = None if keep_kv else HiddenBytes(secret, half, dump.hash_mode)
        changed = half if bytes_of is None else bytes_of.half
        hidden = {stage: _buffer(buf, fields[f"{stage}_{half_name}"], bytes_of) for stage, buf in half.buffers.items()}
        halves[half_name] = replace(changed, head=hidden.get("HEAD"), tail=hidden.get("TAIL"))
    return replace(group, halves=halves)


def _buffer(old: torch.Tensor, fields: Int64s, bytes_of: HiddenBytes | None) -> torch.Tensor:
    """A record buffer with new fields; what stands past the 32 bytes of a record is left out."""
    new = np.zeros((old.shape[0], old.shape[1] // 8), dtype=np.int64)
    records = old.numpy().view(np.int64)[:, :CANARY_FIELDS_PER_SLOT]
    stored = np.ascontiguousarray(records[:, CANARY_FIELD_REAL_KV_HASH]).view(np.uint64)
    # A record that is one repeated value was overwritten: it tells nothing, and the value is a sign of what did it.
    pattern = (records == records[:, :1]).all(axis=1)
    new[:, :3] = fields
    new[:, 3] = (stored if bytes_of is None else bytes_of.stored(stored)).view(np.int64)
    new[pattern, :4] = records[pattern]
    return torch.from_numpy(new.view(np.uint8))


def _hide_int32(secret: Secret, tokens: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(secret.tokens(tokens.numpy().astype(np.int64)).astype(np.int32))


def _requests(secret: Secret, requests: Requests, hide_names: bool) -> Requests:
    tokens = requests.expected_tokens
    if tokens is not None:
        assert requests.expected_tokens_valid_lens is not None
        # What stands past a request's tokens may be those of an earlier one.
        width = torch.zeros(tokens.shape[0], dtype=torch.int64)
        rows = requests.req_pool_indices
        inside = (rows >= 0) & (rows < tokens.shape[0])
        width.scatter_reduce_(0, rows[inside], requests.expected_tokens_valid_lens[inside].clamp(min=0), "amax")
        used = torch.arange(tokens.shape[1])[None, :] < width[:, None]
        tokens = torch.where(used, _hide_int32(secret, tokens), 0)
    keys = requests.extra_keys
    return replace(
        requests,
        expected_tokens=tokens,
        rids=tuple(map(secret.name, requests.rids)) if hide_names else requests.rids,
        extra_keys=None if keys is None else tuple(None if one is None else secret.name(one) for one in keys),
    )


def _finished(secret: Secret, finished: Finished, hide_names: bool) -> Finished:
    rids = tuple(map(secret.name, finished.rids)) if hide_names else finished.rids
    return replace(finished, rids=rids, tokens=_hide_int32(secret, finished.tokens))


def _live_log(secret: Secret, known: Known, log: LiveLog) -> LiveLog:
    ring = log.ring.numpy().copy()
    for field in (VIOLATION_FIELD_STORED_TOKEN, VIOLATION_FIELD_EXPECTED_TOKEN):
        ring[:, field] = secret.tokens(ring[:, field])
    unused = np.arange(ring.shape[0]) >= log.write_index
    for field in (VIOLATION_FIELD_STORED_CHAIN_HASH, VIOLATION_FIELD_EXPECTED_AUX):
        words = np.ascontiguousarray(ring[:, field]).view(np.uint64)
        hit, new = known.find(words)
        new[~hit] = secret.words(words[~hit], b"chain")
        # A write row's auxiliary field is a position.
        kept = (ring[:, VIOLATION_FIELD_FAIL_REASON_BITS] & _WRITE) != 0
        if field == VIOLATION_FIELD_EXPECTED_AUX:
            new[kept] = words[kept]
        ring[:, field] = new.view(np.int64)
    ring[unused] = 0
    return replace(log, ring=torch.from_numpy(ring))
