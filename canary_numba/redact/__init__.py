"""Redaction: the same dump without its content, which checks and diagnoses the same and can be handed on.

``redact_dump`` hides token ids, chains, K/V bytes and, on request, names. ``secret`` holds the key, ``chains`` builds
the records anew, ``kv`` the bytes. docs/commands.md says what is hidden and what is not.
"""

from __future__ import annotations

from canary_numba.redact.dump import CONTEXT_KEPT, redact_dump

__all__ = ["CONTEXT_KEPT", "redact_dump"]
