"""A report as JSON, schema version 1."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from canary_numba.report import Report


def render(report: Report, max_violations: int) -> str:
    """Render the report as one indented JSON object, at most ``max_violations`` violations a dump (0 = all).

    In ASCII, so that it is JSON whatever the encoding of stdout.
    """
    return json.dumps(report.to_dict(max_violations), indent=1, allow_nan=False) + "\n"
