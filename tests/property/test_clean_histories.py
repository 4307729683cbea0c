"""Whatever a server did, as long as it did it right: no check fails, and the diagnosis has nothing to say.

``CANARY_HISTORIES=1000 pytest tests/property/test_clean_histories.py`` looks at more of them.
"""

from __future__ import annotations

import os

import pytest

from canary_numba.check import check_dump
from canary_numba.diagnosis import diagnose
from canary_numba.dump import decode, encode
from canary_numba.faults import draw_options, simulate

HISTORIES = int(os.environ.get("CANARY_HISTORIES", "48"))
AT_ONCE = 12
"""Histories of one test: each has its own seeds, so that a failure names a few."""


@pytest.mark.parametrize("first", range(0, HISTORIES, AT_ONCE))
def test_a_clean_history_gives_no_finding(first: int) -> None:
    for seed in range(first, min(first + AT_ONCE, HISTORIES)):
        dump = decode(encode(simulate(seed)))
        result = check_dump(dump, engine="cpu")
        assert result.num_violations == 0, (seed, draw_options(seed))
        assert diagnose(dump, result).findings == (), (seed, draw_options(seed))
