"""Run a small paged engine with a bug of your choice, guarded by a canary, and save a dump for ``canary-check``.

Run it with ``python examples/paged_engine.py --bug use-after-free``; without ``--bug`` it ends clean. It needs no GPU.
"""

from __future__ import annotations

import random
from pathlib import Path

import click
from paged.bugs import BUGS, LAST_PASS
from paged.engine import Engine
from paged.model import VOCABULARY

from canary_numba.dump import save_dump
from canary_numba.errors import CorruptionError


def submit_requests(engine: Engine, seed: int = 0) -> None:
    """Queue a short warm-up request, then some that share its first tokens; one differs in the very first of them."""
    rng = random.Random(seed)
    system = [rng.randrange(1, VOCABULARY) for _ in range(10)]
    engine.submit("warm-up", system, 3)
    for number in range(6):
        start = [0, *system[1:]] if number == 3 else system
        prompt = start + [rng.randrange(1, VOCABULARY) for _ in range(3 + number)]
        engine.submit(f"user-{number}", prompt, 6 + 3 * number)


@click.command()
@click.option("--bug", type=click.Choice(list(BUGS)), default="none", show_default=True, help="What goes wrong.")
@click.option("--output", type=click.Path(path_type=Path), help="The dump. Default: engine-BUG.pt")
def main(bug: str, output: Path | None) -> None:
    """Serve some requests, stop at the first violation or after a few steps, and save a dump."""
    engine = BUGS[bug]()
    submit_requests(engine)
    try:
        for _ in range(LAST_PASS):
            engine.step()
    except CorruptionError as error:
        click.echo(f"pass {engine.canary.passes}: {error}")
    health = engine.canary.check()
    click.echo(
        f"{engine.canary.passes} passes, {sum(health.slots.values())} records checked or written, "
        f"{health.violations} violations, the canary {'ran in each' if health.ok else 'did not run in each'}"
    )
    path = output or Path(f"engine-{bug}.pt")
    save_dump(engine.snapshot(), path, force=True)
    click.echo(f"Next: canary-check {path}")


if __name__ == "__main__":
    main()
