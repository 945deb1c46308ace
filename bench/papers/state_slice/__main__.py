"""`python -m bench.papers.state_slice [--quick]`: all parts, in order; see the package."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from time import process_time

from bench import report
from bench.papers import state_slice
from bench.papers.state_slice import figures, plots, verdicts
from bench.papers.state_slice.engine import engine_part
from bench.papers.state_slice.settings import QUICK, Size


def reference_part(size: Size) -> None:
    """Part one: the paper's operators at the paper's rates."""
    began = process_time()

    def tell(text: str) -> None:
        print(f"{process_time() - began:6.0f} s  {text}", flush=True)

    grid, two = figures.figure_11(), figures.figure_11_counted(size)
    tell("figure 11")
    three = figures.figures_17_and_18(size, tell)
    chains = figures.figure_19(size, tell)
    found = verdicts.all_verdicts(grid, two, three, chains, size)
    tables = {"11": grid, "11_counted": two, "17_18": three, "19": chains, "verdicts": found}
    for name, table in tables.items():
        print(f"\n{report.table(table, [column for column in table[0] if column != 'chain'])}")
        print(f"written to {report.write(f'state_slice_{name}', table)}")
    for path in (plots.draw_11(two), plots.draw_17_and_18(three), plots.draw_19(chains)):
        print(f"drawn to {path}")
    tell("CPU in all")


PARTS: dict[str, Callable[[Size], None]] = {"reference": reference_part, "engine": engine_part}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=state_slice.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="few seeds, few rates, 12 queries")
    parser.add_argument("--part", choices=[*PARTS], help="only this part")
    given = parser.parse_args()
    for name, part in PARTS.items():
        if given.part in (None, name):
            part(QUICK if given.quick else Size())


if __name__ == "__main__":
    main()
