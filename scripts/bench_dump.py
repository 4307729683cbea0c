#!/usr/bin/env python3
"""Make a large dump, check it, and compare with reading the same file from end to end in the same run.

The dump has K and V bytes of 8 layers, random, a record for every slot and requests that own them all. The check runs
in a process of its own, whose peak memory is what the system counted. Needs twice the dump's size on disk while it is
made; everything is removed at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from canary_numba.check import check_dump
from canary_numba.context import ViolationLog
from canary_numba.dump import Dump, Group, Half, Requests, Source, load_dump, save_dump
from canary_numba.kv_hashes import hash_slots
from canary_numba.launch import launch_canary_plan_kernels, launch_canary_write_kernel
from canary_numba.layout import CANARY_FIELD_REAL_KV_HASH, CANARY_SLOT_BYTES, CanaryLaunchTag, RealKvHashMode
from canary_numba.plans import VerifyPlan, WritePlan

SLOT_BYTES = 1024
NUM_REQUESTS = 64
BLOCK_BYTES = 16 << 20
WARM_UP = Path(__file__).parents[1] / "examples" / "dumps" / "clean.pt"


def write_random(path: Path, nbytes: int) -> None:
    generator = np.random.Generator(np.random.SFC64(1))
    with open(path, "wb") as file:
        for start in range(0, nbytes, BLOCK_BYTES):
            file.write(generator.bytes(min(BLOCK_BYTES, nbytes - start)))


def halves_of(path: Path, num_slots: int, layers: int) -> dict[str, list[Source]]:
    whole = torch.from_file(str(path), shared=False, size=path.stat().st_size, dtype=torch.uint8)
    pieces = iter(whole.view(2 * layers, num_slots, SLOT_BYTES))
    return {
        name: [
            Source(
                name=f"layer{layer}.{name.lower()}",
                tensor=next(pieces),
                page_size=1,
                num_bytes_per_token=SLOT_BYTES,
                read_bytes=SLOT_BYTES,
            )
            for layer in range(layers)
        ]
        for name in ("K", "V")
    }


def requests_of(num_slots: int) -> Requests:
    """Requests that own every slot but the padding, in scattered order."""
    length = (num_slots - 1) // NUM_REQUESTS
    slots = torch.randperm(num_slots - 1, generator=torch.Generator().manual_seed(2))[: length * NUM_REQUESTS] + 1
    table = torch.zeros((NUM_REQUESTS + 1, length), dtype=torch.int32)
    table[1:] = slots.view(NUM_REQUESTS, length)
    return Requests(
        rids=tuple(f"request-{i}" for i in range(NUM_REQUESTS)),
        req_pool_indices=torch.arange(1, NUM_REQUESTS + 1),
        prefix_lens=torch.full((NUM_REQUESTS,), length),
        extend_seq_lens=torch.zeros(NUM_REQUESTS, dtype=torch.int64),
        req_to_token=table,
    )


def records_of(requests: Requests, num_slots: int) -> torch.Tensor:
    """Write the records of all requests, without K/V hashes."""
    records = torch.zeros((num_slots, CANARY_SLOT_BYTES), dtype=torch.uint8)
    total = int(requests.prefix_lens.sum())
    plan = WritePlan.allocate(write_req_capacity=NUM_REQUESTS, device="cpu")
    launch_canary_plan_kernels(
        verify_plan_out=VerifyPlan.allocate(verify_capacity=1, device="cpu"),
        write_plan_out=plan,
        req_pool_indices=requests.req_pool_indices,
        prefix_lens=torch.zeros_like(requests.prefix_lens),
        extend_seq_lens=requests.prefix_lens,
        req_to_token=requests.req_to_token,
        swa_window_size=0,
        full_to_swa_index_mapping=None,
        verify_capacity=1,
        req_to_verify_expected_tokens=None,
        req_to_verify_expected_tokens_valid_lens=None,
        kv_token_id_vs_position_offset=0,
    )
    log = ViolationLog.allocate(ring_capacity=0, device="cpu")
    launch_canary_write_kernel(
        context=log.context(canary_buf=records, kernel_kind=CanaryLaunchTag.TAIL_K_FULL),
        plan=plan,
        input_ids=torch.arange(total) % 100_000,
        positions=torch.arange(requests.req_to_token.shape[1]).repeat(NUM_REQUESTS),
        out_cache_loc=requests.req_to_token[1:].reshape(-1).to(torch.int64),
        enable_write_input_assert=False,
        expected_input_tokens=None,
        expected_input_positions=None,
    )
    return records


def make_dump(path: Path, gigabytes: float, layers: int) -> None:
    num_slots = int(gigabytes * 1e9) // (2 * layers * SLOT_BYTES)
    scratch = path.with_suffix(".bytes")
    write_random(scratch, 2 * layers * num_slots * SLOT_BYTES)
    requests = requests_of(num_slots)
    records = records_of(requests, num_slots)
    halves = {}
    for name, sources in halves_of(scratch, num_slots, layers).items():
        half = Half(tail=records.clone(), sources=tuple(sources))
        hashes = hash_slots(
            half,
            RealKvHashMode.ALL,
            requests.req_to_token[1:].reshape(-1).to(torch.int64),
            engine="cpu",
            device=torch.device("cpu"),
            advance=lambda done_bytes: None,
        )
        assert half.tail is not None
        half.tail.view(torch.int64)[:, CANARY_FIELD_REAL_KV_HASH] = hashes
        halves[name] = half
    group = Group(kind="FULL", halves=halves)
    save_dump(Dump(hash_mode=RealKvHashMode.ALL, groups=(group,), requests=requests), path)
    scratch.unlink()


def forget_file(path: Path) -> None:
    """Drop the file from the page cache, so that the next reader waits for the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def read_through(path: Path) -> float:
    """Read the file from end to end with plain reads; GB/s."""
    buffer = bytearray(8 << 20)
    started = time.perf_counter()
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
    return path.stat().st_size / 1e9 / (time.perf_counter() - started)


def memory(field: str) -> float:
    """Megabytes that /proc/self/status says."""
    found = re.search(rf"{field}:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024 / 1e6


def check_here(path: Path, engine: str) -> None:
    """Check the dump in this process; print what it took as JSON."""
    # Compiles the kernels, or reads them from numba's cache.
    check_dump(load_dump(WARM_UP), engine=engine)
    before = memory("VmRSS")
    started = time.perf_counter()
    result = check_dump(load_dump(path), engine=engine)
    seconds = time.perf_counter() - started
    print(
        json.dumps(
            {
                "engine": f"{result.engine.name} on {result.engine.description}",
                "violations": result.num_violations,
                "gigabytes": result.bytes_checked / 1e9,
                "seconds": seconds,
                "before_mb": before,
                "peak_mb": memory("VmHWM"),
                "anon_mb": memory("RssAnon"),
            }
        )
    )


def measure(path: Path, engine: str) -> dict[str, float]:
    command = [sys.executable, __file__, "--check", str(path), "--engine", engine]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    if found["violations"]:
        raise SystemExit(f"the dump should check clean, but has {found['violations']} violations")
    return found


def report(label: str, path: Path, engine: str, prepare: Callable[[Path], object]) -> None:
    prepare(path)
    reading = read_through(path)
    prepare(path)
    found = measure(path, engine)
    rate = found["gigabytes"] / found["seconds"]
    print(
        f"| {found['engine']} | {label} | {path.stat().st_size / 1e9:.1f} | {found['seconds']:.1f} | {rate:.2f} "
        f"| {reading:.2f} | {100 * rate / reading:.0f} % | {found['peak_mb']:,.0f} | {found['before_mb']:,.0f} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, nargs="?", help="where to make the dump")
    parser.add_argument("--gigabytes", type=float, default=20)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--format", choices=("pt", "safetensors"), default="pt")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--warm", action="store_true", help="measure from the page cache, too: the dump must fit it")
    parser.add_argument("--check", type=Path, metavar="DUMP", help="only check this dump; for the process of its own")
    arguments = parser.parse_args()
    if arguments.check is not None:
        check_here(arguments.check, arguments.engine)
        return
    if arguments.directory is None:
        parser.error("name a directory to make the dump in")
    with tempfile.TemporaryDirectory(dir=arguments.directory) as folder:
        path = Path(folder) / f"large.{arguments.format}"
        started = time.perf_counter()
        make_dump(path, arguments.gigabytes, arguments.layers)
        print(f"made in {time.perf_counter() - started:.0f} s; {os.cpu_count()} cores, {platform.processor()}")
        print("| engine | file is | GB | s | GB/s | plain reads GB/s | share | peak MB | before MB |")
        print("|---|---|---|---|---|---|---|---|---|")
        report("on disk", path, arguments.engine, forget_file)
        if arguments.warm:
            report("in the page cache", path, arguments.engine, read_through)


if __name__ == "__main__":
    main()
