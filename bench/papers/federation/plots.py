"""Figures 5 and 6 as plots: C_b of the chosen plan and of what is in one place, by rate; and the CPU of placements."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.papers.drawing import pyplot, save

LINES = (("C_b", "chosen", "o-"), ("its C_b", "chosen without the check", "x--"),
         ("engine C_b", "all in the engine", ":"), ("database C_b", "all in the database", "-."))  # fmt: skip


def draw(table: list[dict[str, Any]]) -> Path:
    """One panel for each query; a plan keeps up where its line is below 1."""
    names = list(dict.fromkeys(row["query"] for row in table))
    figure, panels = pyplot().subplots(2, 3, figsize=(13, 7), sharex=True)
    for panel, name in zip(panels.flat, names, strict=True):
        rows = [row for row in table if row["query"] == name]
        for column, label, style in LINES:
            panel.plot([row["rate"] for row in rows], [row[column] for row in rows], style, label=label)
        panel.axhline(1, color="grey", linewidth=0.5)
        panel.set(title=name, xscale="log", yscale="log", xlabel="rows/s", ylabel="C_b")
    panels.flat[0].legend()
    return save(figure, "federation_5_6")


def draw_measured(table: list[dict[str, Any]]) -> Path:
    """One panel for each query, a line for each placement that ran; the chosen one of each rate is marked."""
    names = list(dict.fromkeys(row["query"] for row in table))
    figure, panels = pyplot().subplots(2, 3, figsize=(15, 9), sharex=True)
    for panel, name in zip(panels.flat, names, strict=False):
        rows = [row for row in table if row["query"] == name and "CPU µs a row" in row]
        for placement in dict.fromkeys(row["in DuckDB"] for row in rows):
            mine = [row for row in rows if row["in DuckDB"] == placement]
            panel.plot([row["rate"] for row in mine], [row["CPU µs a row"] for row in mine], "o-", label=placement)
        chosen = [row for row in rows if row["is chosen"]]
        panel.plot([row["rate"] for row in chosen], [row["CPU µs a row"] for row in chosen], "ks", markersize=11,
                   fillstyle="none", label="chosen")  # fmt: skip
        panel.set(
            title=f"{name}: what is in DuckDB", xscale="log", yscale="log", xlabel="rows/s", ylabel="CPU µs a row"
        )
        panel.legend(fontsize=7)
    return save(figure, "federation_measured")
