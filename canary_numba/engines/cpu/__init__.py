"""The CPU engine: compiled by numba, parallel over entries and requests, deterministic."""

from canary_numba.engines.cpu.plan import plan, scatter
from canary_numba.engines.cpu.real_kv import hash_real_kv
from canary_numba.engines.cpu.verify import verify
from canary_numba.engines.cpu.write import write

__all__ = ["hash_real_kv", "plan", "scatter", "verify", "write"]
