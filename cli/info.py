"""``canary-check info``: what is inside a dump, without checking it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from canary_cli import exit_codes

if TYPE_CHECKING:
    from canary_numba.dump.info import DumpInfo


@click.command()
@click.argument("dumps", nargs=-1, required=True, type=click.Path(), metavar="DUMP...")
@click.option(
    "--format", "form", type=click.Choice(("table", "json")), default="table", show_default=True, help="What to print."
)
@click.option(
    "--max-requests",
    type=click.IntRange(min=0),
    default=50,
    show_default=True,
    help="Requests listed for each dump in the table; 0 lists all.",
)
@click.option("--no-color", is_flag=True, help="No colours; the environment's NO_COLOR does the same.")
def info(dumps: tuple[str, ...], form: str, max_requests: int, no_color: bool) -> int:
    """Show what is inside dumps: pools, layers, requests, prefix cache, free slots.

    Reads the bookkeeping only; no record is verified and no K/V byte is read, so a dump of any size is quick. A folder
    stands for the dumps in it, and a quoted pattern such as 'run-7/*.pt' for those that fit it.

    Exit code: 0 all shown, 2 any unreadable.
    """
    from canary_cli.output import deliver
    from canary_cli.paths import find_dumps
    from canary_cli.render import info as table
    from canary_cli.render import json

    from canary_numba.dump import load_dump
    from canary_numba.dump.info import describe_dump
    from canary_numba.errors import DumpError

    paths, complaints = find_dumps(dumps)
    found: list[DumpInfo] = []
    for path in paths:
        try:
            found.append(describe_dump(load_dump(path)))
        except DumpError as error:
            complaints.append(str(error))
    if found:
        text = (
            json.render_info(found)
            if form == "json"
            else table.render(found, max_requests, color=False if no_color else None)
        )
        deliver(text, None, force=False)
    for complaint in complaints:
        click.echo(f"canary-check: error: {complaint}", err=True)
    return exit_codes.USAGE if complaints else exit_codes.CLEAN
