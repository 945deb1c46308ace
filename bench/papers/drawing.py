"""Plots of the papers' experiments, drawn without a display, beside the tables in bench/out/."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench import report


def pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as found

    return found


def save(figure: Any, name: str) -> Path:
    figure.tight_layout()
    report.OUT.mkdir(exist_ok=True)
    path = report.OUT / f"{name}.png"
    figure.savefig(path, dpi=90)
    return path
