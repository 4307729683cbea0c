"""Options that commands share, as decorators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

ENGINE_CHOICES = ("auto", "cuda", "cpu", "reference", "simulator")


def engine_option(function: F) -> F:
    """``--engine``."""
    return click.option(
        "--engine",
        type=click.Choice(ENGINE_CHOICES),
        default="auto",
        show_default=True,
        help="Where the checks run; auto takes the GPU if there is one, and says why if not.",
    )(function)


def output_options(function: F) -> F:
    """``-o/--output``, ``--force``, ``--no-color`` and ``-q/--quiet``."""
    for option in (
        click.option(
            "-q",
            "--quiet",
            is_flag=True,
            help="Print one verdict line a dump, one a finding across dumps, and nothing else.",
        ),
        click.option("--no-color", is_flag=True, help="No colours; the environment's NO_COLOR does the same."),
        click.option("--force", is_flag=True, help="Replace the output file if it exists."),
        click.option("-o", "--output", type=click.Path(dir_okay=False), help="Write the report to this file."),
    ):
        function = option(function)
    return function
