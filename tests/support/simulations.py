"""What a simulation costs: `python -m tests.support.simulations`, with `--cases` for more than 20 of each kind.

A case is a checkpoint from its first batch to the end of the input, with all drivers that it took, and the oracle's results.
"""

from __future__ import annotations

import argparse
from time import process_time

import numpy as np

from tests.support.faulty import Fault
from tests.support.simulation import Simulation
from tests.support.workloads import Workload

DEATHS = ("lose", "tear", "crash_after")
KINDS = {"one query": (1, 0), "one query, drivers die": (1, 4), "four queries": (4, 0), "four queries, drivers die": (4, 4)}
"""How many queries there are, and how many puts go wrong."""


def simulation(seed: int, queries: int, deaths: int) -> Simulation:
    workload, rng = Workload(seed, queries), np.random.default_rng(seed)
    batches = [workload.batch(number) for number in range(workload.batches)]
    at = rng.choice(120, deaths, replace=False)
    faults = {int(ordinal): Fault(DEATHS[n % len(DEATHS)]) for n, ordinal in enumerate(at)}  # type: ignore[arg-type]
    return Simulation(workload.queries, batches, {"t": workload.table}, (), 2, bool(seed % 2), faults)


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU seconds of simulations, by kind")
    parser.add_argument("--cases", type=int, default=20)
    cases = parser.parse_args().cases
    simulation(0, 4, 0).check()  # what is imported and compiled once
    print(f"{'':28}{'CPU s each':>12}{'batches':>9}{'drivers':>9}")
    for kind, (queries, deaths) in KINDS.items():
        began_s, made = process_time(), [simulation(seed, queries, deaths) for seed in range(1, cases + 1)]
        for case in made:
            case.check()
        each_s = (process_time() - began_s) / cases
        batches, lives = (sum(found) / cases for found in ([len(c.cuts) for c in made], [c.lives for c in made]))
        print(f"{kind:28}{each_s:12.3f}{batches:9.1f}{lives:9.1f}")


if __name__ == "__main__":
    main()
