"""A report as SGLang logs it: one line a violation and nothing else, for tools that read such logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from canary_cli.render.columns import printable

if TYPE_CHECKING:
    from canary_numba.report import Report


def render(report: Report, max_violations: int) -> str:
    """Render at most ``max_violations`` violations a dump (0 = all); of several dumps, each line names its own."""
    from canary_numba.log_lines import format_line

    lines: list[str] = []
    for dump in report.dumps:
        prefix = f"{printable(dump.path)}: " if len(report.dumps) > 1 else ""
        shown = dump.first_violations(max_violations)
        lines += [prefix + format_line(violation) for violation in shown]
        left_out = len(dump.violations) - len(shown)
        if left_out:
            lines.append(f"{prefix}{left_out:,} more violations; --max-violations 0 lists every violation")
    return "".join(f"{line}\n" for line in lines)
