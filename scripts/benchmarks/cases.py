"""The cases that are timed: what a server does in a step, as lengths, layouts and modes."""

from __future__ import annotations

from dataclasses import dataclass

MODES = ("none", "partial", "all")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One workload: verify, write, plan, or the step of a server that is made of them.

    ``requests`` of ``prefix`` cached and ``extend`` new tokens each; ``row_bytes`` of each source per slot (of K, and
    of V as well, in a step); ``mode`` of the real-KV hash; ``page_size`` slots a row; ``scattered``: a request's slots
    lie anywhere in the pool; ``window``: sliding window in tokens, 0 = none; ``sglang_us``: what SGLang 0.5.23's
    kernels take (PERF table, H200).
    """

    name: str
    work: str
    requests: int
    prefix: int = 0
    extend: int = 0
    row_bytes: tuple[int, ...] = ()
    mode: str = "none"
    page_size: int = 1
    scattered: bool = True
    window: int = 0
    sglang_us: float | None = None
    target: str = ""

    @property
    def tokens(self) -> int:
        """Tokens in the pool after the step."""
        return self.requests * (self.prefix + self.extend)

    @property
    def verified(self) -> int:
        """Entries that a verify plan of the case holds."""
        kept = min(self.prefix, self.window) if self.window else self.prefix
        return self.requests * kept

    @property
    def written(self) -> int:
        """Tokens that a write of the case stores."""
        return self.requests * self.extend

    @property
    def hashed_bytes(self) -> int:
        """K/V bytes read for one slot."""
        per_source = {"none": lambda b: 0, "partial": lambda b: 16, "all": lambda b: b}[self.mode]
        return sum(per_source(b) for b in self.row_bytes)

    @property
    def bytes_moved(self) -> int:
        """Bytes that the work must move: plan, records and K/V bytes, each once (predecessors are neighbours)."""
        verify = self.verified * (32 + 32 + self.hashed_bytes)
        write = self.written * (24 + 32 + self.hashed_bytes)
        plan = self.verified * (32 + 4) + self.requests * 48
        if self.work == "step":
            # HEAD and TAIL of K and of V; only TAIL hashes K/V bytes.
            return plan + 4 * (verify + write) - 2 * (self.verified + self.written) * self.hashed_bytes
        return {"verify": verify, "write": write, "plan": plan}[self.work]


def _verify(name: str, **kwargs: object) -> Case:
    return Case(name=name, work="verify", **kwargs)  # type: ignore[arg-type]


def _write(name: str, **kwargs: object) -> Case:
    return Case(name=name, work="write", **kwargs)  # type: ignore[arg-type]


def _plan(name: str, **kwargs: object) -> Case:
    return Case(name=name, work="plan", **kwargs)  # type: ignore[arg-type]


def _steps(name: str, *, targets: dict[str, str], **kwargs: object) -> tuple[Case, ...]:
    """The step in every mode; ``targets`` by mode."""
    return tuple(
        Case(
            name=f"{name}, {mode}",
            work="step",
            row_bytes=() if mode == "none" else (1024,),
            mode=mode,
            target=targets.get(mode, ""),
            **kwargs,  # type: ignore[arg-type]
        )
        for mode in MODES
    )


CASES: tuple[Case, ...] = (
    _verify(
        "decode steady, 1 KiB rows, scattered",
        requests=256,
        prefix=4096,
        row_bytes=(1024,),
        mode="all",
        sglang_us=1266,
        target="<= 250 us, >= 90 % of read",
    ),
    _verify(
        "decode steady, 1 KiB rows, consecutive",
        requests=256,
        prefix=4096,
        row_bytes=(1024,),
        mode="all",
        scattered=False,
    ),
    _verify(
        "decode steady, 2 KiB rows, scattered",
        requests=256,
        prefix=4096,
        row_bytes=(2048,),
        mode="all",
        target=">= 90 % of read",
    ),
    _verify("decode tail, 7 requests", requests=7, prefix=4096, row_bytes=(1024,), mode="all"),
    _verify("long prefix, 1 x 131,072", requests=1, prefix=131072, row_bytes=(1024,), mode="all"),
    _verify("sliding window 4,096 of 8,192", requests=128, prefix=8192, window=4096, row_bytes=(1024,), mode="all"),
    _verify("MLA, 1,152 B rows", requests=256, prefix=4096, row_bytes=(1152,), mode="all", target=">= 90 % of read"),
    _verify("FP8, 512 B rows", requests=256, prefix=4096, row_bytes=(512,), mode="all", target=">= 70 % of read"),
    _verify("128 B rows, scattered", requests=512, prefix=8192, row_bytes=(128,), mode="all"),
    _verify(
        "128 B rows, consecutive",
        requests=512,
        prefix=8192,
        row_bytes=(128,),
        mode="all",
        scattered=False,
        target=">= 70 % of read",
    ),
    _verify("64 B rows, scattered", requests=512, prefix=8192, row_bytes=(64,), mode="all"),
    _verify(
        "64 B rows, consecutive",
        requests=512,
        prefix=8192,
        row_bytes=(64,),
        mode="all",
        scattered=False,
        target=">= 70 % of read",
    ),
    _verify("584 B rows", requests=256, prefix=4096, row_bytes=(584,), mode="all", target=">= 70 % of read"),
    _verify(
        "16-slot pages, 512 B a slot",
        requests=256,
        prefix=4096,
        row_bytes=(512,),
        page_size=16,
        mode="all",
        target=">= 70 % of read",
    ),
    _verify(
        "PARTIAL, 1 KiB rows",
        requests=256,
        prefix=4096,
        row_bytes=(1024,),
        mode="partial",
        sglang_us=168,
        target=">= 80 % of gather",
    ),
    _verify("NONE, 256 x 4,096", requests=256, prefix=4096, sglang_us=117),
    _verify("NONE, 16.8 M entries", requests=512, prefix=32768, sglang_us=716, target="<= 477 us"),
    _write(
        "prefill, 1 x 8,192, 1 KiB rows",
        requests=1,
        extend=8192,
        row_bytes=(1024,),
        mode="all",
        sglang_us=59500,
        target="<= 850 us",
    ),
    _write("prefill chunk after 24,576", requests=1, prefix=24576, extend=8192, row_bytes=(1024,), mode="all"),
    _write("prefill, 1 x 8,192, 2 KiB rows", requests=1, extend=8192, row_bytes=(2048,), mode="all", sglang_us=118600),
    _write(
        "prefill, 64 x 2,048, 1 KiB rows",
        requests=64,
        extend=2048,
        row_bytes=(1024,),
        mode="all",
        sglang_us=22100,
        target="<= 350 us",
    ),
    _write(
        "prefill, 256 x 4,096, 1 KiB rows",
        requests=256,
        extend=4096,
        row_bytes=(1024,),
        mode="all",
        sglang_us=44200,
        target="<= 750 us",
    ),
    _write("NONE, 1 x 8,192", requests=1, extend=8192, sglang_us=1800, target="<= 750 us"),
    _write("NONE, 64 x 2,048", requests=64, extend=2048, sglang_us=620),
    _write("NONE, 256 x 4,096", requests=256, extend=4096, sglang_us=1580),
    _write("decode, 256 x 1 at 4,096", requests=256, prefix=4096, extend=1, row_bytes=(1024,), mode="all"),
    _write("decode, 4,096 x 1 at 64", requests=4096, prefix=64, extend=1, row_bytes=(1024,), mode="all"),
    _plan("1 x 8,192", requests=1, prefix=8192, extend=1, sglang_us=178),
    _plan("64 x 2,048", requests=64, prefix=2048, extend=1, sglang_us=91),
    _plan("256 x 4,096", requests=256, prefix=4096, extend=1, sglang_us=170, target="<= 40 us"),
    _plan("65,536 x 64", requests=65536, prefix=64, extend=1, target=">= 60 % of copy"),
    *_steps(
        "decode, 256 x 1 at 4,096",
        requests=256,
        prefix=4096,
        extend=1,
        targets=dict.fromkeys(MODES, "eager <= 1/3 of SGLang"),
    ),
    *_steps("prefill, 1 x 8,192", requests=1, extend=8192, targets={"all": "<= 1/20 of SGLang"}),
    *_steps("prefill, 8,192 at 24,576", requests=1, prefix=24576, extend=8192, targets={"all": "<= 1/20 of SGLang"}),
)
