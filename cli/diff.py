"""``canary-check diff``: what changed between two dumps of one server."""

from __future__ import annotations

import click
from canary_cli import exit_codes


@click.command()
@click.argument("before", type=click.Path(), metavar="A")
@click.argument("after", type=click.Path(), metavar="B")
@click.option(
    "--format", "form", type=click.Choice(("table", "json")), default="table", show_default=True, help="What to print."
)
@click.option("--no-color", is_flag=True, help="No colours; the environment's NO_COLOR does the same.")
def diff(before: str, after: str, form: str, no_color: bool) -> int:
    """Compare two dumps of one server: A before, B after, or a good and a bad one.

    Lists which records, K/V bytes, table entries, lengths, free and cached slots changed. Appended tokens, newly
    allocated and freed slots and evictions are what a normal step does; anything else, such as another record in a slot
    that a request held before and after, is unexplained and stands first.

    Exit code: 0 every change is explained, 1 some are not, 2 A or B is unreadable or they are not of one server.
    """
    import json

    from canary_cli.output import deliver
    from canary_cli.render import diff as table

    from canary_numba.diff import diff_dumps
    from canary_numba.dump import load_dump

    found = diff_dumps(load_dump(before), load_dump(after))
    if form == "json":
        text = json.dumps({"a": before, "b": after, **found.to_dict()}, indent=1) + "\n"
    else:
        text = table.render(found, before, after, color=False if no_color else None)
    deliver(text, None, force=False)
    return exit_codes.CLEAN if found.explained else exit_codes.CORRUPT
