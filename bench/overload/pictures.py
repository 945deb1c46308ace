"""Pictures of a burst, from the rows that `python -m bench.overload` has written: lag, and which share of results was given.

SVG and PNG by matplotlib, in colours that can be read on light and dark ground.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot

from bench import report
from bench.overload.cases import BEHIND, OURS

ROOT = Path(__file__).parents[2]
COLOURS = {OURS: "#2a7ab9", BEHIND: "#c0662b"}
GREY = "#808080"


def burst_rows() -> list[dict[str, Any]]:
    """The runs of the burst that was last measured."""
    found: list[dict[str, Any]] = []
    for name in ("overload", "overload-burst"):
        path = report.OUT / f"{name}.json"
        if path.exists():
            found = [row for row in json.loads(path.read_text()) if row.get("part") == "burst"] or found
    if not found:
        raise SystemExit("no burst was measured yet: python -m bench.overload --part burst")
    return found


def draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Lag above, completeness below, over seconds."""
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "anabranch", "font.size": 10})
    figure, (above, below) = pyplot.subplots(2, 1, sharex=True, figsize=(7.5, 4.6))
    for row in rows:
        # The first batch warms up, with rows of before.
        series, style = row["series"][1:], "-" if row["load"] == 4.0 else "--"
        promise = f", freshness {row['freshness s']} s" if row["way"] == OURS else ""
        about = {"color": COLOURS[row["way"]], "label": f"{row['way']}{promise}, load {row['load']:.0f}"}
        seconds = [p["second"] for p in series]
        above.plot(seconds, [p["lag s"] for p in series], style, **about)
        below.plot(seconds, [100 * p["given"] / p["exact"] if p["exact"] else None for p in series], style, **about)
    falls_s = rows[0]["falls_s"]
    for each in (above, below):
        each.axvspan(falls_s - rows[0]["burst s"], falls_s, color=GREY, alpha=0.2)
        each.tick_params(colors=GREY)
        for spine in each.spines.values():
            spine.set_color(GREY)
        each.set_facecolor("none")
    above.set_ylabel("lag, s", color=GREY)
    below.set_ylabel("results given, %", color=GREY)
    below.set_xlabel("seconds; the burst is grey", color=GREY)
    below.set_ylim(0, 105)
    above.legend(frameon=False, labelcolor=GREY)
    above.set_ylim(bottom=0)
    figure.tight_layout()
    figure.savefig(path.with_suffix(".svg"), transparent=True, metadata={"Date": None})
    figure.savefig(path.with_suffix(".png"), transparent=True, dpi=160)
    pyplot.close(figure)


def main() -> None:
    path = ROOT / "docs" / "pictures" / "overload-burst"
    draw(burst_rows(), path)
    print(f"written to {path}.svg and {path.name}.png")
