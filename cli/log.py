"""``canary-check log``: the violations that a server has logged, in a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from canary_cli import exit_codes

if TYPE_CHECKING:
    from canary_numba.log_lines import LogSummary


@click.command()
@click.argument("file", type=click.Path(allow_dash=True), metavar="FILE")
@click.option(
    "--format", "form", type=click.Choice(("table", "json")), default="table", show_default=True, help="What to print."
)
@click.option(
    "--max-violations",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    help="Violations listed one by one; 0 lists all.",
)
@click.option("--no-color", is_flag=True, help="No colours; the environment's NO_COLOR does the same.")
def log(file: str, form: str, max_violations: int, no_color: bool) -> int:
    """Tabulate the canary violations in a server's log.

    Reads the 'kv_canary violation:' lines that SGLang logs (and that 'check --format log' prints) from FILE, or from
    stdin with '-', whatever stands before them; all other lines are passed over. Counts them by buffer, reason and
    slot, and shows the first and the last.

    Exit code: 0 no violations, 1 some, 2 FILE cannot be read.
    """
    import json

    from canary_cli.output import deliver

    summary = _read(file, max_violations)
    if form == "json":
        text = json.dumps(summary.to_dict(), indent=1) + "\n"
    else:
        from canary_cli.render import server_log

        text = server_log.render(summary, "stdin" if file == "-" else file, color=False if no_color else None)
    deliver(text, None, force=False)
    return exit_codes.CORRUPT if summary.violations or summary.unreadable_total else exit_codes.CLEAN


def _read(file: str, max_violations: int) -> LogSummary:
    """Summarize a file or stdin; bytes that are no UTF-8 are replaced, since a crash may leave any in a log."""
    import io
    import sys

    from canary_numba.errors import DumpError
    from canary_numba.log_lines import summarize_log

    try:
        with sys.stdin.buffer if file == "-" else open(file, "rb") as raw:
            # Lines end at line feeds alone: a progress bar leaves carriage returns before a violation.
            lines = io.TextIOWrapper(raw, encoding="utf-8", errors="replace", newline="\n")
            return summarize_log(lines, max_violations)
    except OSError as error:
        raise DumpError(f"cannot be read: {error.strerror}", path=file) from error
