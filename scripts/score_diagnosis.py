"""How well does the diagnosis do on faults of many kinds of servers?

For each fault a number of injections into simulated histories of all sizes, page sizes, hash modes and dtypes: the
share that was named where the dump can show the fault, and findings that were called certain and are wrong. With
``--clean`` also how many findings clean histories give: there must be none.

    python scripts/score_diagnosis.py --per-fault 200 --clean 1000

Exit code 1 if a fault is named in less than 97 %, a wrong finding is called certain, or a clean history has a finding.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from canary_numba.check import check_dump
from canary_numba.diagnosis import diagnose
from canary_numba.dump.model import Dump
from canary_numba.fault_names import FAULT_NAMES
from canary_numba.faults import simulate
from canary_numba.faults.score import NAMED, Outcome, has_signature, try_fault

LEAST_SHARE = 0.97
HISTORIES_PER_INJECTION = 12
"""Histories tried at most for each injection that is asked for: some faults fit few of them."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--per-fault", type=int, default=200, help="injections of each fault (default 200)")
    parser.add_argument("--clean", type=int, default=0, help="clean histories to diagnose (default 0)")
    parser.add_argument("--first-seed", type=int, default=10_000)
    parser.add_argument("--fault", choices=FAULT_NAMES, action="append", help="only this one; may be repeated")
    parser.add_argument(
        "--show", action="store_true", help="print each injection that was not named, with its findings"
    )
    options = parser.parse_args()
    failed = clean(options.clean, options.first_seed) if options.clean else False
    if options.per_fault:
        failed |= injected(options.fault or list(FAULT_NAMES), options.per_fault, options.first_seed, options.show)
    return int(failed)


def clean(count: int, first_seed: int) -> bool:
    found: Counter[str] = Counter()
    for seed in range(first_seed, first_seed + count):
        dump = simulate(seed)
        result = check_dump(dump, engine="cpu")
        names = [finding.fault for finding in diagnose(dump, result).findings]
        if result.num_violations or names:
            print(f"seed {seed}: {result.num_violations} violations, findings {names}")
            found["histories"] += 1
    print(f"{count:,} clean histories: {found['histories']} with violations or findings", flush=True)
    return bool(found)


def injected(faults: list[str], count: int, first_seed: int, show: bool) -> bool:
    tally: dict[str, Counter[str]] = {fault: Counter() for fault in faults}
    for seed in range(first_seed, first_seed + HISTORIES_PER_INJECTION * count):
        wanted = [fault for fault in faults if tally[fault]["tried"] < count]
        if not wanted:
            break
        dump = simulate(seed)
        for fault in wanted:
            if not has_signature(fault, dump):
                continue
            outcome = try_fault(dump, fault, seed)
            if outcome is not None:
                tally[fault].update(["tried", outcome.result])
                tally[fault]["wrong"] += len(outcome.wrong)
                tally[fault]["extra"] += bool(outcome.others and outcome.result == NAMED)
                if show and (outcome.result != NAMED or outcome.wrong):
                    describe(seed, dump, outcome)
    return report(tally)


def describe(seed: int, dump: Dump, outcome: Outcome) -> None:
    label = outcome.label
    page = dump.allocator.page_size if dump.allocator is not None else 1
    print(f"{label.fault}, seed {seed}, hash mode {dump.hash_mode.name}, page {page}: {outcome.result}")
    print(f"  label: {dict(label.positions)} slots {label.slots[:16]} {dict(label.details)}")
    for finding in outcome.others:
        places = {name: own[:16] for name, own in finding.positions.items()}
        print(f"  finding: {finding.fault} ({finding.confidence}) {places} slots {finding.slots[:16]}")
        print(f"    {finding.evidence[:3]}")


def report(tally: dict[str, Counter[str]]) -> bool:
    failed = False
    print(f"{'fault':32}{'tried':>7}{'named':>8}{'seen':>6}{'missed':>8}{'extra':>7}{'wrong certain':>15}")
    for fault, count in tally.items():
        tried = count["tried"]
        share = count[NAMED] / tried if tried else 0.0
        bad = share < LEAST_SHARE or count["wrong"] > 0
        failed |= bad
        print(
            f"{fault:32}{tried:>7}{share:>8.1%}{count['seen']:>6}{count['missed']:>8}{count['extra']:>7}"
            f"{count['wrong']:>15}{'  <--' if bad else ''}"
        )
    return failed


if __name__ == "__main__":
    sys.exit(main())
