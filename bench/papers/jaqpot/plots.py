"""Figures 6 to 9, drawn from the tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from anabranch.overload.algorithms import ALGORITHMS
from bench.papers.drawing import pyplot, save
from bench.papers.jaqpot.sensors import CAPACITIES, REVIEW_S
from bench.papers.jaqpot.settings import FRESHNESS, SHAPES

Rows = list[dict[str, Any]]


def draw_6(table: Rows) -> Path:
    """Results over time, all that were found until then."""
    figure, axes = pyplot().subplots(1, 2, figsize=(13, 5))
    for axis, shape in zip(axes, SHAPES, strict=True):
        for name in ALGORITHMS:
            minutes, results = [0.0], [0.0]
            for row in (each for each in table if (each["plan"], each["algorithm"]) == (shape, name)):
                minutes.append(minutes[-1] + row["minutes"])
                results.append(results[-1] + row["minutes"] * row["results/min"])
            axis.plot(minutes, results, "o-", label=name)
        axis.set(title=f"6: {shape}", xlabel="minutes", ylabel="results")
        axis.legend(fontsize=8)
    return save(figure, "jaqpot_6")


def draw_7(table: Rows) -> Path:
    """Results at each share of the resources, both in percent of saturation."""
    figure, axes = pyplot().subplots(1, 2, figsize=(13, 5))
    for axis, shape in zip(axes, SHAPES, strict=True):
        rows = [row for row in table if row["plan"] == shape and row.get("times")]
        for name in ALGORITHMS:
            axis.plot([row["µ %"] for row in rows], [row[name] for row in rows], "o-", label=name)
        axis.plot([60], [80], "kx", label="published")
        axis.set(title=f"7: {shape}", xlabel="resources, % of saturation", ylabel="results, % of saturation")
        axis.legend(fontsize=8)
    return save(figure, "jaqpot_7")


def draw_8(table: Rows) -> Path:
    """Results over time on sensors, by key and µ."""
    keys = list(dict.fromkeys(row["key"] for row in table))
    figure, axes = pyplot().subplots(len(keys), len(CAPACITIES), figsize=(16, 4.5 * len(keys)), squeeze=False)
    for line, key in zip(axes, keys, strict=True):
        for axis, capacity in zip(line, CAPACITIES, strict=True):
            for row in (each for each in table if (each["key"], each["µ"]) == (key, capacity)):
                found = [sum(row["by review"][: n + 1]) for n in range(len(row["by review"]))]
                axis.plot([(n + 1) * REVIEW_S / 60 for n in range(len(found))], found, label=row["algorithm"])
            axis.set(title=f"8: on {key}, µ {capacity:.0f}", xlabel="minutes", ylabel="results")
            axis.legend(fontsize=8)
    return save(figure, "jaqpot_8")


def draw_9(stale: Rows, cover: Rows) -> Path:
    """Stale shares by freshness, and what covers take."""
    figure, axes = pyplot().subplots(1, 3, figsize=(17, 5))
    for axis, shape in zip(axes, SHAPES, strict=False):
        for row in (each for each in stale if each["plan"] == shape):
            axis.plot(FRESHNESS, [row[f"stale % at {times:g} windows"] for times in FRESHNESS], "o-", label=row["algorithm"])
        axis.set(title=f"9: {shape}, µ 300", xlabel="freshness, windows", ylabel="stale results, %", ylim=(-5, 105))
        axis.legend(fontsize=8)
    for shape in SHAPES:
        rows = [row for row in cover if row["plan"] == shape and row["µ"] != "300"]
        axes[2].plot([row["windows"] for row in rows], [row["for freshness %"] for row in rows], "o-", label=shape)
    axes[2].set(title="9d: for freshness, % of µ", xlabel="freshness, windows")
    axes[2].set_ylim(bottom=0)
    axes[2].legend(fontsize=8)
    return save(figure, "jaqpot_9")
