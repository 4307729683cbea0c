"""SGLang 0.5.23: a dump of a live process, and a recorder that writes one when something is wrong.

:func:`snapshot` copies what SGLang's own KV-canary keeps; :func:`install` hooks a recorder into its manager. Both read
SGLang's objects by attribute and import nothing of it.
"""

from __future__ import annotations

from canary_numba.capture.sglang_recorder import Recorder, install
from canary_numba.capture.sglang_snapshot import snapshot

__all__ = ["Recorder", "install", "snapshot"]
