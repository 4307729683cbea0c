"""Run SGLang 0.5.23's own kernel tests and runtime on this project's kernels; opt-in, not in CI.

Needs the environment of `capture_sglang_cpu.py`. Where there is no room for that, such as on a borrowed GPU, the files
of `pip install --no-deps --target FOLDER sglang==0.5.23` and `triton` do, with `--wheel FOLDER`: what SGLang's package
initialisers import besides is then replaced by empty stand-ins, and the runtime is left out.

SGLang's helpers are those of `sglang.test.kernels.kv_canary`: fixtures, differential test against its torch reference,
invariants, fuzz driver, shrinker and hand-written oracle. Exit code 1 on any difference.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import click
import torch

from canary_numba.integrations import sglang as integration


@contextlib.contextmanager
def tests_run_on(device: torch.device) -> Iterator[None]:
    """Let SGLang's test helpers, which are written for a GPU, run on any device."""
    from sglang.test.kernels.kv_canary import _fixtures

    with mock.patch.object(_fixtures, "_DEVICE", device), contextlib.ExitStack() as stack:
        if device.type == "cpu":
            stack.enter_context(mock.patch.object(torch.cuda, "synchronize"))
        yield


@contextlib.contextmanager
def ours_only() -> Iterator[None]:
    """Count it as a difference if a launch goes to SGLang's own kernel."""

    def fail(message: str, *values: object) -> None:
        raise AssertionError(message % values)

    with mock.patch.object(integration.logger, "warning", fail):
        yield


@click.command()
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option("--rounds", default=300, show_default=True, help="Random cases of each kind.")
@click.option("--seed", default=0, show_default=True, help="Seed of the first.")
@click.option("--wheel", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Files of the wheel.")
def main(device: str, rounds: int, seed: int, wheel: Path | None) -> None:
    """Prove that SGLang cannot tell this project's kernels from its own."""
    if wheel is not None:
        from sglang_proof.wheel import load_kernels

        load_kernels(wheel)
    from sglang_proof import decoding, plans, records, refusals

    with_runtime = wheel is None and device == "cpu"
    if with_runtime:
        from sglang_proof import runtime

    where = torch.device(device)
    counts: Counter[str] = Counter()
    # SGLang logs every violation of the sessions.
    logging.getLogger("sglang").setLevel(logging.CRITICAL)
    try:
        with integration.install() as installed, tests_run_on(where), ours_only():
            plans.fuzz_plans(seed, rounds, where, counts)
            plans.fuzz_scatters(seed, rounds, where, counts)
            records.fuzz(seed, rounds, where, counts)
            records.hand_oracle(seed, rounds, where, counts)
            decoding.compare(where, min(rounds, 60), counts)
            refusals.compare(where, counts)
        if with_runtime:
            with ours_only():
                runtime.compare_sessions(counts)
    except AssertionError as error:
        raise click.ClickException(f"a difference: {error}") from error
    click.echo(f"SGLang's helpers on {device}, {len(installed.bindings)} names replaced; all equal:")
    for what, count in counts.items():
        click.echo(f"{count:>10,}  {what}")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
