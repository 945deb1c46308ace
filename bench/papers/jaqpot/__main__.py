"""`python -m bench.papers.jaqpot [--quick] [--data DIR]`: all figures, in order; see the package."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from time import process_time
from typing import Any

from bench import report
from bench.papers import jaqpot
from bench.papers.jaqpot import eighty, examples, plots, sensors, staleness, throughput, verdicts
from bench.papers.jaqpot.settings import QUICK, Size
from bench.processes import ROOT

DATA = ROOT.parent / "shared" / "data"


def run(size: Size, data: Path) -> dict[str, Sequence[dict[str, Any]]]:
    """All tables by name, the verdicts last; written, printed and drawn."""
    began = process_time()

    def tell(text: str) -> None:
        print(f"{process_time() - began:6.0f} s  {text}", flush=True)

    rows = sensors.streams(data)
    if rows is None:
        print(f"FIGURE 8 AND 9c ARE LEFT OUT: {data} has no intel_lab_5days.parquet and intel_lab_mote_locs.csv; "
              "name the folder that has them with --data")  # fmt: skip
    tables: dict[str, Sequence[dict[str, Any]]] = {
        "examples": examples.examples(),
        "6": throughput.figure_6(size, tell),
        "7": throughput.figure_7(size, tell),
        "80_percent": eighty.eighty(size),
        "8": [row for key in sensors.KEYS for row in sensors.figure_8(rows, key, size, tell)] if rows else [],
        "9_stale": staleness.figure_9_stale(size, tell),
        "9_cover": staleness.figure_9_cover(size),
        "cover": staleness.greedy_cover(size),
    }
    tables["verdicts"] = verdicts.all_verdicts(tables)
    for name, table in tables.items():
        if table:
            columns = [column for column in table[-1] if column != "by review"]
            print(f"\n{report.table(table, columns)}")
            print(f"written to {report.write(f'jaqpot_{name}', table)}")
    drawn = [plots.draw_6(list(tables["6"])), plots.draw_7(list(tables["7"]))]
    drawn += [plots.draw_8(list(tables["8"]))] if rows else []
    for path in (*drawn, plots.draw_9(list(tables["9_stale"]), list(tables["9_cover"]))):
        print(f"drawn to {path}")
    tell("CPU in all")
    return tables


def main() -> None:
    parser = argparse.ArgumentParser(
        description=jaqpot.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="few settings, short runs")
    parser.add_argument("--data", type=Path, default=DATA, help="the folder with the files of the Intel lab")
    given = parser.parse_args()
    run(QUICK if given.quick else Size(), given.data)


if __name__ == "__main__":
    main()
