"""Exit codes of every command."""

from __future__ import annotations

from typing import Final

CLEAN: Final = 0
CORRUPT: Final = 1
USAGE: Final = 2
"""Wrong usage, or input that cannot be read."""
INTERNAL: Final = 3
INTERRUPTED: Final = 130
