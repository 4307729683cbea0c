"""The terminal's report as a page or a picture, through rich's own exports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from canary_cli.render.console import TextConsole
from canary_cli.render.table import print_report

if TYPE_CHECKING:
    from canary_numba.report import Report

_WIDTH = 100
_TITLE = "canary-check"


def render_html(report: Report, max_violations: int) -> str:
    """Render the report as one HTML page that needs nothing else."""
    return _recorded(report, max_violations).export_html()


def render_svg(report: Report, max_violations: int) -> str:
    """Render the report as an SVG picture of a terminal."""
    return _recorded(report, max_violations).export_svg(title=_TITLE)


def _recorded(report: Report, max_violations: int) -> TextConsole:
    console = TextConsole(color=True, width=_WIDTH, ascii_only=False)
    print_report(console, report, max_violations)
    return console
