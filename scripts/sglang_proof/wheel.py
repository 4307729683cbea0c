"""SGLang's kernels and their test helpers from the bare files of its wheel."""

from __future__ import annotations

import sys
import types
from pathlib import Path

from compare_sglang import load_sglang


def load_kernels(folder: Path) -> None:
    """Make `sglang.kernels.ops.kv_canary` and `sglang.test.kernels.kv_canary` importable from the wheel's files."""
    load_sglang(folder)
    for name in ("sglang.test", "sglang.test.kernels"):
        package = types.ModuleType(name)
        package.__path__ = [str(folder.joinpath(*name.split(".")))]
        sys.modules[name] = package
