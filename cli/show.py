"""``canary-check show``: one request or one slot of a dump, up close."""

from __future__ import annotations

import click
from canary_cli import exit_codes
from canary_cli.options import engine_option


@click.command()
@click.argument("dump", type=click.Path())
@click.option("--request", metavar="ID", help="A live request: its cached positions in runs, with slots and pages.")
@click.option("--slot", type=int, help="A slot: references, writer, neighbours and records, field by field.")
@click.option(
    "--group", type=click.Choice(("FULL", "SWA")), default="FULL", show_default=True, help="The pool that --slot means."
)
@click.option(
    "--format", "form", type=click.Choice(("table", "json")), default="table", show_default=True, help="What to print."
)
@engine_option
@click.option("--no-color", is_flag=True, help="No colours; the environment's NO_COLOR does the same.")
def show(dump: str, request: str | None, slot: int | None, group: str, form: str, engine: str, no_color: bool) -> int:
    """Look at one request or one slot of a dump.

    Checks and diagnoses DUMP, then shows what it knows of one request (--request) or of one slot (--slot), sound or
    not.

    Exit code: 0 shown, 2 DUMP is unreadable or has no such request or slot.
    """
    import json

    from canary_cli.output import deliver
    from canary_cli.render import show as table

    from canary_numba.check import check_dump
    from canary_numba.diagnosis import diagnose
    from canary_numba.dump import load_dump
    from canary_numba.show_request import show_request
    from canary_numba.show_slot import show_slot

    if (request is None) == (slot is None):
        raise click.UsageError("give either --request or --slot")
    loaded = load_dump(dump)
    result = check_dump(loaded, engine=engine)
    color = False if no_color else None
    if request is not None:
        ladders = show_request(loaded, result, diagnose(loaded, result), request)
        data, text = ladders.to_dict(), table.render_request(ladders, color=color)
    else:
        assert slot is not None
        found = show_slot(loaded, result, slot, group)
        data, text = found.to_dict(), table.render_slot(found, color=color)
    if form == "json":
        text = json.dumps({"schema_version": 1, "path": dump, **data}, indent=1) + "\n"
    deliver(text, None, force=False)
    return exit_codes.CLEAN
