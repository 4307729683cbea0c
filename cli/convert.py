"""``canary-check convert``: the same dump in the other container."""

from __future__ import annotations

import click
from canary_cli import exit_codes


@click.command()
@click.argument("source", type=click.Path(), metavar="A")
@click.argument("target", type=click.Path(dir_okay=False), metavar="B")
@click.option("--force", is_flag=True, help="Replace B if it exists.")
def convert(source: str, target: str, force: bool) -> int:
    """Write dump A again as B: a .pt file as safetensors, or the other way round.

    What A is shows in its content; what B becomes, in its ending (.pt or .safetensors). Nothing that the format knows
    is lost. K/V bytes stream from file to file, and B is there whole or not at all.

    Exit code: 0 written, 2 A is unreadable or B cannot be written, 130 interrupted.
    """
    from canary_cli.output import refuse_existing
    from canary_cli.progress import WritingProgress

    from canary_numba.dump import load_dump, save_dump

    refuse_existing(target, force=force)
    dump = load_dump(source)
    with WritingProgress("writing") as progress:
        save_dump(dump, target, force=force, progress=progress)
    return exit_codes.CLEAN
