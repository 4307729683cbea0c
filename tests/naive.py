"""Slow, obvious twins of every kernel in plain Python integers: the oracle that all engines are checked against.

Lists and bytes in, rows out. Written from the semantics alone: it shares no constant and no code with the package, so
that a slip made there is not repeated here. All 64-bit values are signed, as a tensor shows them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

U64 = 2**64
OUT_OF_RANGE = 2**63 - 1
NONE, PARTIAL, ALL = 0, 1, 2

Record = list[int]
"""[token, position, prev_hash, real_kv_hash]"""
Row = tuple[int, ...]
"""(kind, slot, position, stored token, expected token, stored chain hash, expected aux, reason bits)"""


def signed(value: int) -> int:
    """Read the low 64 bits of ``value`` as two's complement."""
    value %= U64
    return value - U64 if value >= 2**63 else value


def splitmix64(x: int) -> int:
    x %= U64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) % U64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) % U64
    return x ^ (x >> 31)


def mix3(a: int, b: int, c: int) -> int:
    h = splitmix64(a)
    h = splitmix64(h ^ (b % U64))
    return splitmix64(h ^ (c % U64))


HEAD = signed(splitmix64(0xC0FFEE1234567890))


def slot_hash(record: Record) -> int:
    token, position, prev_hash, _ = record
    return signed(mix3(prev_hash, token, position))


@dataclass
class Source:
    """K/V bytes: one ``bytes`` a row."""

    rows: list[bytes]
    page_size: int
    num_bytes_per_token: int
    read_bytes: int

    @property
    def num_slots(self) -> int:
        return len(self.rows) * self.page_size

    def read(self, slot: int, mode: int) -> bytes:
        begin = (slot % self.page_size) * self.num_bytes_per_token
        length = min(16, self.num_bytes_per_token) if mode == PARTIAL else self.read_bytes
        return self.rows[slot // self.page_size][begin : begin + length]


def fold_bytes(data: bytes) -> int:
    acc = 0
    for begin in range(0, len(data), 8):
        acc = splitmix64(acc ^ int.from_bytes(data[begin : begin + 8], "little"))
    return acc


def fold_sources(acc: int, sources: list[Source], mode: int, slot: int) -> int:
    """Go on from ``acc`` over every source; a slot outside one of them leaves it as it is."""
    if any(not 0 <= slot < source.num_slots for source in sources):
        return acc
    for source in sources:
        acc = splitmix64((acc % U64) ^ fold_bytes(source.read(slot, mode)))
    return signed(acc)


def real_kv_hash(sources: list[Source], mode: int, slot: int) -> int:
    return 0 if mode == NONE else fold_sources(0, sources, mode, slot)


@dataclass
class Outcome:
    """What a launch reports: rows in order, the plan index each is about, slots counted, slots never written."""

    rows: list[Row] = field(default_factory=list)
    entries: list[int] = field(default_factory=list)
    slot_run: int = 0
    never_written: int = 0

    def add(self, entry: int, row: Row) -> None:
        self.rows.append(row)
        self.entries.append(entry)


def verify(
    *,
    records: list[Record],
    kind: int,
    slots: list[int],
    tokens: list[int],
    positions: list[int],
    prevs: list[int],
    num_valid: int,
    enable: int,
    check_token: bool,
    sources: list[Source],
    mode: int,
    zero_init_okay: bool = False,
    real_kv_hashes: list[int] | None = None,
) -> Outcome:
    out = Outcome()
    if enable == 0:
        return out
    for i in range(min(max(num_valid, 0), len(slots))):
        out.slot_run += 1
        slot, prev = slots[i], prevs[i]
        if slot == 0:
            continue
        outside = not 0 <= slot < len(records)
        stored = [0, 0, 0, 0] if outside else records[slot]
        if zero_init_okay and not outside and stored == [0, 0, 0, 0]:
            out.never_written += 1
            continue
        token, position, prev_hash, stored_real_kv = stored
        expected_token = tokens[i] if check_token else -1
        bits = 0
        if prev < 0:
            expected_hash = HEAD
        elif prev == 0:
            expected_hash = prev_hash
        elif prev < len(records):
            expected_hash = slot_hash(records[prev])
        else:
            expected_hash = prev_hash
            bits |= 128
        if outside:
            bits |= 64
        else:
            if prev_hash != expected_hash:
                bits |= 1
            if position != positions[i]:
                bits |= 2
            if real_kv_hashes is not None:
                expected_real_kv = real_kv_hashes[slot]
            else:
                expected_real_kv = real_kv_hash(sources, mode, slot)
            if stored_real_kv != expected_real_kv:
                bits |= 4
            if expected_token != -1 and token != expected_token:
                bits |= 32
        if bits:
            out.add(i, (kind, slot, position, token, expected_token, prev_hash, expected_hash, bits))
    return out


def write(
    *,
    records: list[Record],
    kind: int,
    offsets: list[int],
    seeds: list[int],
    num_valid_reqs: int,
    tokens: list[int],
    positions: list[int],
    slots: list[int],
    expected_tokens: list[int] | None,
    expected_positions: list[int] | None,
    assert_chain_position: bool,
    sources: list[Source],
    mode: int,
) -> Outcome:
    """Update ``records`` in place and return what is reported."""
    out = Outcome()
    for r in range(min(max(num_valid_reqs, 0), len(seeds))):
        begin = min(max(offsets[r], 0), len(slots))
        end = min(max(offsets[r + 1], 0), len(slots))
        seed = seeds[r]
        running_hash, last_position = HEAD, None
        if seed >= len(records):
            if begin < end:
                out.add(begin, (kind, seed, 0, 0, -1, 0, HEAD, 128))
        elif seed >= 0:
            running_hash, last_position = slot_hash(records[seed]), records[seed][1]
        for i in range(begin, end):
            slot, token, position = slots[i], tokens[i], positions[i]
            if slot < 0:
                continue
            out.slot_run += 1
            bits = 0
            expected_token, expected_position = token, position
            if expected_tokens is not None and expected_positions is not None:
                expected_token, expected_position = expected_tokens[i], expected_positions[i]
                if token != expected_token:
                    bits |= 8
                if position != expected_position:
                    bits |= 16
            if slot >= len(records):
                bits |= 64
            if bits:
                out.add(i, (kind, slot, position, token, expected_token, running_hash, expected_position, bits))
            if slot >= len(records):
                continue
            if last_position is not None:
                next_position = signed(last_position + 1)
                if assert_chain_position and position != next_position:
                    out.add(i, (kind, slot, position, token, token, running_hash, next_position, 16))
                last_position = position
            records[slot] = [token, position, running_hash, real_kv_hash(sources, mode, slot)]
            running_hash = slot_hash(records[slot])
    return out


@dataclass
class Plan:
    """A plan's outputs; ``entries`` is None on overflow: (slot, expected token, expected position, prev) each."""

    entries: list[tuple[int, int, int, int]] | None
    num_valid: int
    write_offsets: list[int]
    seeds: list[int]


def plan(
    *,
    rows: list[int],
    prefix_lens: list[int],
    extend_lens: list[int],
    table: list[list[int]],
    width: int,
    window: int,
    mapping: list[int] | None,
    verify_capacity: int,
    write_capacity: int,
    pool: list[list[int]] | None,
    valid_lens: list[int] | None,
    offset: int,
) -> Plan:
    """``width``: columns of ``table``, needed apart because a table may have no rows."""

    def lookup(row: int, position: int) -> int:
        if not 0 <= row < len(table) or position >= width:
            return OUT_OF_RANGE
        slot = table[row][position]
        if mapping is None or slot < 0:
            return slot
        return mapping[slot] if slot < len(mapping) else OUT_OF_RANGE

    entries: list[tuple[int, int, int, int]] = []
    write_offsets, seeds = [0], []
    for r, row in enumerate(rows):
        prefix = 0 if row == 0 else min(max(prefix_lens[r], 0), width + 1)
        length = 0 if row == 0 else max(extend_lens[r], 0)
        for position in range(max(0, prefix - window) if window else 0, prefix):
            q = position + offset
            token = -1
            if pool is not None and 0 <= row < len(pool) and q < valid_lens[r] and q < len(pool[row]):
                token = pool[row][q]
            prev = -1 if position == 0 else lookup(row, position - 1)
            entries.append((lookup(row, position), token, position, prev))
        seeds.append(lookup(row, prefix - 1) if prefix > 0 and length > 0 else -1)
        write_offsets.append(signed(write_offsets[-1] + length))
    write_offsets += [0] * (write_capacity + 1 - len(write_offsets))
    fits = len(entries) <= verify_capacity
    return Plan(entries if fits else None, min(len(entries), verify_capacity), write_offsets, seeds)


def scatter(*, flat: list[int], offsets: list[int], rows: list[int], pool: list[list[int]]) -> list[list[int]]:
    """Return the pool after the scatter."""
    pool = [list(row) for row in pool]
    for r, row in enumerate(rows):
        if 0 <= row < len(pool):
            for j in range(len(pool[row])):
                source = offsets[r] + j
                if source < offsets[r + 1] and 0 <= source < len(flat):
                    value = flat[source] % 2**32
                    pool[row][j] = value - 2**32 if value >= 2**31 else value
    return pool


def aggregate(outcome: Outcome) -> tuple[list[int], int]:
    """Counts by reason bit number, and the smallest plan index (2**63 - 1 = none), that an outcome adds."""
    counts = [sum(row[7] >> bit & 1 for row in outcome.rows) for bit in range(8)]
    return counts, min(outcome.entries, default=2**63 - 1)
