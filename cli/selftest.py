"""``canary-check selftest``: faults that were injected on purpose, and which of them are found."""

from __future__ import annotations

import click
from canary_cli import exit_codes
from canary_cli.options import engine_option


@click.command()
@click.option(
    "--seeds",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Injections of each fault in each kind of dump.",
)
@engine_option
@click.option(
    "--format",
    "form",
    type=click.Choice(("table", "markdown")),
    default="table",
    show_default=True,
    help="What to print.",
)
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="Write the table to this file.")
@click.option("--force", is_flag=True, help="Replace the output file if it exists.")
@click.option("--no-color", is_flag=True, help="No colours; the environment's NO_COLOR does the same.")
def selftest(seeds: int, engine: str, form: str, output: str | None, force: bool, no_color: bool) -> int:
    """Check the checker: break sound dumps in every way and see what is found.

    Simulates small servers, injects every fault into their dumps, checks and diagnoses them, and prints which faults
    were named, only seen or missed, by hash mode and by whether the requests' tokens are known.

    Exit code: 0 all well, 1 a fault that such a dump can show was missed, or a wrong finding was called certain.
    """
    from canary_cli.output import deliver, refuse_existing
    from canary_cli.progress import CountingProgress
    from canary_cli.render import coverage as render

    from canary_numba.engine_choice import choose_engine
    from canary_numba.faults.coverage import measure

    refuse_existing(output, force=force)
    choice = choose_engine(engine)
    with CountingProgress("injecting") as progress:
        found = measure(seeds, engine=choice.name, progress=progress)
    if form == "markdown":
        text = render.markdown(found)
    else:
        text = render.table(found, color=False if no_color or output else None)
    deliver(text, output, force=force)
    for failure in found.failures:
        click.echo(f"canary-check: {failure}", err=True)
    return exit_codes.CORRUPT if found.failures else exit_codes.CLEAN
