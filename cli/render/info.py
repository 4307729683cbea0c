"""What is inside a dump, for people: facts, pools, layers, requests, in tables that fit the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from canary_cli.render.columns import Column, fitting_table, printable
from canary_cli.render.console import TextConsole
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from canary_numba.dump.info import DumpInfo, HalfInfo, RequestInfo, SourceInfo


def render(dumps: Sequence[DumpInfo], max_requests: int, *, color: bool | None, width: int | None = None) -> str:
    """Render every dump as text, at most ``max_requests`` requests of each (0 = all)."""
    console = TextConsole(color=color, width=width)
    for i, dump in enumerate(dumps):
        if i:
            console.print()
        console.print(Text(printable(dump.path), style="bold"), soft_wrap=True)
        _print(console, dump, max_requests)
    return console.text()


def _print(console: TextConsole, dump: DumpInfo, max_requests: int) -> None:
    width = console.width - 2
    console.section("Facts", _facts(dump))
    console.section("Pools", _pools(dump, width))
    sources = [(f"{half.name} {group.kind}", half) for group in dump.groups for half in group.halves if half.sources]
    if sources:
        console.section("K/V bytes", _sources(sources, width))
    if dump.requests:
        shown = dump.requests[:max_requests] if max_requests else dump.requests
        console.section(f"Requests ({len(shown):,} of {len(dump.requests):,})", _requests(shown, width))
    if dump.shared_prefixes:
        shared = dump.shared_prefixes[:max_requests] if max_requests else dump.shared_prefixes
        lines = [f"{prefix.slots:,} slots: {_few(prefix.requests, max_requests)}" for prefix in shared]
        if len(shared) < len(dump.shared_prefixes):
            lines.append(f"and {len(dump.shared_prefixes) - len(shared):,} more")
        console.section("Shared prefixes", Text("\n".join(printable(line) for line in lines), overflow="fold"))


def _few(names: Sequence[str], limit: int) -> str:
    shown = names[:limit] if limit else names
    return ", ".join(shown) + (f" and {len(names) - len(shown):,} more" if len(shown) < len(names) else "")


def _facts(dump: DumpInfo) -> Table:
    facts: dict[str, str] = {}
    if dump.container is not None and dump.file_bytes is not None:
        facts["file"] = f"{dump.container}, {dump.file_bytes:,} bytes"
    facts |= {f"producer {name}": value for name, value in dump.producer.items()}
    facts |= {name: _scalar(value) for name, value in dump.context.items()}
    facts["hash mode"] = dump.hash_mode
    facts |= dict(_contents(dump))
    grid = Table.grid(padding=(0, 2))
    grid.add_column(overflow="fold", max_width=24)
    grid.add_column(overflow="fold")
    for name, value in facts.items():
        grid.add_row(Text(printable(name), style="cyan"), Text(printable(value)))
    return grid


def _scalar(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _contents(dump: DumpInfo) -> Iterable[tuple[str, str]]:
    if dump.requests is None:
        yield "requests", "none in the dump"
    else:
        cached = sum(request.prefix_len for request in dump.requests)
        with_tokens = "with" if dump.expected_tokens else "without"
        copy = ", with the kernel's index copy" if dump.kv_indices else ""
        yield "requests", f"{len(dump.requests):,}, {cached:,} cached tokens, {with_tokens} their token ids{copy}"
    if dump.prefix_cache is not None:
        cache = dump.prefix_cache
        yield "prefix cache", f"{cache.tokens:,} tokens, {cache.roots:,} roots, longest {cache.depth:,}"
    if dump.free_slots is not None:
        free = dump.free_slots
        window = "" if free.swa_free is None else f"; {free.swa_free:,} of {free.swa_size or 0:,} SWA"
        yield "free slots", f"{free.free:,} of {free.size:,}{window}, {free.page_size:,} a page"
    if dump.live_ring is not None:
        ring = dump.live_ring
        yield "live ring", f"{ring['reported']:,} violations reported, {ring['kept']:,} kept"
    if dump.finished is not None:
        yield "finished", f"{dump.finished['requests']:,} requests, {dump.finished['tokens']:,} tokens"
    if dump.events:
        yield "events", ", ".join(f"{count:,} {kind}" for kind, count in dump.events.items())
    if dump.counters is not None:
        launches = sum(counter["launches"] for counter in dump.counters.values())
        slots = sum(counter["slots"] for counter in dump.counters.values())
        yield "counters", f"{launches:,} launches, {slots:,} slots"


def _pools(dump: DumpInfo, width: int) -> Table:
    rows = [(group, half) for group in dump.groups for half in group.halves]

    def window(tokens: int, mapped: int | None) -> str:
        return "-" if mapped is None else f"{tokens:,} tokens, {mapped:,} mapped" if tokens else f"{mapped:,} mapped"

    return fitting_table(
        [
            Column(header="pool", cells=[group.kind for group, _ in rows], keep=9),
            Column(header="half", cells=[half.name for _, half in rows], keep=9),
            Column(header="slots", cells=[f"{group.num_slots:,}" for group, _ in rows], keep=9, right=True),
            Column(header="records", cells=[_records(half) for _, half in rows], keep=7),
            Column(header="window", cells=[window(g.swa_window_size, g.mapped_slots) for g, _ in rows], keep=4),
            Column(header="offset", cells=[str(g.kv_token_id_vs_position_offset) for g, _ in rows], keep=2, right=True),
            Column(header="K/V bytes of", cells=[_kept(half) for _, half in rows], keep=5),
            Column(header="source hashes", cells=["yes" if half.source_hashes else "no" for _, half in rows], keep=3),
        ],
        width,
    )


def _records(half: HalfInfo) -> str:
    return ", ".join(f"{stage.lower()} {stride} B" for stage, stride in half.records.items())


def _kept(half: HalfInfo) -> str:
    if not half.sources:
        return "no slot"
    return "all slots" if half.kept_slots is None else f"{half.kept_slots:,} slots"


def _form(source: SourceInfo) -> tuple[object, ...]:
    return (source.dtype, source.page_size, source.num_bytes_per_token, source.read_bytes)


def _sources(halves: Sequence[tuple[str, HalfInfo]], width: int) -> Table:
    """One line for each run of sources that look alike: the layers of a model do."""
    runs = [(label, list(run)) for label, half in halves for _, run in groupby(half.sources, key=_form)]
    firsts = [run[0] for _, run in runs]
    sizes = [sum(source.nbytes for source in run) for _, run in runs]
    return fitting_table(
        [
            Column(header="half", cells=[label for label, _ in runs], keep=9),
            Column(header="sources", cells=[f"{len(run):,}" for _, run in runs], keep=9, right=True),
            Column(header="layers", cells=[_layers(run) for _, run in runs], keep=8, fold=14),
            Column(header="names", cells=[_names(run) for _, run in runs], keep=3, fold=24),
            Column(header="dtype", cells=[source.dtype for source in firsts], keep=7),
            Column(header="page", cells=[f"{source.page_size:,}" for source in firsts], keep=4, right=True),
            Column(
                header="B a slot", cells=[f"{source.num_bytes_per_token:,}" for source in firsts], keep=6, right=True
            ),
            Column(header="read", cells=[f"{source.read_bytes:,}" for source in firsts], keep=2, right=True),
            Column(header="bytes", cells=[f"{size:,}" for size in sizes], keep=8, right=True),
        ],
        width,
    )


def _layers(sources: Sequence[SourceInfo]) -> str:
    """Layer numbers as ranges: 0-31, 40."""
    layers = sorted({source.layer for source in sources if source.layer is not None})
    ranges: list[list[int]] = []
    for layer in layers:
        if ranges and layer == ranges[-1][1] + 1:
            ranges[-1][1] = layer
        else:
            ranges.append([layer, layer])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges) or "-"


def _names(sources: Sequence[SourceInfo]) -> str:
    first, last = sources[0].name, sources[-1].name
    return first if len(sources) == 1 else f"{first} .. {last}"


def _requests(requests: Sequence[RequestInfo], width: int) -> Table:
    def length(value: int | None) -> str:
        return "-" if value is None else f"{value:,}"

    columns = [
        Column(header="request", cells=[r.rid for r in requests], keep=9, fold=24),
        Column(header="row", cells=[str(r.row) for r in requests], keep=5, right=True),
        Column(header="cached", cells=[f"{r.prefix_len:,}" for r in requests], keep=9, right=True),
        Column(header="new", cells=[f"{r.extend_seq_len:,}" for r in requests], keep=6, right=True),
        Column(header="shared", cells=[f"{r.shared_slots:,}" for r in requests], keep=8, right=True),
        Column(header="with", cells=[r.shared_with or "-" for r in requests], keep=7, fold=20),
        Column(header="committed", cells=[length(r.committed_len) for r in requests], keep=2, right=True),
        Column(header="allocated", cells=[length(r.allocated_len) for r in requests], keep=1, right=True),
        Column(header="extra key", cells=[r.extra_key or "-" for r in requests], keep=3, fold=16),
    ]
    return fitting_table([column for column in columns if any(cell != "-" for cell in column.cells)], width)
