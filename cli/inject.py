"""``canary-check inject``: break a dump on purpose, to see what a fault looks like or whether it is found."""

from __future__ import annotations

import os

import click
from canary_cli import exit_codes

from canary_numba.fault_names import FAULT_NAMES


@click.command()
@click.argument("dump", type=click.Path())
@click.option(
    "--fault",
    type=click.Choice(FAULT_NAMES),
    metavar="NAME",
    required=True,
    help="Which one; 'canary-check explain' lists them.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Draws the request, the place and the kind of damage.",
)
@click.option("-o", "--output", type=click.Path(dir_okay=False), required=True, help="The broken dump.")
@click.option("--force", is_flag=True, help="Replace the output file if it exists.")
def inject(dump: str, fault: str, seed: int, output: str, force: bool) -> int:
    """Break a sound dump on purpose, as the fault happens in the field.

    Reads DUMP, does to it what the fault does, writes the result and prints what was done as JSON: requests, positions,
    slots and details. DUMP stays as it is. For ranks_disagree the result is the dump of rank 1; unless DUMP itself says
    that it is one of several ranks, that of rank 0 is written beside it (OUT.rank0.pt).

    Exit code: 0 written, 2 DUMP is unreadable or has no place for the fault, or OUT cannot be written.
    """
    import json

    from canary_cli.output import deliver, refuse_existing

    from canary_numba.dump import load_dump, save_dump
    from canary_numba.faults import inject as inject_fault
    from canary_numba.faults import ranked

    refuse_existing(output, force=force)
    sound = load_dump(dump)
    broken, label = inject_fault(sound, fault, seed)
    other = ranked(sound) if fault == "ranks_disagree" else sound
    written = [output]
    if other is not sound:
        stem, ending = os.path.splitext(output)
        written.append(f"{stem}.rank0{ending}")
        refuse_existing(written[1], force=force)
        save_dump(other, written[1], force=force)
    save_dump(broken, output, force=force)
    deliver(json.dumps(label.to_dict(), indent=2) + "\n", None, force=False)
    click.echo(f"canary-check: {' and '.join(written)} written", err=True)
    return exit_codes.CLEAN
