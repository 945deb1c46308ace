"""`python -m bench.papers.federation [--quick] [--part search|model|measured]`: see the package."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from bench import report
from bench.papers import federation
from bench.papers.federation import figures, plots, tables, verdicts
from bench.papers.federation.published import BEYOND, RATES

TIMES, QUICK_TIMES = 10, 1
"""The paper took the median of ten."""
PARTS = ("search", "model", "measured")


def run(parts: Sequence[str], times: int) -> dict[str, list[dict[str, Any]]]:
    """All tables by name, the verdicts last; written, printed and drawn."""
    found: dict[str, list[dict[str, Any]]] = {}
    told: list[dict[str, Any]] = []
    if "search" in parts:
        found |= {"2": tables.table_2(times), "3": tables.table_3(times), "bounds": tables.chains()}
        told += [*verdicts.of_table_2(found["2"], found["bounds"]), *verdicts.of_table_3(found["3"])]
    if "model" in parts:
        found["5_6"] = figures.model((*RATES, *BEYOND))
        told += verdicts.of_figures(found["5_6"])
        print(f"drawn to {plots.draw(found['5_6'])}")
    if "measured" in parts:
        print("MEASURED PLACEMENTS ARE LEFT OUT: blocks of a query cannot be placed in a database yet")
    if told:
        found["verdicts"] = told
    for name, table in found.items():
        print(f"\n{report.table(table, list(table[0]))}")
        print(f"written to {report.write(f'federation_{name}', table)}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=federation.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="each search once")
    parser.add_argument("--part", choices=PARTS, action="append", help="only this part, or these")
    given = parser.parse_args()
    run(given.part or PARTS, QUICK_TIMES if given.quick else TIMES)


if __name__ == "__main__":
    main()
