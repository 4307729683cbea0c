"""A tiny transformer with random weights, whose attention reads K and V through a table of slots."""

from __future__ import annotations

import math

import torch

VOCABULARY, LAYERS, HEADS, HEAD_DIM = 64, 2, 2, 8
WIDTH = HEADS * HEAD_DIM


class PagedModel:
    """Decoder layers over a pool of K/V slots.

    ``k_pool``, ``v_pool``: one float32 ``[pages, page_size, heads, head_dim]`` tensor a layer.
    """

    def __init__(self, *, num_pages: int, page_size: int, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)

        def weights(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator) / math.sqrt(shape[0])

        self.embedding = torch.randn((VOCABULARY, WIDTH), generator=generator)
        self.qkv = [weights(WIDTH, 3 * WIDTH) for _ in range(LAYERS)]
        self.out = [weights(WIDTH, WIDTH) for _ in range(LAYERS)]
        self.up = [weights(WIDTH, 2 * WIDTH) for _ in range(LAYERS)]
        self.down = [weights(2 * WIDTH, WIDTH) for _ in range(LAYERS)]
        shape = (num_pages, page_size, HEADS, HEAD_DIM)
        self.k_pool = [torch.zeros(shape) for _ in range(LAYERS)]
        self.v_pool = [torch.zeros(shape) for _ in range(LAYERS)]

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor, tables: list[torch.Tensor]
    ) -> torch.Tensor:
        """Compute the new tokens of a batch and store their K and V; return the next token of each request.

        ``input_ids``, ``positions``, ``slots``: int64 ``[num_tokens]``, request by request. ``tables``: for each
        request the slots of all its tokens, the new ones last.
        """
        angles = positions[:, None] / 50.0 ** (torch.arange(0, WIDTH, 2) / WIDTH)
        hidden = self.embedding[input_ids] + torch.cat([angles.sin(), angles.cos()], dim=1)
        ends = self._ends(positions, tables)
        for layer in range(LAYERS):
            q, k, v = (part.view(-1, HEADS, HEAD_DIM) for part in (hidden @ self.qkv[layer]).chunk(3, dim=1))
            keys, values = self.k_pool[layer].flatten(0, 1), self.v_pool[layer].flatten(0, 1)
            keys[slots], values[slots] = k, v
            attended = torch.empty_like(q)
            start = 0
            for table, end in zip(tables, ends, strict=True):
                attended[start:end] = _attend(q[start:end], keys[table], values[table], positions[start:end])
                start = end
            hidden = hidden + attended.flatten(1) @ self.out[layer]
            hidden = hidden + torch.relu(_normalised(hidden) @ self.up[layer]) @ self.down[layer]
        logits = _normalised(hidden) @ self.embedding.T
        return logits[torch.tensor(ends) - 1].argmax(dim=1)

    @staticmethod
    def _ends(positions: torch.Tensor, tables: list[torch.Tensor]) -> list[int]:
        ends, start = [], 0
        for table in tables:
            start += len(table) - int(positions[start])
            ends.append(start)
        return ends


def _normalised(hidden: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.layer_norm(hidden, (WIDTH,))


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Causal attention of the queries at ``positions`` over all keys and values of their request."""
    scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(HEAD_DIM)
    future = torch.arange(len(k))[None, :] > positions[:, None]
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(future, -torch.inf).softmax(dim=2), v)
