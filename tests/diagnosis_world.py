"""A small cache that can be built, broken in one place, and turned into a dump.

Everything is plain: records are Python ints hashed with the pure-int mixer, tables are numpy arrays. Tests break a
field and ask the diagnosis what it sees.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from canary_numba.check import check_dump
from canary_numba.diagnosis import diagnose
from canary_numba.dump import Dump, decode
from canary_numba.findings import Diagnosis, Finding
from canary_numba.layout import CANARY_CHAIN_ANCHOR
from canary_numba.mixing import splitmix64, splitmix64_mix3

ANCHOR = splitmix64(CANARY_CHAIN_ANCHOR)
WIDTH = 96
BYTES = 32


def signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


class World:
    """Three live requests ``a``, ``b``, ``c`` and a cached prompt of the finished ``old``.

    ``b`` shares its first 8 tokens (in whole pages) with ``a``. ``slots[name][p]`` is where token p lies; ``tokens``
    holds the ids. Slots are handed out in a shuffled order of pages.
    """

    def __init__(
        self,
        *,
        page: int = 1,
        mode: str = "all",
        tokens: bool = True,
        head: bool = True,
        halves: str = "KV",
        window: int = 0,
        seed: int = 0,
        num_slots: int = 257,
    ) -> None:
        self.rng = np.random.default_rng(seed)
        self.page, self.mode, self.has_tokens, self.window = page, mode, tokens, window
        self.num_slots = num_slots
        pages = self.rng.permutation(np.arange(1, num_slots // page)) * page
        self.pool = [int(first + i) for first in pages for i in range(page)]
        self.kinds = ["FULL", "SWA"] if window else ["FULL"]
        stages = ["TAIL", "HEAD"] if head else ["TAIL"]
        self.halves = list(halves)
        self.records = {
            (kind, stage, half): np.zeros((num_slots, 4), dtype=np.int64)
            for kind in self.kinds
            for stage in stages
            for half in self.halves
        }
        self.kv = {
            (kind, half): torch.zeros((num_slots, BYTES // 2), dtype=torch.bfloat16)
            for kind in self.kinds
            for half in self.halves
        }
        self.mapping = np.zeros(num_slots + 1, dtype=np.int64)
        self.window_pool = [int(s) for s in self.rng.permutation(np.arange(1, num_slots))]
        self.names = ["a", "b", "c"]
        self.tokens: dict[str, list[int]] = {}
        self.slots: dict[str, list[int]] = {}
        self.rows = {name: 3 + 2 * i for i, name in enumerate(self.names)}
        self.table = np.zeros((3 + 2 * len(self.names), WIDTH), dtype=np.int32)
        self.extend = dict.fromkeys(self.names, 0)
        self.extra: dict[str, Any] = {}
        self.more_requests: dict[str, Any] = {}
        self.radix: list[tuple[int, int, int]] = []
        self._fill()

    def _fill(self) -> None:
        unit = self.page * (-(-8 // self.page))
        lengths = {"a": 5 * unit, "b": 4 * unit, "c": 3 * unit, "old": 3 * unit}
        for name, length in lengths.items():
            prefix, slots = ([], [])
            if name == "b":
                prefix, slots = self.tokens["a"][:unit], self.slots["a"][:unit]
            tokens = prefix + self.rng.integers(1, 32000, length - len(prefix)).tolist()
            self.tokens[name] = tokens
            self.slots[name] = slots + self.take(length - len(prefix))
            h = ANCHOR
            for p, (token, slot) in enumerate(zip(tokens, self.slots[name], strict=True)):
                if p >= len(prefix):
                    self.fill_bytes(slot)
                    self.write(slot, token, p, h)
                h = splitmix64_mix3(h, token, p)
            if name != "old":
                self.table[self.rows[name], :length] = self.slots[name]
        for name in ("a", "old"):
            slots = self.slots[name]
            self.radix += [(slot, p, slots[p - 1] if p else -1) for p, slot in enumerate(slots)]
        self.unit = unit

    def take(self, count: int) -> list[int]:
        taken, self.pool = self.pool[:count], self.pool[count:]
        for slot in taken:
            if self.window:
                self.mapping[slot] = self.window_pool.pop()
        return taken

    def fill_bytes(self, slot: int) -> None:
        for (kind, _), content in self.kv.items():
            values = torch.from_numpy(self.rng.standard_normal(BYTES // 2)).to(torch.bfloat16)
            content[self.in_pool(kind, slot)] = values

    def in_pool(self, kind: str, slot: int) -> int:
        return int(self.mapping[slot]) if kind == "SWA" else slot

    def bytes_hash(self, kind: str, half: str, slot: int) -> int:
        if self.mode == "none":
            return 0
        raw = bytes(self.kv[kind, half][slot].view(torch.uint8).tolist())
        raw = raw[:16] if self.mode == "partial" else raw
        h = 0
        for i in range(0, len(raw), 8):
            h = splitmix64(h ^ int.from_bytes(raw[i : i + 8], "little"))
        return splitmix64(h)

    def write(self, slot: int, token: int, position: int, prev: int, kinds: str = "FULL SWA") -> None:
        """Write a record into every buffer, with the hash of the bytes that lie there now."""
        for (kind, stage, half), buf in self.records.items():
            if kind not in kinds:
                continue
            where = self.in_pool(kind, slot)
            real = self.bytes_hash(kind, half, where) if stage == "TAIL" else 0
            buf[where] = [token, position, signed(prev), signed(real)]

    def chain(self, name: str, upto: int) -> int:
        """PREV_HASH that belongs at position ``upto`` of a request."""
        h = ANCHOR
        for p in range(upto):
            h = splitmix64_mix3(h, self.tokens[name][p], p)
        return h

    def each(self, slots: list[int], values: list[int]) -> None:
        """Set the records of ``slots`` in every FULL buffer."""
        for (kind, _, _), buf in self.records.items():
            if kind == "FULL":
                buf[slots] = values

    def free(self) -> list[int]:
        return list(self.pool)

    def dump(self) -> Dump:
        rids = self.names
        lens = [len(self.tokens[name]) for name in rids]
        requests: dict[str, Any] = {
            "req_pool_indices": torch.tensor([self.rows[name] for name in rids]),
            "prefix_lens": torch.tensor(lens),
            "extend_seq_lens": torch.tensor([self.extend[name] for name in rids]),
            "req_to_token": torch.from_numpy(self.table.copy()),
            "rids": rids,
            **self.more_requests,
        }
        if self.has_tokens:
            pool = torch.zeros(self.table.shape, dtype=torch.int32)
            for name in rids:
                pool[self.rows[name], : len(self.tokens[name])] = torch.tensor(self.tokens[name], dtype=torch.int32)
            requests |= {"expected_tokens": pool, "expected_tokens_valid_lens": torch.tensor(lens)}
        mapping: dict[str, Any] = {
            "format": "canary-dump",
            "version": 1,
            "hash_mode": self.mode,
            "groups": [self._group(kind) for kind in self.kinds],
            "requests": requests,
            "radix": {
                "slot_indices": torch.tensor([n[0] for n in self.radix]),
                "positions": torch.tensor([n[1] for n in self.radix]),
                "prev_slot_indices": torch.tensor([n[2] for n in self.radix]),
            },
            "allocator": {
                "page_size": self.page,
                "size": self.num_slots - 1,
                "free_slots": torch.tensor(self.free(), dtype=torch.int64),
            },
            **self.extra,
        }
        return decode({key: value for key, value in mapping.items() if value is not None})

    def _group(self, kind: str) -> dict[str, Any]:
        halves = {}
        for half in self.halves:
            sources = [
                {
                    "name": f"layer0.{half.lower()}",
                    "tensor": self.kv[kind, half],
                    "page_size": 1,
                    "num_bytes_per_token": BYTES,
                    "read_bytes": BYTES,
                }
            ]
            buffers = {
                stage.lower(): torch.from_numpy(buf.copy()).view(torch.uint8)
                for (k, stage, h), buf in self.records.items()
                if (k, h) == (kind, half)
            }
            halves[half] = {**buffers, "sources": sources}
        more = {"swa_window_size": self.window, "full_to_swa_index_mapping": torch.from_numpy(self.mapping.copy())}
        return {"kind": kind, "halves": halves, **(more if kind == "SWA" else {})}

    def diagnose(self) -> Diagnosis:
        dump = self.dump()
        return diagnose(dump, check_dump(dump, engine="cpu"))

    def findings(self) -> list[Finding]:
        return list(self.diagnose().findings)

    def only(self, fault: str) -> Finding:
        """The one finding, which has to be ``fault``."""
        found = self.findings()
        assert [finding.fault for finding in found] == [fault], [(f.fault, f.summary) for f in found]
        return found[0]
