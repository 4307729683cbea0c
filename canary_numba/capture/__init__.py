"""From a live process to a dump: attach canaries to any paged K/V pool, or read those of a running SGLang.

Where to look:

===============  =======================================================================================================
``pool``         :class:`~canary_numba.capture.pool.KVCanary`: records for any engine's pool, checked around each pass
``passes``       what it does around one pass, and in which order
``arguments``    the arguments of a pass, checked before anything changes
``layers``       K/V tensors of any regular layout -> sources of bytes
``stages``       what is launched for one record buffer
``pool_group``   one pool: its buffers, its plan, its stages
``hashes``       hashes over more layers than a launch takes
``step``         the requests and tokens of the pass under way, at addresses that do not change
``shared_log``   the ring and the counters that all launches report into
``guard``        what happens when a pass finds violations; health
``poll``         reading a counter without waiting for the device
``snapshot``     the state of a :class:`~canary_numba.capture.pool.KVCanary` -> a dump
``copies``       device tensors -> host tensors of a dump; tables cut to the rows in use
``suspects``     the K/V bytes that are worth keeping when all are too much
``folder``       a folder that takes a few dumps and no more
``sglang``       SGLang 0.5.23: snapshot of a live process, and a recorder that writes one when something is wrong;
                 by ``sglang_snapshot``, ``sglang_state`` (which attributes are read) and ``sglang_recorder``
===============  =======================================================================================================
"""
