"""What kind of server a synthetic history is of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

HASH_MODES: Final = ("none", "partial", "all")
DTYPES: Final = ("bfloat16", "float16", "float8_e4m3fn", "uint8", "float32")
PAGE_SIZES: Final = (1, 4, 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryOptions:
    """Layout and load of a simulated server.

    Attributes
    ----------
    page_size : int
        Slots of a page of the allocator.
    hash_mode : str
        ``none``, ``partial`` or ``all``.
    dtype : str
        Of the K/V bytes, by its name in torch.
    tokens : bool
        Whether the dump says which tokens each request expects.
    window : int
        Tokens of a sliding-window pool beside the full one; 0 = no such pool.
    halves : str
        ``KV``, ``K``, or ``K-`` for a V half that exists but is not in use.
    layers : int
        K/V sources of each half, at most 4.
    values_per_token : int
        Elements of ``dtype`` of one token in one source.
    whole_token_read : bool
        Whether mode ALL fingerprints every byte of a token; else all but the last element.
    paged_sources : bool
        Whether a row of a source is a page; else it is one slot.
    interleaved : bool
        Whether K and V of a layer share rows of one storage.
    head : bool
        Whether the dump has HEAD records.
    prefix_cache : bool
        Whether finished prompts are kept and shared.
    offset : int
        1 for a draft model's pool, whose records hold the token of the next position.
    in_flight : bool
        Whether the dump is taken after a step was planned and before it ran.
    compact_rows : bool
        Whether the dump keeps only the table rows in use.
    running : int
        Requests that are served at once, at most.
    prompt, output : int
        Longest prompt and longest answer.
    steps : int
        Scheduler steps.
    """

    page_size: int = 1
    hash_mode: str = "all"
    dtype: str = "bfloat16"
    tokens: bool = True
    window: int = 0
    halves: str = "KV"
    layers: int = 2
    values_per_token: int = 16
    whole_token_read: bool = True
    paged_sources: bool = False
    interleaved: bool = False
    head: bool = True
    prefix_cache: bool = True
    offset: int = 0
    in_flight: bool = False
    compact_rows: bool = False
    running: int = 4
    prompt: int = 64
    output: int = 24
    steps: int = 26


def draw_options(seed: int) -> HistoryOptions:
    """Draw a server from ``seed``: every seed the same one, seeds together all kinds."""
    rng = np.random.default_rng([seed, 0x5EED])
    page_size = int(rng.choice(PAGE_SIZES))
    return HistoryOptions(
        page_size=page_size,
        hash_mode=str(rng.choice(HASH_MODES, p=(0.2, 0.3, 0.5))),
        dtype=str(rng.choice(DTYPES)),
        tokens=bool(rng.random() < 0.75),
        window=int(rng.choice((8, 16, 24, 40))) if rng.random() < 0.35 else 0,
        halves=str(rng.choice(("KV", "K", "K-"), p=(0.6, 0.25, 0.15))),
        layers=int(rng.integers(1, 4)),
        values_per_token=int(rng.choice((16, 20, 32))),
        whole_token_read=bool(rng.random() < 0.8),
        paged_sources=bool(rng.random() < 0.5),
        interleaved=bool(rng.random() < 0.3),
        head=bool(rng.random() < 0.8),
        prefix_cache=bool(rng.random() < 0.85),
        offset=int(rng.random() < 0.1),
        in_flight=bool(rng.random() < 0.3),
        compact_rows=bool(rng.random() < 0.2),
        running=int(rng.integers(3, 6)),
        prompt=int(rng.integers(2, 5)) * max(16, page_size),
        output=int(rng.integers(8, 40)),
        steps=int(rng.integers(12, 34)),
    )
