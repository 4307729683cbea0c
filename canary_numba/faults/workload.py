"""Who talks to the simulated server: prompts that share beginnings, conversations that go on."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from canary_numba.faults.options import HistoryOptions
from canary_numba.faults.prefix_cache import Node

VOCABULARY = 32000


@dataclass(slots=True, eq=False)
class Request:
    """A request on its way through the server.

    ``tokens``: prompt, answer and the one token after it, all drawn beforehand; ``cached``: how many of them have
    records; ``pages``: its pages in order; ``held``: its path in the prefix cache; ``transfer``: kind of the event that
    brings its first part in, None = it is computed.
    """

    rid: str
    tokens: list[int]
    prompt: int
    total: int
    extra_key: str | None = None
    transfer: str | None = None
    row: int = 0
    cached: int = 0
    planned: int = 0
    pages: list[int] = field(default_factory=list)
    held: list[Node] = field(default_factory=list)

    @property
    def known(self) -> int:
        """Tokens known so far: the prompt, and the answer up to the one that the next step feeds."""
        return max(self.prompt, self.cached + self.planned, min(self.cached + 1, len(self.tokens)))


class Workload:
    """Draws requests: new prompts, prompts with a common beginning, and questions that continue an earlier answer."""

    def __init__(self, rng: np.random.Generator, options: HistoryOptions) -> None:
        self._rng = rng
        self._options = options
        self._beginnings = [self._draw(int(rng.integers(8, 1 + options.prompt // 2))) for _ in range(2)]
        self._past: list[list[int]] = []
        self._count = 0

    def _draw(self, count: int) -> list[int]:
        drawn: list[int] = self._rng.integers(1, VOCABULARY, count).tolist()
        return drawn

    def next(self) -> Request:
        """Draw the next request."""
        rng, options = self._rng, self._options
        kind = rng.random()
        tokens: list[int] = []
        if kind < 0.5:
            tokens = list(self._beginnings[int(rng.integers(2))])
        elif kind < 0.65 and self._past:
            past = self._past[int(rng.integers(len(self._past)))]
            tokens = past[: int(rng.integers(1, len(past) + 1))][: options.prompt - 1]
        tokens += self._draw(int(rng.integers(1, max(2, options.prompt - len(tokens) + 1))))
        prompt = len(tokens)
        tokens += self._draw(int(rng.integers(2, options.output + 2)))
        name = ("chat", "doc", "code")[self._count % 3]
        request = Request(rid=f"{name}-{self._count}", tokens=tokens, prompt=prompt, total=len(tokens) - 1)
        if rng.random() < 0.12:
            request.transfer = str(rng.choice(("receive", "restore")))
        if rng.random() < 0.1:
            request.extra_key = f"adapter-{int(rng.integers(2))}"
        self._past.append(tokens)
        self._count += 1
        return request
