"""Generate with a Hugging Face Llama whose K/V cache is paged and guarded by a canary, and explain what goes wrong.

``python examples/transformers_llama.py`` decodes two prompts with a small Llama of random weights, and compares what it
generates with what transformers' own cache gives. With ``--bug`` a page of one request is freed while in use, and
handed out again: the canary stops the decoding, and the dump it leaves is explained. Needs
``pip install canary-numba[examples]`` and no GPU.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import click
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM
from transformers.cache_utils import Cache, CacheLayerMixin

from canary_numba.capture.layers import PagedPool
from canary_numba.capture.pool import KVCanary
from canary_numba.check import check_dump
from canary_numba.diagnosis import diagnose
from canary_numba.dump import save_dump
from canary_numba.errors import CorruptionError

PAGE_SIZE, NUM_PAGES, MAX_LENGTH, NEW_TOKENS = 4, 16, 32, 8
PROMPTS = {"poet": [11, 42, 7, 93, 5, 60, 18], "clerk": [11, 42, 8, 3, 77]}
CONFIG = LlamaConfig(
    vocab_size=100,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=MAX_LENGTH,
)


class Pages:
    """K and V of all layers in pages, the table of who has which slot, and the free list."""

    def __init__(self) -> None:
        shape = (NUM_PAGES, PAGE_SIZE, CONFIG.num_key_value_heads, CONFIG.head_dim)
        self.keys = [torch.zeros(shape) for _ in range(CONFIG.num_hidden_layers)]
        self.values = [torch.zeros(shape) for _ in range(CONFIG.num_hidden_layers)]
        # Row 0 and page 0 are padding.
        self.table = torch.zeros((len(PROMPTS) + 1, MAX_LENGTH), dtype=torch.int32)
        self.free = list(range(1, NUM_PAGES))

    def grow(self, row: int, pages: list[int], length: int) -> None:
        """Give a request pages until ``length`` tokens fit."""
        while len(pages) * PAGE_SIZE < length:
            start = len(pages) * PAGE_SIZE
            pages.append(self.free.pop(0))
            self.table[row, start : start + PAGE_SIZE] = pages[-1] * PAGE_SIZE + torch.arange(PAGE_SIZE)


class PagedLayer(CacheLayerMixin):
    """One layer of one request's cache: transformers hands it new K and V, and gets all of the request's back."""

    def __init__(self, pages: Pages, layer: int, row: int) -> None:
        super().__init__()
        self.pools = (pages.keys[layer].flatten(0, 1), pages.values[layer].flatten(0, 1))
        self.table, self.length = pages.table[row], 0
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing to do: the pool is there before the first token."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store ``[1, heads, new, dim]`` in the new tokens' slots; gather ``[1, heads, cached + new, dim]``."""
        start, self.length = self.length, self.length + key_states.shape[2]
        slots = self.table[: self.length].long()
        for pool, states in zip(self.pools, (key_states, value_states), strict=True):
            pool[slots[start:]] = states[0].transpose(0, 1)
        keys, values = (pool[slots].transpose(0, 1)[None] for pool in self.pools)
        return keys, values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Tokens that the attention mask covers, and where they start."""
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        """Tokens cached."""
        return self.length

    def get_max_length(self) -> int:
        """Tokens a row of the table has room for."""
        return len(self.table)


@dataclass
class Request:
    """A prompt and what was generated for it."""

    rid: str
    row: int
    tokens: list[int]
    cache: Cache
    pages: list[int] = field(default_factory=list)

    @property
    def cached(self) -> int:
        """Tokens whose K and V are in the pool."""
        return self.cache.get_seq_length()


class Server:
    """Decodes all prompts together, a token each in every step, under the eyes of a canary."""

    def __init__(self, model: LlamaForCausalLM) -> None:
        self.model, self.pages = model, Pages()
        self.requests = [
            Request(rid, row, list(prompt), Cache(layers=[PagedLayer(self.pages, layer, row) for layer in range(2)]))
            for row, (rid, prompt) in enumerate(PROMPTS.items(), start=1)
        ]
        pool = PagedPool(k_layers=self.pages.keys, v_layers=self.pages.values, page_size=PAGE_SIZE)
        self.canary = KVCanary(pool, self.pages.table, keep_source_hashes=True)

    def step(self) -> None:
        """Compute what is not cached yet, the whole prompt at first, and generate a token for each request."""
        spans = [(request.cached, len(request.tokens)) for request in self.requests]
        for request, (_, end) in zip(self.requests, spans, strict=True):
            self.pages.grow(request.row, request.pages, end)
        work = list(zip(self.requests, spans, strict=True))
        with self.canary.forward(
            req_pool_indices=[request.row for request in self.requests],
            prefix_lens=[start for start, _ in spans],
            extend_seq_lens=[end - start for start, end in spans],
            input_ids=[token for request, (start, end) in work for token in request.tokens[start:end]],
            positions=[position for start, end in spans for position in range(start, end)],
            out_cache_loc=torch.cat([self.pages.table[request.row, start:end] for request, (start, end) in work]),
            mode="raise",
        ):
            new_tokens = [next_token(self.model, request.tokens[start:], request.cache) for request, (start, _) in work]
        for request, token in zip(self.requests, new_tokens, strict=True):
            request.tokens.append(token)

    def save(self, path: Path) -> None:
        """Dump the cache as it is now, with what only the server knows."""
        dump = self.canary.snapshot(
            rids=[request.rid for request in self.requests],
            expected_tokens=[request.tokens for request in self.requests],
            free_slots=[page * PAGE_SIZE + i for page in self.pages.free for i in range(PAGE_SIZE)],
            page_size=PAGE_SIZE,
        )
        save_dump(dump, path, force=True)
        result = check_dump(dump, engine="cpu")
        click.echo(f"{path}: {result.num_violations} violations")
        for finding in diagnose(dump, result).findings:
            click.echo(f"  {finding.fault} ({finding.confidence}): {finding.summary}")
        click.echo(f"Next: canary-check {path}")


@torch.no_grad()
def next_token(model: LlamaForCausalLM, new_tokens: list[int], cache: Cache) -> int:
    """Run the model over the tokens that are not cached; return the likeliest next one."""
    logits = model(input_ids=torch.tensor([new_tokens]), past_key_values=cache, use_cache=True).logits
    return int(logits[0, -1].argmax())


def generate(model: LlamaForCausalLM, prompt: list[int]) -> list[int]:
    """Decode a prompt with transformers' own cache."""
    tokens, cache = list(prompt), DynamicCache(config=model.config)
    for _ in range(NEW_TOKENS):
        tokens.append(next_token(model, tokens[cache.get_seq_length() :], cache))
    return tokens


@click.command()
@click.option("--bug", is_flag=True, help="Free a page of a running request.")
@click.option("--output", type=click.Path(path_type=Path), default=Path("llama.pt"), show_default=True)
def main(bug: bool, output: Path) -> None:
    """Decode two prompts; stop at the first violation, save a dump and say what it shows."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(CONFIG).eval()
    server = Server(model)
    try:
        for step in range(NEW_TOKENS):
            if bug and step == 3:
                server.pages.free.insert(0, server.requests[0].pages[0])
            server.step()
    except CorruptionError as error:
        click.echo(f"pass {server.canary.passes}: {error}")
        server.save(output)
        return
    for request in server.requests:
        same = request.tokens == generate(model, PROMPTS[request.rid])
        click.echo(
            f"{request.rid}: {request.tokens} ({'the same as' if same else 'NOT what'} transformers' own cache gives)"
        )
    health = server.canary.check()
    click.echo(f"{health.passes} passes, {health.violations} violations, all checked: {health.ok}")


if __name__ == "__main__":
    main()
