"""Tables for people, and the same rows as JSON for programs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

OUT = Path(__file__).parent / "out"


def write(name: str, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Writes the rows of a benchmark to bench/out/<name>.json."""
    OUT.mkdir(exist_ok=True)
    path = OUT / f"{name}.json"
    path.write_text(json.dumps(list(rows), indent=1) + "\n")
    return path


def in_fresh_process(module: str, *arguments: str, limit_s: float | None = None) -> dict[str, Any]:
    """Runs a benchmark in a process of its own; what it prints last is the result, as JSON. When a limit is over, the
    process and all that it started are killed, and `subprocess.TimeoutExpired` is raised."""
    command = [sys.executable, "-m", module, *arguments]
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        command, cwd=OUT.parent.parent, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=limit_s)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{err[-4000:]}")
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> str:
    """The rows as an aligned text table.

    >>> print(table([{"way": "a", "rows/s": 12345.6}, {"way": "bb", "rows/s": 7}]))
    way  rows/s
    ---  ------
    a    12,346
    bb        7
    """
    names = list(columns or rows[0])
    cells = [[_cell(row.get(name)) for name in names] for row in rows]
    widths = [max(len(name), *(len(c[i]) for c in cells)) for i, name in enumerate(names)]
    numeric = [all(not isinstance(row.get(name), str) for row in rows) for name in names]
    return "\n".join(
        "  ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in zip(line, widths, numeric, strict=True)).rstrip()
        for line in [names, ["-" * w for w in widths], *cells]
    )


def markdown(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> str:
    """The rows as a table of a document.

    >>> print(markdown([{"way": "a", "rows/s": 12345.6}]))
    | way | rows/s |
    |---|---|
    | a | 12,346 |
    """
    names = list(columns or rows[0])
    lines = [names, *([_cell(row.get(name)) for name in names] for row in rows)]
    first, *others = (f"| {' | '.join(line)} |" for line in lines)
    return "\n".join([first, f"|{'---|' * len(names)}", *others])


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
