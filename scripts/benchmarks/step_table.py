"""Timing the step: SGLang's launchers, ours as they run in their place, ours prepared, and CUDA graphs.

Ours take K and V of a stage together, as the integration hands them over.

A run starts on an idle device with a cold L2 and ends with its last kernel, so that an eager step includes what the
device waits for the host; that is what a server waits for. Speed-ups compare eager steps with SGLang's eager step and
graphs with its graph.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.cases import Case
from benchmarks.peer import LAUNCHERS, Peers, first_line, takes
from benchmarks.step import Launchers, Step, build_step, check_runners, launched, prepared
from benchmarks.timing import Captured, repeats_within, time_device, time_host
from canary_numba import launch_canary_plan_kernels, launch_canary_verify_kernel, launch_canary_write_kernel

SECONDS_TIMED = 0.6
_OURS: Launchers = {
    "verify": launch_canary_verify_kernel,
    "write": launch_canary_write_kernel,
    "plan": launch_canary_plan_kernels,
}
_COMPARED_WITH = {"ours eager": "sglang eager", "ours prepared": "sglang eager", "ours graph": "sglang graph"}


def _run_once(work: Callable[[], None]) -> Callable[[], None]:
    work()
    torch.cuda.synchronize()
    return work


def ready_runners(step: Step, peers: Peers) -> tuple[dict[str, Callable[[], None]], dict[str, str]]:
    """All ways of running the step, compiled and run once; and those that cannot be had, with the reason."""
    makers: dict[str, Callable[[], Callable[[], None]]] = {
        "ours eager": lambda: _run_once(launched(step, _OURS, together=True)),
        "ours prepared": lambda: _run_once(prepared(step)),
        "ours graph": lambda: Captured(prepared(step)),
    }
    runners: dict[str, Callable[[], None]] = {}
    missing: dict[str, str] = {}
    if not takes(step.load.case):
        missing["sglang"] = "beyond its limits"
    elif peers.launchers.keys() != LAUNCHERS.keys():
        missing["sglang"] = peers.about
    else:
        theirs = launched(step, peers.launchers)
        makers = {"sglang eager": lambda: _run_once(theirs), "sglang graph": lambda: Captured(theirs)} | makers
    for name, make in makers.items():
        try:
            runners[name] = make()
        except Exception as error:
            missing[name] = first_line(error)
    return runners, missing


def _figures(runner: Callable[[], None]) -> dict[str, Any]:
    repeats = repeats_within(runner, SECONDS_TIMED)
    device = time_device(runner, repeats, warmups=0, idle=True)
    host = time_host(runner, repeats)
    return {
        "median_us": device.median_us,
        "low_us": device.low_us,
        "high_us": device.high_us,
        "host_us": host.median_us,
        "repeats": repeats,
    }


def with_ratios(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add to each of our rows how many times SGLang's step of the same kind takes as long."""
    times = {row["runner"]: row["median_us"] for row in rows}
    for row in rows:
        theirs = times.get(_COMPARED_WITH.get(row["runner"], ""))
        row["sglang_ratio"] = theirs / row["median_us"] if theirs else None
    return rows


def _checked(step: Step, runners: dict[str, Callable[[], None]]) -> str:
    try:
        return check_runners(step, runners)
    except AssertionError as error:
        return f"NOT EQUAL: {error}"


def run_step(case: Case, check: bool, peers: Peers) -> dict[str, Any]:
    """Time one step in every way; ``check`` compares first what the ways leave."""
    step = build_step(case, "cuda")
    start = time.perf_counter()
    runners, missing = ready_runners(step, peers)
    return {
        "case": case.name,
        "mode": case.mode,
        "bytes": case.bytes_moved,
        "target": case.target,
        "ready_s": time.perf_counter() - start,
        "missing": missing,
        "checked": _checked(step, runners) if check and runners else None,
        "runners": with_ratios([{"runner": name} | _figures(runner) for name, runner in runners.items()]),
    }


def problems(step: dict[str, Any]) -> list[str]:
    """What must not be: ways that leave something else, and ways of ours that do not run."""
    found = [f"{name}: {why}" for name, why in step["missing"].items() if not name.startswith("sglang")]
    if (step["checked"] or "").startswith("NOT EQUAL"):
        found.append(step["checked"])
    return [f"{step['case']}, {what}" for what in found]


HEADING = f"{'step':24} {'MB':>9} {'median us':>10} {'10 to 90 %':>19} {'host us':>8} {'SGLang':>8}"


def step_lines(step: dict[str, Any]) -> list[str]:
    """One step as lines of text."""
    about = [step["checked"], f"target {step['target']}" if step["target"] else None]
    about.append(f"compiled and run once in {step['ready_s']:.1f} s")
    lines = [f"{step['case']} ({'; '.join(part for part in about if part)})"]
    for row in step["runners"]:
        ratio = f"{row['sglang_ratio']:7.1f}x" if row["sglang_ratio"] else f"{'-':>8}"
        lines.append(
            f"  {row['runner']:22} {step['bytes'] / 1e6:9.1f} {row['median_us']:10.1f} "
            f"{row['low_us']:9.1f}-{row['high_us']:<9.1f} {row['host_us']:8.1f} {ratio}"
        )
    return lines + [f"  {name:22} left out: {why}" for name, why in step["missing"].items()]
