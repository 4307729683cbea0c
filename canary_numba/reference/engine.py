"""The reference as an engine: what :mod:`canary_numba.launch` calls for ``engine="reference"``."""

from __future__ import annotations

from canary_numba.reference.plan import plan
from canary_numba.reference.real_kv import hash_real_kv
from canary_numba.reference.scatter import scatter
from canary_numba.reference.verify import verify
from canary_numba.reference.write import write

__all__ = ["hash_real_kv", "plan", "scatter", "verify", "write"]
