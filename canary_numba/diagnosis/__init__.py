"""Names the fault behind violations: which requests, positions and slots, who owns and who wrote them, how sure.

``diagnose`` walks from what needs no hashing (tables, free lists, mappings) to records and then bytes. Each family of
faults has a module, each fault's signature stands in its module's docstring; :mod:`~canary_numba.diagnosis.catalog`
lists them all.
"""

from __future__ import annotations

from canary_numba.diagnosis.diagnose import diagnose

__all__ = ["diagnose"]
