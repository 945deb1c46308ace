"""Figures 11, 17, 18 and 19, drawn from the tables."""

from __future__ import annotations

from pathlib import Path

from anabranch.share.formulas import savings
from bench.papers.drawing import pyplot, save
from bench.papers.state_slice.figures import (
    GRID,
    OVERHEADS,
    PANELS_17,
    PANELS_18,
    PANELS_19,
    RATIOS,
    WAYS,
    Rows,
    of_way,
    panel_rows,
)
from bench.papers.state_slice.settings import JOINS


def draw_11(counted: Rows) -> Path:
    """Lines are equation 4, crosses are counts (of panel a, and at S_⋈ 0.1)."""
    figure, axes = pyplot().subplots(1, 3, figsize=(16, 5))
    for ratio in RATIOS:
        said = [savings(ratio, selectivity, 0.1) for selectivity in GRID]
        axes[0].plot(GRID, [100 * each.memory_of_pull_up for each in said], label=f"of pull-up, ρ {ratio}")
        axes[0].plot(GRID, [100 * each.memory_of_push_down for each in said], "--", label=f"of push-down, ρ {ratio}")
    for joins, style in zip(JOINS, ("-", "--", ":"), strict=True):
        for ratio in RATIOS[::2]:
            said = [savings(ratio, selectivity, joins) for selectivity in GRID]
            axes[1].plot(GRID, [100 * each.cpu_of_pull_up for each in said], style, label=f"ρ {ratio}, S_⋈ {joins}")
            axes[2].plot(GRID, [100 * each.cpu_of_push_down for each in said], style, label=f"ρ {ratio}, S_⋈ {joins}")
    for row in counted:
        if row["S_⋈"] == 0.1 and row["way"] != "state-slice":
            axes[0].plot(row["S_σ"], row["saved %"], "kx")
            axes[1 if row["way"] == "pull-up" else 2].plot(row["S_σ"], row["CPU saved %"], "kx")
    titles = ("11a memory saved %", "11b CPU saved of pull-up %", "11c CPU saved of push-down %")
    for axis, title in zip(axes, titles, strict=True):
        axis.set(title=title, xlabel="S_σ")
        axis.legend(fontsize=6)
    return save(figure, "state_slice_11")


def draw_17_and_18(table: Rows) -> Path:
    """Lines are counts, dotted lines formulas."""
    figure, axes = pyplot().subplots(4, 3, figsize=(15, 18))
    for place, (panel, setting) in enumerate([*PANELS_17.items(), *PANELS_18.items()]):
        axis, rows = axes[place // 3][place % 3], panel_rows(table, setting)
        for way in WAYS:
            mine = of_way(rows, way)
            x = [row["rows/s"] for row in mine]
            if panel.startswith("17"):
                (line,) = axis.plot(x, [row["stored"] for row in mine], "o-", label=way)
                axis.plot(x, [row["C_m"] for row in mine], ":", color=line.get_color())
            else:
                (line,) = axis.plot(x, [row["results/comparison"] for row in mine], "o-", label=way)
                said = [row["results/comparison"] * row["comparisons/s"] / row["C_p"] for row in mine]
                axis.plot(x, said, ":", color=line.get_color())
        what = "stored rows" if panel.startswith("17") else "results per comparison"
        axis.set(title=f"{panel}: {setting[0]}, S_σ {setting[1]}, S_⋈ {setting[2]}", xlabel="rows/s", ylabel=what)
        axis.set_ylim(bottom=0)
        axis.legend(fontsize=7)
    return save(figure, "state_slice_17_18")


def draw_19(table: Rows) -> Path:
    """What CPU-Opt gains in service rate, for each C_sys; the number of its slices beside each point."""
    panels = [panel for panel in PANELS_19 if any(row["panel"] == panel for row in table)]
    figure, axes = pyplot().subplots(1, len(panels), figsize=(5 * len(panels), 5), squeeze=False)
    for axis, panel in zip(axes[0], panels, strict=True):
        for overhead in OVERHEADS:
            mine = [row for row in table if row["panel"] == panel and row["C_sys"] == overhead]
            axis.plot([r["rows/s"] for r in mine], [r["service rate +%"] for r in mine], "o-", label=f"C_sys {overhead:g}")
            for row in mine:
                place = (row["rows/s"], row["service rate +%"])
                axis.annotate(str(row["slices"]), place, (4, 4), textcoords="offset points", fontsize=8)
        axis.set(title="{}: {}, {} queries".format(panel, *PANELS_19[panel]), xlabel="rows/s", ylabel="service rate, + %")
        axis.legend(fontsize=7)
    return save(figure, "state_slice_19")
