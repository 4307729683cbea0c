"""The CUDA engine: Numba kernels for an NVIDIA GPU, or for Numba's simulator.

Start at :mod:`~canary_numba.engines.cuda.verify` and :mod:`~canary_numba.engines.cuda.write`; both fold K/V bytes with
:mod:`~canary_numba.engines.cuda.fold`. Importing this package compiles nothing; the first launch of a kernel does.
"""

from canary_numba.engines.cuda.hash import hash_real_kv
from canary_numba.engines.cuda.plan import plan
from canary_numba.engines.cuda.scatter import scatter
from canary_numba.engines.cuda.verify import verify
from canary_numba.engines.cuda.write import write

__all__ = ["hash_real_kv", "plan", "scatter", "verify", "write"]
