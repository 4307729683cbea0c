"""Two dumps of one server compared: what changed, and which changes a normal step explains.

Start at :func:`~canary_numba.diff.dumps.diff_dumps`.
"""

from canary_numba.diff.change import Change
from canary_numba.diff.dumps import DIFF_SCHEMA_VERSION, DumpDiff, diff_dumps

__all__ = ["DIFF_SCHEMA_VERSION", "Change", "DumpDiff", "diff_dumps"]
