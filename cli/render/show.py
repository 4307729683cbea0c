"""One request as a ladder of runs, and one slot with everything that refers to it, as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from canary_cli.render.columns import Column, fitting_table, printable
from canary_cli.render.console import TextConsole
from rich.text import Text

if TYPE_CHECKING:
    from canary_numba.show_request import Ladder, RequestView
    from canary_numba.show_slot import Expectation, Neighbour, RecordView, Reference, SlotView

STATE_NAMES = {"unchecked": "not checked"}
MAX_PIECES = 6


def render_request(view: RequestView, *, color: bool | None, width: int | None = None) -> str:
    """Render a request."""
    from canary_cli.render.parts import SHORT_REASONS

    console = TextConsole(color=color, width=width)
    console.print(Text.assemble(("request ", "bold"), (printable(view.request), "bold cyan")))
    console.print(
        Text(f"row {view.row}, {view.prefix_len:,} tokens cached, {view.extend_seq_len:,} computed in this step")
    )
    for ladder in view.ladders:
        if not ladder.rungs:
            console.section(f"{ladder.pool} pool", Text("nothing cached, or no check ran on it"))
            continue
        console.section(
            f"{ladder.pool} pool, pages of {view.page_size}",
            fitting_table(_rungs(ladder, SHORT_REASONS), console.width - 2),
        )
    return console.text()


def _rungs(ladder: Ladder, names: dict[str, str]) -> list[Column]:
    rungs = ladder.rungs
    differs = [", ".join(names[reason] for reason in rung.reasons) for rung in rungs]
    return [
        Column(
            header="positions",
            cells=[f"{r.first}-{r.last}" if r.first < r.last else str(r.first) for r in rungs],
            keep=9,
            right=True,
        ),
        Column(header="state", cells=[STATE_NAMES.get(rung.state, rung.state) for rung in rungs], keep=9),
        Column(header="slots", cells=[in_order(rung.slots) for rung in rungs], keep=8, wrap=True),
        Column(header="pages", cells=[in_order(rung.pages) for rung in rungs], keep=4, wrap=True),
        Column(header="cached", cells=[f"{rung.cached:,}" for rung in rungs], keep=5, right=True),
        Column(header="shared", cells=[f"{rung.shared:,}" for rung in rungs], keep=5, right=True),
        Column(header="differs", cells=differs, keep=7, wrap=True, style="red"),
        Column(header="fault", cells=[", ".join(rung.faults) for rung in rungs], keep=7),
    ]


def in_order(numbers: Sequence[int]) -> str:
    """Numbers in their own order, rising stretches folded: ``165-168, 12, ... (40 in all)``."""
    pieces: list[list[int]] = []
    for number in numbers:
        if pieces and number == pieces[-1][1] + 1:
            pieces[-1][1] = number
        else:
            pieces.append([number, number])
    shown = [str(low) if low == high else f"{low}-{high}" for low, high in pieces[:MAX_PIECES]]
    return ", ".join(shown) + (f", ... ({len(numbers):,} in all)" if len(pieces) > MAX_PIECES else "")


def render_slot(view: SlotView, *, color: bool | None, width: int | None = None) -> str:
    """Render a slot."""
    console = TextConsole(color=color, width=width)
    console.print(Text.assemble((f"{view.pool} slot {view.slot}", "bold"), f"  page {view.page}"))
    room = console.width - 2
    if view.references:
        console.section("Referred to by", fitting_table(_references(view.references), room))
    else:
        console.section("Referred to by", Text("nothing in the dump"))
    writers = [f"{printable(name)}:{position} ({kind})" for kind, name, position in view.writers]
    console.section("Written for", Text("\n".join(writers) or "nobody whose tokens the dump has"))
    console.section("Records", fitting_table(_records(view.records), room))
    wanted = [(record, one) for record in view.records for one in record.expectations]
    if wanted:
        console.section("What the checks want", fitting_table(_expectations([one for _, one in wanted]), room))
    else:
        console.section("What the checks want", Text("no check reads this slot"))
    if view.neighbours:
        console.section("Neighbours", fitting_table(_neighbours(view.neighbours), room))
    return console.text()


def _references(references: Sequence[Reference]) -> list[Column]:
    places = ["-" if one.position is None else str(one.position) for one in references]
    return [
        Column(header="by", cells=[one.what for one in references], keep=9),
        Column(header="request", cells=[one.request or "-" for one in references], keep=8, fold=24),
        Column(header="pos", cells=places, keep=8, right=True),
        Column(header="", cells=[one.note for one in references], keep=7, wrap=True),
    ]


def _records(records: Sequence[RecordView]) -> list[Column]:
    return [
        Column(header="buffer", cells=[one.buffer for one in records], keep=9),
        Column(header="token", cells=[str(one.token) for one in records], keep=8, right=True),
        Column(header="pos", cells=[str(one.position) for one in records], keep=8, right=True),
        Column(header="chain hash", cells=[f"0x{one.prev_hash:016x}" for one in records], keep=7),
        Column(header="K/V hash", cells=[f"0x{one.real_kv_hash:016x}" for one in records], keep=6),
    ]


def _expectations(wanted: Sequence[Expectation]) -> list[Column]:
    short = {"prev_hash": "chain", "real_kv_hash": "K/V bytes"}
    wrong = [", ".join(short.get(field, field) for field in one.wrong) or "as expected" for one in wanted]
    hashes = ["-" if one.prev_hash is None else f"0x{one.prev_hash:016x}" for one in wanted]
    return [
        Column(header="check", cells=[one.tag for one in wanted], keep=9),
        Column(
            header="token", cells=["-" if one.token == -1 else str(one.token) for one in wanted], keep=7, right=True
        ),
        Column(header="pos", cells=[str(one.position) for one in wanted], keep=7, right=True),
        Column(header="chain hash", cells=hashes, keep=6),
        Column(header="differs", cells=wrong, keep=8, wrap=True),
    ]


def _neighbours(neighbours: Sequence[Neighbour]) -> list[Column]:
    owners = [", ".join(f"{name}:{place}" for name, place in one.owners) or "-" for one in neighbours]
    return [
        Column(header="", cells=[one.relation for one in neighbours], keep=9),
        Column(header="slot", cells=[str(one.slot) for one in neighbours], keep=9, right=True),
        Column(header="owner", cells=owners, keep=8, wrap=True, fold=30),
        Column(header="has pos", cells=[str(one.stored_position) for one in neighbours], keep=7, right=True),
        Column(header="has token", cells=[str(one.token) for one in neighbours], keep=6, right=True),
    ]
