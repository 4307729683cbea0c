"""Working inside other software: its kernels replaced, its monitoring fed.

Where to look:

==============  ========================================================================================================
``sglang``      SGLang 0.5.23 runs its KV-canary on this package's kernels
``prometheus``  what a :class:`~canary_numba.capture.pool.KVCanary` finds, as Prometheus metrics
==============  ========================================================================================================

None of that software is needed to import this package; what needs it says so when called.
"""
