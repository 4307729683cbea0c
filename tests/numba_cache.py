"""Where compiled functions are cached while tests run."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path


def fresh_numba_cache() -> str:
    """A cache folder of its own for every state of the sources.

    Numba looks only at the file that holds a cached function: after a change to a function it calls in another file, a
    cache that outlives the change would have the tests pass on the old code.
    """
    digest = hashlib.sha256()
    for path in sorted((Path(__file__).resolve().parent.parent / "canary_numba").rglob("*.py")):
        digest.update(path.read_bytes())
    return str(Path(tempfile.gettempdir()) / f"canary-numba-cache-{os.getuid()}" / digest.hexdigest()[:16])
