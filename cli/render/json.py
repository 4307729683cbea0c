"""A report as JSON, schema version 1; and what is inside dumps, likewise."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from canary_numba.dump.info import DumpInfo
    from canary_numba.report import Report


def render(report: Report, max_violations: int) -> str:
    """Render the report as one indented JSON object, at most ``max_violations`` violations a dump (0 = all).

    In ASCII, so that it is JSON whatever the encoding of stdout.
    """
    return json.dumps(report.to_dict(max_violations), indent=1, allow_nan=False) + "\n"


def render_info(dumps: Sequence[DumpInfo]) -> str:
    """Render what is inside dumps as one indented JSON object, in ASCII."""
    from canary_numba.dump.info import INFO_SCHEMA_VERSION

    data = {"schema_version": INFO_SCHEMA_VERSION, "dumps": [dump.to_dict() for dump in dumps]}
    return json.dumps(data, indent=1, allow_nan=False) + "\n"
