"""Synthetic clean histories, and every fault injected into a dump with a label that says what was done.

``simulate`` runs a small seeded server and dumps its state; ``inject`` breaks a dump (that one or a real one) as the
fault happens in the field. Together they measure the checks and the diagnosis.

==============================  ========================================================================================
``options``, ``history``        what kind of server, and its state as a dump
``server``, ``workload``        the server, step by step, and who talks to it
``pages``, ``prefix_cache``,    its allocator, its prefix cache, its sliding window
``window``
``memory``, ``write_queue``,    its pools, stamped by the project's own write kernel
``slot_bytes``
``inject``, ``label``           a fault by name, and what it did
``scene``, ``pool``,            the dump that a fault edits: tables and lists, records and bytes, places to strike
``copying``, ``stretches``
``*_faults``                    the faults, by family
==============================  ========================================================================================
"""

from __future__ import annotations

from canary_numba.fault_names import FAULT_NAMES
from canary_numba.faults.history import simulate
from canary_numba.faults.inject import inject
from canary_numba.faults.label import Label
from canary_numba.faults.options import HistoryOptions, draw_options
from canary_numba.faults.rank_faults import ranked

__all__ = [
    "FAULT_NAMES",
    "HistoryOptions",
    "Label",
    "draw_options",
    "inject",
    "ranked",
    "simulate",
]
