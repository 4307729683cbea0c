"""``canary-check check``: check dumps and report what is broken."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from canary_cli import exit_codes
from canary_cli.options import engine_option, output_options

if TYPE_CHECKING:
    from canary_numba.check import CheckResult
    from canary_numba.dump.model import Dump
    from canary_numba.report import DumpReport, Report


@click.command()
@click.argument("dumps", nargs=-1, required=True, type=click.Path(), metavar="DUMP...")
@click.option(
    "--format",
    "form",
    type=click.Choice(("table", "json", "markdown", "html", "log")),
    default="table",
    show_default=True,
    help="What to print; log: SGLang's log lines.",
)
@click.option("--svg", type=click.Path(dir_okay=False), help="Draw the report into this file as well, for an issue.")
@engine_option
@click.option(
    "--max-violations",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    help="Violations listed for each dump; 0 lists all.",
)
@click.option("--strict", is_flag=True, help="Take faults that have damaged nothing yet for corruption, too.")
@click.option("--zero-init-okay", is_flag=True, help="Count all-zero records as never written, not as violations.")
@output_options
def check(
    dumps: tuple[str, ...],
    form: str,
    svg: str | None,
    engine: str,
    max_violations: int,
    strict: bool,
    zero_init_okay: bool,
    output: str | None,
    force: bool,
    no_color: bool,
    quiet: bool,
) -> int:
    """Check KV-cache dumps: what is broken, in which request, at which position and slot.

    Reads canary dumps (.pt or safetensors), verifies every record again, and reports violations with the request they
    belong to. A folder stands for the dumps in it, and a quoted pattern such as 'run-7/*.pt' for those that fit it.
    Dumps of the tensor-parallel ranks of one step are compared with each other. The report goes to stdout, progress and
    a one-line summary to stderr.

    Exit code: 0 all clean, 1 any corrupt, 2 any unreadable.
    """
    from canary_cli.output import deliver, refuse_existing
    from canary_cli.paths import find_dumps
    from canary_cli.render import image
    from canary_cli.render.columns import printable
    from canary_cli.render.spanning import verdict_lines

    from canary_numba.diagnosis.ranks import compare_ranks, group_ranks
    from canary_numba.report import Report

    for path in (output, svg):
        refuse_existing(path, force=force)
    reports: list[DumpReport] = []
    checked: list[Dump] = []
    tool: dict[str, str] = {}
    paths, complaints = find_dumps(dumps)
    for complaint in complaints:
        click.echo(f"canary-check: error: {complaint}", err=True)
    unreadable = len(complaints)
    for path in paths:
        found = _check_one(path, engine, strict, zero_init_okay)
        if found is None:
            unreadable += 1
        else:
            tool, dump, dump_report = found
            checked.append(dump)
            reports.append(dump_report)
    report = Report(tool=tool, dumps=tuple(reports), findings=compare_ranks(checked), strict=strict)
    if reports:
        if quiet:
            text = "".join(f"{dump.verdict.upper()} {printable(dump.path)}\n" for dump in reports)
            text += verdict_lines(report.findings)
        else:
            text = _render(report, form, max_violations, color=False if no_color or output else None)
        deliver(text, output, force=force)
        if svg is not None:
            deliver(image.render_svg(report, max_violations), svg, force=force)
        if not quiet:
            for ranks in group_ranks(checked):
                if ranks.missing:
                    click.echo(f"canary-check: note: {ranks.describe_missing()}", err=True)
            click.echo(_summary(report, unreadable), err=True)
    if unreadable:
        return exit_codes.USAGE
    return exit_codes.CORRUPT if report.verdict == "corrupt" else exit_codes.CLEAN


def _render(report: Report, form: str, max_violations: int, *, color: bool | None) -> str:
    from canary_cli.render import image, json, log, markdown, table

    if form == "json":
        return json.render(report, max_violations)
    if form == "markdown":
        return markdown.render(report, max_violations)
    if form == "log":
        return log.render(report, max_violations)
    if form == "html":
        return image.render_html(report, max_violations)
    return table.render(report, max_violations, color=color)


def _check_one(
    path: str, engine: str, strict: bool, zero_init_okay: bool
) -> tuple[dict[str, str], Dump, DumpReport] | None:
    """Check one dump; an unreadable one is named on stderr and does not keep the others from being checked."""
    from canary_cli.progress import HashingProgress

    from canary_numba.check import check_dump
    from canary_numba.diagnosis import diagnose
    from canary_numba.dump import load_dump
    from canary_numba.errors import DumpError
    from canary_numba.report import build_dump_report, tool_of

    try:
        dump = load_dump(path)
        with HashingProgress() as progress:
            result: CheckResult = check_dump(dump, engine=engine, observer=progress, zero_init_okay=zero_init_okay)
        diagnosis = diagnose(dump, result)
        return tool_of(result), dump, build_dump_report(dump, result, diagnosis, strict=strict)
    except DumpError as error:
        click.echo(f"canary-check: error: {error}", err=True)
        return None


def _summary(report: Report, unreadable: int) -> str:
    corrupt = sum(dump.verdict == "corrupt" for dump in report.dumps)
    violations = sum(len(dump.violations) for dump in report.dumps)
    seconds = sum(dump.seconds for dump in report.dumps)
    count = len(report.dumps)
    parts = [f"{count} dump{'' if count == 1 else 's'} checked", f"{corrupt} corrupt", f"{violations:,} violations"]
    if report.findings:
        parts.append(f"{len(report.findings)} finding{'' if len(report.findings) == 1 else 's'} across dumps")
    if unreadable:
        parts.append(f"{unreadable} unreadable")
    return f"canary-check: {', '.join(parts)}; {seconds:.2f} s on {report.tool['engine']} ({report.tool['device']})"
