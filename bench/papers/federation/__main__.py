"""`python -m bench.papers.federation [--quick] [--part search|model|measured|spark] [--query CQ1] [--nothing-told]`: see the
package."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from bench import report
from bench.papers import federation
from bench.papers.federation import figures, measured, on_spark, plots, tables, verdicts
from bench.papers.federation.published import BEYOND, RATES
from bench.papers.federation.queries import CQ

TIMES, QUICK_TIMES = 10, 1
"""The paper took the median of ten."""
PARTS = ("search", "model", "measured", "spark")
USUAL = PARTS[:3]
"""The parts that need no Spark."""


def run(
    parts: Sequence[str], is_quick: bool = False, names: Sequence[str] = tuple(CQ), is_told: bool = True
) -> dict[str, list[dict[str, Any]]]:
    """All tables by name, the verdicts last; written, printed and drawn."""
    found: dict[str, list[dict[str, Any]]] = {}
    times = QUICK_TIMES if is_quick else TIMES
    told: list[dict[str, Any]] = []
    if "search" in parts:
        found |= {"2": tables.table_2(times), "3": tables.table_3(times), "bounds": tables.chains()}
        told += [*verdicts.of_table_2(found["2"], found["bounds"]), *verdicts.of_table_3(found["3"])]
    if "model" in parts:
        found["5_6"] = figures.model((*RATES, *BEYOND))
        told += verdicts.of_figures(found["5_6"])
        print(f"drawn to {plots.draw(found['5_6'])}")
    if "measured" in parts:
        sizes = replace(measured.QUICK if is_quick else measured.Sizes(), names=names)
        found["measured"] = measured.measured(sizes if is_told else replace(sizes, told=measured.NOTHING))
        found["measured_summary"] = measured.summary(found["measured"])
        told += verdicts.of_measured(found["measured"])
        print(f"drawn to {plots.draw_measured(found['measured'])}")
    if "spark" in parts:
        found["spark"] = on_spark.on_spark(replace(on_spark.QUICK if is_quick else on_spark.Sizes(), names=names))
    if told:
        found["verdicts"] = told
    for name, table in found.items():
        print(f"\n{report.table(table, list(dict.fromkeys(chain.from_iterable(table))))}")
        print(f"written to {report.write(f'federation_{name}', table)}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=federation.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="each search once, few rows")
    parser.add_argument("--part", choices=PARTS, action="append", help="only this part, or these")
    parser.add_argument("--query", choices=CQ, action="append", help="measure only this query, or these")
    parser.add_argument(
        "--nothing-told", action="store_true", help="measure beside what is chosen if the optimizer is told no facts"
    )
    given = parser.parse_args()
    run(given.part or USUAL, given.quick, given.query or tuple(CQ), not given.nothing_told)


if __name__ == "__main__":
    main()
