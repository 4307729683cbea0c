"""Run the cases on the GPU, check every output against the CPU engine, print the table.

``--sglang FOLDER`` times SGLang's own kernels beside these from the bare files of its wheel: ``FOLDER`` is the wheel
unzipped, or what ``pip install --no-deps --target FOLDER sglang==0.5.23`` makes. Read from it are ``sglang/version.py``
and ``_version.py``, ``sglang/kernels/ops/kv_canary`` and, in ``sglang/kernels/jit``, ``csrc/kv_canary`` and
``include``; compiling takes nvcc and the package ``apache-tvm-ffi``. What SGLang's kernels leave is compared with what
these leave.
"""

from __future__ import annotations

import json
import platform
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import numba
import torch

from benchmarks.build import Workload, build
from benchmarks.cases import CASES, Case
from benchmarks.checking import check_plan, check_verify, check_write, same_outputs
from benchmarks.cli import bench_cli
from benchmarks.cpu import bench_cpu
from benchmarks.peer import Peers, find_peers, first_line
from benchmarks.step_table import HEADING, problems, run_step, step_lines
from benchmarks.timing import Ceilings, measure_ceilings, repeats_within, time_device, time_host
from canary_numba.prepared import PreparedPlan, PreparedVerify, PreparedWrite

_CHECKS = {"verify": check_verify, "write": check_write, "plan": check_plan}
GPU_WORKS = (*_CHECKS, "step")
WORKS = (*GPU_WORKS, "cpu", "cli")


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


def _peer_figures(load: Workload, prepared: Any, check: bool, peers: Peers) -> dict[str, Any]:
    """What SGLang's kernel takes here and whether it leaves the same; where it cannot run, its time elsewhere."""
    figures: dict[str, Any] = {
        "sglang_us": load.case.sglang_us,
        "sglang_measured_here": False,
        "sglang_checked": None,
        "sglang_error": None,
    }
    peer = peers.prepare(load)
    if peer is None:
        return figures
    try:
        peer()
        if check:
            figures["sglang_checked"] = "equal" if same_outputs(load, prepared, peer) else "differs"
        figures["sglang_us"] = time_device(peer, repeats_within(peer, 0.6)).median_us
        figures["sglang_measured_here"] = True
    except Exception as error:
        figures["sglang_error"] = first_line(error)
    return figures


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
        "target": case.target,
        "compile_s": compile_s,
        "checked": checked,
    } | _peer_figures(load, prepared, check, peers)


def _line(row: dict[str, Any]) -> str:
    ratio = f"{row['sglang_us'] / row['median_us']:6.1f}x" if row["sglang_us"] else "      -"
    return (
        f"{row['work']:6} {row['case']:42} {row['bytes'] / 1e6:9.1f} {row['median_us']:9.1f} "
        f"{row['low_us']:8.1f}-{row['high_us']:<8.1f} {100 * row['share_of_ceiling']:5.1f}% {row['ceiling']:6} "
        f"{row['host_us']:6.1f} {ratio} {row['sglang_checked'] or '':7} {row['compile_s']:5.1f} "
        f"{row['checked'] or '':8} {row['target']}"
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


def _print_kernels(cases: list[Case], check: bool, peers: Peers, figures: dict[str, Any]) -> None:
    ceilings = measure_ceilings()
    click.echo(
        f"ceilings: read {ceilings.read / 1e12:.2f} TB/s, copy {ceilings.copy / 1e12:.2f} TB/s, "
        f"gather {ceilings.gather / 1e12:.2f} TB/s (32-byte sectors and their index)"
    )
    click.echo(
        f"{'work':6} {'case':42} {'MB':>9} {'median us':>9} {'10 to 90 %':>17} {'of ceiling':>13} "
        f"{'host us':>6} {'SGLang':>7} {'':7} {'compile':>5}"
    )
    figures |= {"ceilings": asdict(ceilings), "rows": (rows := [])}
    for case in cases:
        rows.append(row := run_case(case, ceilings, check, peers))
        click.echo(_line(row))
        if row["sglang_error"]:
            click.echo(f"       SGLang's kernel did not run: {row['sglang_error']}")
        if row["sglang_checked"] == "differs":
            figures["problems"].append(f"{case.work}, {case.name}: SGLang's kernel leaves something else")
        torch.cuda.empty_cache()
    compared = [row["sglang_checked"] for row in rows if row["sglang_checked"]]
    if compared:
        click.echo(f"SGLang's kernels leave the same in {compared.count('equal')} of {len(compared)} cases")


def _print_steps(cases: list[Case], check: bool, peers: Peers, figures: dict[str, Any]) -> None:
    click.echo(HEADING)
    figures["steps"] = []
    for case in cases:
        figures["steps"].append(step := run_step(case, check, peers))
        click.echo("\n".join(step_lines(step)))
        figures["problems"] += problems(step)
        torch.cuda.empty_cache()


def _print_gpu(works: set[str], pattern: str, check: bool, sglang: Path | None, figures: dict[str, Any]) -> None:
    peers = find_peers(sglang)
    figures["sglang"] = peers.about
    click.echo(f"SGLang's kernels: {peers.about}; where they are not measured, figures of a run elsewhere")
    chosen = [case for case in CASES if case.work in works and pattern in case.name]
    steps = [case for case in chosen if case.work == "step"]
    kernels = [case for case in chosen if case.work != "step"]
    if kernels:
        _print_kernels(kernels, check, peers, figures)
    if steps:
        _print_steps(steps, check, peers, figures)


def _run(chosen: set[str], pattern: str, check: bool, sglang: Path | None, figures: dict[str, Any]) -> None:
    if chosen & set(GPU_WORKS):
        _print_gpu(chosen, pattern, check, sglang, figures)
    if "cpu" in chosen:
        figures["cpu"] = _print_cpu()
    if "cli" in chosen:
        figures["cli"] = _print_cli()


@click.command()
@click.option("--work", type=click.Choice(WORKS), multiple=True, help="Only these kinds of work; may be repeated.")
@click.option("--case", "pattern", default="", help="Only GPU cases whose name contains this.")
@click.option("--no-check", is_flag=True, help="Skip the comparisons with the CPU engine and between kernels.")
@click.option(
    "--sglang",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="SGLang's wheel, unzipped: compile its kernels and time them beside these; an installed one is found anyway.",
)
@click.option("--json", "json_path", type=click.Path(dir_okay=False), help="Write the figures to this file.")
def main(work: tuple[str, ...], pattern: str, no_check: bool, sglang: Path | None, json_path: str | None) -> None:
    """Time the kernels on this machine's GPU, a server's steps that they make up (--work step), the CPU engine
    (--work cpu) and the command line (--work cli).

    Without --work: everything, without a GPU the last two.
    """
    gpu = torch.cuda.is_available()
    chosen = set(work or (WORKS if gpu else ("cpu", "cli")))
    if not gpu and chosen & set(GPU_WORKS):
        raise click.ClickException("timing kernels needs an NVIDIA GPU")
    device = torch.cuda.get_device_name() if gpu else f"{platform.machine()}, {numba.get_num_threads()} threads"
    versions = f"torch {torch.__version__}, numba {numba.__version__}, Python {platform.python_version()}"
    click.echo(f"{device}; {versions}; {time.strftime('%Y-%m-%d')}")
    figures: dict[str, Any] = {"device": device, "versions": versions, "problems": []}
    try:
        _run(chosen, pattern, not no_check, sglang, figures)
    finally:
        # What was measured before an error stays.
        if json_path:
            with open(json_path, "w") as file:
                json.dump(figures, file)
    if figures["problems"]:
        raise click.ClickException("; ".join(figures["problems"]))


if __name__ == "__main__":
    main()
