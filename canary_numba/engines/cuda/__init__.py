"""The CUDA engine: Numba kernels for an NVIDIA GPU, or for Numba's simulator.

Start at :mod:`~canary_numba.engines.cuda.verify` and :mod:`~canary_numba.engines.cuda.write`; both fold K/V bytes with
:mod:`~canary_numba.engines.cuda.fold`. Importing this package compiles nothing; the first launch of a kernel does.
"""

from canary_numba.engines.cuda import hash as _hash
from canary_numba.engines.cuda import plan as _plan
from canary_numba.engines.cuda import write as _write
from canary_numba.engines.cuda.eager import EagerWork, describe_hash, describe_plan, describe_verify, describe_write
from canary_numba.engines.cuda.scatter import scatter
from canary_numba.engines.cuda.verify import prepare_verify

verify = EagerWork(prepare_verify, describe_verify)
write = EagerWork(_write.prepare_write, describe_write, _write.FLAT)
plan = EagerWork(_plan.prepare_plan, describe_plan, _plan.FLAT)
hash_real_kv = EagerWork(_hash.prepare_hash, describe_hash, _hash.FLAT)

__all__ = ["hash_real_kv", "plan", "scatter", "verify", "write"]
