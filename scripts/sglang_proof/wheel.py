"""SGLang's kernels and their test helpers from the bare files of its wheel."""

from __future__ import annotations

import sys
import types
from pathlib import Path

from benchmarks.sglang_wheel import make_importable


def load_kernels(folder: Path) -> None:
    """Make `sglang.kernels.ops.kv_canary` and `sglang.test.kernels.kv_canary` importable from the wheel's files."""
    make_importable(folder)
    for name in ("sglang.test", "sglang.test.kernels"):
        package = types.ModuleType(name)
        package.__path__ = [str(folder.joinpath(*name.split(".")))]
        sys.modules[name] = package
