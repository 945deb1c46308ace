"""Whether a change made the engine slower: `python -m bench.compare ../other-checkout --join "3-way chain"`.

Two checkouts run the same batches in turns, each in a process of its own that stays: this one and the other, then the other
and this one, at least seven pairs. What counts is CPU time (of all threads of the process), for on a machine that others use
too the clock says little. Told is the median of the ratios, this checkout's time to the other's, with its 90 % interval:
below 1 this checkout is faster, and an interval around 1 is no difference.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from math import comb
from pathlib import Path
from time import process_time
from typing import Any

LEAST_PAIRS = 7
CONFIDENCE = 0.9


def interval(ratios: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Where the median lies with so much confidence, whatever the ratios are distributed like: between two of them. The
    chance that it lies outside is that of as few heads, or as few tails, in so many tosses of a coin.

    >>> interval([1.0, 5.0, 2.0, 4.0, 3.0, 6.0, 7.0, 8.0])
    (2.0, 7.0)
    """
    ordered, n, skipped, outside = sorted(ratios), len(ratios), 0, 2 * 0.5 ** len(ratios)
    while skipped + 1 < (n + 1) // 2 and outside + 2 * comb(n, skipped + 1) * 0.5**n <= 1 - confidence:
        skipped += 1
        outside += 2 * comb(n, skipped) * 0.5**n
    return ordered[skipped], ordered[n - 1 - skipped]


class Checkout:
    """A process that measures a case with the code of a checkout."""

    def __init__(self, path: Path, case: dict[str, Any]) -> None:
        self.path = path
        command = [sys.executable, str(Path(__file__).resolve()), "--measure", json.dumps(case)]
        settings = {**os.environ, "PYTHONPATH": str(path.resolve())}
        self.process = subprocess.Popen(
            command, cwd=path, env=settings, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.results = self.measure()[1]  # compiles the kernels

    def measure(self) -> tuple[float, int]:
        """CPU seconds of the measured batches, and the results they gave."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"{self.path} cannot run the case: its error is above")
        cpu_s, results = json.loads(answer)
        return float(cpu_s), int(results)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def serve(case: dict[str, Any]) -> None:
    """In the process of a checkout: measures a case whenever it is asked to."""
    sys.path.pop(0)  # the folder of this script: modules are those of the checkout
    import pyarrow as pa

    try:
        from anabranch.drive.local import LocalRun
    except ModuleNotFoundError:  # a checkout of the time when it was part of the engine
        from anabranch.engine.local import LocalRun  # type: ignore[import-not-found, no-redef]
    from anabranch.storage.filesystem import LocalFilesystem
    from bench.engine import plans, warm_batches
    from bench.workload import Workload

    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    measured, plan = case.pop("batches"), case.pop("plan")
    workload = Workload(**case)
    warm = warm_batches(workload)
    batches = [workload.batch(number) for number in range(warm + measured)]
    for _ in sys.stdin:
        with tempfile.TemporaryDirectory() as folder:
            run = LocalRun(workload.query, LocalFilesystem(folder), plans(workload)[plan])
            for number in range(warm):
                run.step(number, batches[number])
            began, results = process_time(), 0
            for number in range(warm, warm + measured):
                results += run.step(number, batches[number]).results.num_rows
            print(json.dumps((process_time() - began, results)), flush=True)


def compare(other: Path, case: dict[str, Any], pairs: int) -> list[float]:
    """The ratios of this checkout's CPU time to another's, pair by pair."""
    sides = [Checkout(Path(__file__).resolve().parents[1], case), Checkout(other, case)]
    if sides[0].results != sides[1].results:
        raise SystemExit(f"this checkout gives {sides[0].results} results, {other} gives {sides[1].results}")
    ratios = []
    for pair in range(pairs):
        order = (0, 1) if pair % 2 else (1, 0)
        spent = {side: sides[side].measure()[0] for side in order}
        ratios.append(spent[0] / spent[1])
        print(f"  {spent[0]:.3f} s, other {spent[1]:.3f} s: {ratios[-1]:.3f}", flush=True)
    for side in sides:
        side.close()
    return ratios


def main() -> None:
    if sys.argv[1:2] == ["--measure"]:
        serve(json.loads(sys.argv[2]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="the folder of the other checkout")
    parser.add_argument("--pairs", type=int, default=11)
    parser.add_argument("--join", default="3-way chain", help="a shape of bench.workload")
    parser.add_argument("--plan", default="binary", help="binary, n-ary or mixed")
    parser.add_argument("--rate", type=int, default=100_000, help="rows per second of each stream")
    parser.add_argument("--window", type=float, default=4.0, help="seconds")
    parser.add_argument("--batch", type=float, default=0.5, help="seconds")
    parser.add_argument("--matches", type=float, default=1.0, help="partners of a row in each stream")
    parser.add_argument("--wide", action="store_true", help="rows with strings and many columns")
    parser.add_argument("--batches", type=int, default=16, help="how many are measured each time")
    given = parser.parse_args()
    if given.pairs < LEAST_PAIRS:
        raise SystemExit(f"give at least {LEAST_PAIRS} pairs: fewer show nothing")
    case = {
        "shape": given.join, "rate_per_s": given.rate, "window_s": given.window, "batch_s": given.batch,
        "matches": given.matches, "wide": given.wide, "plan": given.plan, "batches": given.batches,
    }  # fmt: skip
    ratios = compare(given.other, case, given.pairs)
    low, high = interval(ratios)
    text = f"{statistics.median(ratios):.3f} ({low:.3f} to {high:.3f})"
    print(f"{given.join}, {given.plan}: CPU time to the other's {text}, {given.pairs} pairs")


if __name__ == "__main__":
    main()
