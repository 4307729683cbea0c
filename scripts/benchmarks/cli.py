"""How long a person waits for ``canary-check``: help, and small dumps with compiled kernels at hand."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

DUMPS = Path(__file__).resolve().parents[2] / "examples" / "dumps"
_COMMANDS = {
    "import torch": [sys.executable, "-c", "import torch"],
    "canary-check --help": [sys.executable, "-m", "canary_cli.main", "--help"],
    "canary-check clean.pt": [
        *(sys.executable, "-m", "canary_cli.main", "--engine", "cpu"),
        str(DUMPS / "clean.pt"),
    ],
    "canary-check, three dumps": [
        *(sys.executable, "-m", "canary_cli.main", "--engine", "cpu"),
        *(str(path) for path in sorted(DUMPS.glob("*.pt"))),
    ],
}


def bench_cli(repeats: int = 5) -> dict[str, float]:
    """Median wall seconds of each command, run once before so that kernels are compiled and files are cached."""
    medians = {}
    for name, command in _COMMANDS.items():
        samples = []
        for _ in range(repeats + 1):
            start = time.perf_counter()
            done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            samples.append(time.perf_counter() - start)
            if done.returncode not in (0, 1):
                raise RuntimeError(f"{name} ended with {done.returncode}: {done.stderr}")
        medians[name] = statistics.median(samples[1:])
    return medians
