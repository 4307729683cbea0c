"""``canary-check explain``: what a fault is, how a dump shows it, and what to do about it."""

from __future__ import annotations

import click
from canary_cli import exit_codes


@click.command()
@click.argument("fault", required=False)
@click.option("--no-color", is_flag=True, help="No colours; the environment's NO_COLOR does the same.")
def explain(fault: str | None, no_color: bool) -> int:
    """Say what a fault is, how a dump shows it, and what to do about it.

    FAULT is a name from a report's findings; without it, all faults are listed.

    Exit code: 0, or 2 if there is no fault of that name.
    """
    from difflib import get_close_matches

    from canary_cli.output import deliver
    from canary_cli.render import explain as text

    from canary_numba.diagnosis.catalog import FAULTS

    color = False if no_color else None
    if fault is None:
        deliver(text.render_list(list(FAULTS.values()), color=color), None, force=False)
        return exit_codes.CLEAN
    name = fault.strip().lower().replace("-", "_")
    if name not in FAULTS:
        near = get_close_matches(name, FAULTS, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else "canary-check explain lists them all"
        click.echo(f"canary-check: error: no fault is named {fault!r}; {hint}", err=True)
        return exit_codes.USAGE
    deliver(text.render_fault(FAULTS[name], color=color), None, force=False)
    return exit_codes.CLEAN
