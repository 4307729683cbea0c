"""Run the cases on the GPU, check every output against the CPU engine, print the table."""

from __future__ import annotations

import json
import platform
import time
from dataclasses import asdict
from typing import Any

import click
import numba
import torch

from benchmarks.build import Workload, build
from benchmarks.cases import CASES, Case
from benchmarks.checking import check_plan, check_verify, check_write
from benchmarks.cli import bench_cli
from benchmarks.cpu import bench_cpu
from benchmarks.peer import Peers, find_peers
from benchmarks.timing import Ceilings, measure_ceilings, time_device, time_host
from canary_numba.prepared import PreparedPlan, PreparedVerify, PreparedWrite

_CHECKS = {"verify": check_verify, "write": check_write, "plan": check_plan}
WORKS = (*_CHECKS, "cpu", "cli")


def _prepare(load: Workload) -> Any:
    if load.case.work == "verify":
        return PreparedVerify(context=load.context, plan=load.verify_plan, check_verify_expected_token=False)
    if load.case.work == "write":
        return PreparedWrite(context=load.context, plan=load.write_plan, **load.write_arguments)
    return PreparedPlan(**load.plan_arguments)


def _ceiling(case: Case, ceilings: Ceilings) -> tuple[str, float]:
    if case.work == "plan":
        return "copy", ceilings.copy
    if case.mode == "all":
        return "read", ceilings.read
    return "gather", ceilings.gather


def _counted_bytes(case: Case) -> int:
    if case.work == "verify" and case.mode != "all":
        # Records and 16-byte pieces are gathered by 32-byte sectors; a probe's entry costs its 8-byte index besides.
        return case.verified * (32 + 8) * (1 + (len(case.row_bytes) if case.mode == "partial" else 0))
    return case.bytes_moved


def run_case(case: Case, ceilings: Ceilings, check: bool, peers: Peers) -> dict[str, Any]:
    """Time one case; ``check`` compares its outputs with the CPU engine's first."""
    load = build(case, "cuda")
    start = time.perf_counter()
    prepared = _prepare(load)
    prepared()
    torch.cuda.synchronize()
    compile_s = time.perf_counter() - start
    checked = _CHECKS[case.work](load, prepared) if check else None
    device = time_device(prepared)
    host = time_host(prepared)
    peer = peers.prepare(load)
    sglang_us = time_device(peer).median_us if peer else case.sglang_us
    name, ceiling = _ceiling(case, ceilings)
    rate = _counted_bytes(case) / device.median_us * 1e6
    return {
        "case": case.name,
        "work": case.work,
        "bytes": case.bytes_moved,
        "median_us": device.median_us,
        "low_us": device.low_us,
        "high_us": device.high_us,
        "host_us": host.median_us,
        "ceiling": name,
        "share_of_ceiling": rate / ceiling,
        "sglang_us": sglang_us,
        "sglang_measured_here": peer is not None,
        "target": case.target,
        "compile_s": compile_s,
        "checked": checked,
    }


def _line(row: dict[str, Any]) -> str:
    ratio = f"{row['sglang_us'] / row['median_us']:6.1f}x" if row["sglang_us"] else "      -"
    return (
        f"{row['work']:6} {row['case']:42} {row['bytes'] / 1e6:9.1f} {row['median_us']:9.1f} "
        f"{row['low_us']:8.1f}-{row['high_us']:<8.1f} {100 * row['share_of_ceiling']:5.1f}% {row['ceiling']:6} "
        f"{row['host_us']:6.1f} {ratio} {row['compile_s']:5.1f} {row['checked'] or '':8} {row['target']}"
    )


def _print_cpu() -> list[dict[str, Any]]:
    click.echo(f"{'CPU engine, us a token':28} {'reference':>10} {'1 thread':>9} {'all':>9} {'ratio':>8}")
    rows = []
    for row in bench_cpu():
        ratio = row.reference_us / row.all_threads_us
        click.echo(
            f"{row.work:6} {row.mode:21} {row.reference_us:10.1f} {row.one_thread_us:9.4f} "
            f"{row.all_threads_us:9.4f} {ratio:7,.0f}x"
        )
        rows.append(asdict(row))
    return rows


def _print_cli() -> dict[str, float]:
    medians = bench_cli()
    for name, seconds in medians.items():
        click.echo(f"{name:28} {seconds:6.2f} s")
    return medians


def _print_gpu(works: set[str], pattern: str, check: bool) -> dict[str, Any]:
    ceilings, peers = measure_ceilings(), find_peers()
    click.echo(
        f"ceilings: read {ceilings.read / 1e12:.2f} TB/s, copy {ceilings.copy / 1e12:.2f} TB/s, "
        f"gather {ceilings.gather / 1e12:.2f} TB/s (32-byte sectors and their index)"
    )
    click.echo(f"SGLang's kernels: {peers.missing or 'measured here'}; otherwise figures of a run elsewhere")
    click.echo(
        f"{'work':6} {'case':42} {'MB':>9} {'median us':>9} {'10 to 90 %':>17} {'of ceiling':>13} "
        f"{'host us':>6} {'SGLang':>7} {'compile':>5}"
    )
    rows = []
    for case in CASES:
        if case.work not in works or pattern not in case.name:
            continue
        rows.append(run_case(case, ceilings, check, peers))
        click.echo(_line(rows[-1]))
        torch.cuda.empty_cache()
    return {"ceilings": asdict(ceilings), "rows": rows}


@click.command()
@click.option("--work", type=click.Choice(WORKS), multiple=True, help="Only these kinds of work; may be repeated.")
@click.option("--case", "pattern", default="", help="Only GPU cases whose name contains this.")
@click.option("--no-check", is_flag=True, help="Skip the comparison with the CPU engine.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False), help="Write the figures to this file.")
def main(work: tuple[str, ...], pattern: str, no_check: bool, json_path: str | None) -> None:
    """Time the kernels on this machine's GPU, the CPU engine (--work cpu) and the command line (--work cli).

    Without --work: everything, without a GPU the last two.
    """
    gpu = torch.cuda.is_available()
    chosen = set(work or (WORKS if gpu else ("cpu", "cli")))
    if not gpu and chosen & set(_CHECKS):
        raise click.ClickException("timing kernels needs an NVIDIA GPU")
    device = torch.cuda.get_device_name() if gpu else f"{platform.machine()}, {numba.get_num_threads()} threads"
    versions = f"torch {torch.__version__}, numba {numba.__version__}, Python {platform.python_version()}"
    click.echo(f"{device}; {versions}; {time.strftime('%Y-%m-%d')}")
    figures: dict[str, Any] = {"device": device, "versions": versions}
    if chosen & set(_CHECKS):
        figures |= _print_gpu(chosen, pattern, not no_check)
    if "cpu" in chosen:
        figures["cpu"] = _print_cpu()
    if "cli" in chosen:
        figures["cli"] = _print_cli()
    if json_path:
        with open(json_path, "w") as file:
            json.dump(figures, file)


if __name__ == "__main__":
    main()
