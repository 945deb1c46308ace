"""The progress of a query: as a block of a terminal, as a line of key=value, as an object for programs.

All of it is made of the records of its latest batches (`anabranch.control.progress.Progress`), whoever has them: the process
that runs the query, or one that reads its checkpoint.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from rich.console import RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from anabranch.control.completeness import Completeness
from anabranch.control.progress import Progress
from anabranch.optimize.planner import show_bytes
from anabranch.plan.query import BEGINNING_US, FOREVER_US
from anabranch.show.trees import drawn

RATE_BATCHES = 10
"""Figures per second, and times, are averages over so many of the latest batches."""
WIDEST = 120
"""A block is no wider, however wide the terminal is: lines that are longer are hard to read."""

_PLAIN = re.compile(r"[^\s\"=\\]+")


@dataclass(frozen=True)
class Figures:
    """What the latest batches of a query show."""

    rows_per_s: float
    results_per_s: float
    is_counted: bool
    """Whether the results are counted: else these are as many at most."""
    seconds: float
    """Of a batch."""
    spark_s: float
    cores: float
    """CPU of tasks per second of the clock."""


def figures(steps: Sequence[Progress]) -> Figures:
    """Averages over the latest batches; of the first alone as long as there are no others."""
    latest = steps[-RATE_BATCHES - 1 :]
    after = latest[1:] or latest
    span_s = after[-1].at_s - latest[0].at_s if len(latest) > 1 else 0.0
    span_s = span_s if span_s > 0 else sum(step.seconds for step in after) or 1.0
    return Figures(
        sum(sum(step.rows.values()) for step in after) / span_s,
        sum(step.results for step in after) / span_s,
        all(step.is_counted for step in after),
        sum(step.seconds for step in after) / len(after),
        sum(step.spark_s for step in after) / len(after),
        sum(step.cpu_s for step in after) / span_s,
    )


# -- for a terminal --------------------------------------------------------------------------------------------------


def block(
    name: str, steps: Sequence[Progress], decision: str = "", waits: str = "", ended: str = "", width: int = WIDEST
) -> RenderableType:
    """A query as a block. `waits` says what it waits for, `ended` how its run has ended."""
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim", no_wrap=True)
    rows.add_column(overflow="fold", ratio=1)
    title = Text(name, style="bold")
    if steps:
        title.append(f"  batch {steps[-1].batch:,}", style="not bold")
        for label, text in _lines(steps, width):
            rows.add_row(label, Text(text))
    else:
        rows.add_row("", Text("no batch has been committed yet"))
    if decision:
        rows.add_row("decided", Text(decision))
    if waits:
        rows.add_row("waits", Text(waits, style="yellow"))
    if ended:
        rows.add_row("", Text(ended, style="bold"))
    return Panel(rows, title=title, title_align="left", width=min(width, WIDEST), padding=(0, 1))


def _lines(steps: Sequence[Progress], width: int) -> list[tuple[str, str]]:
    last, seen = steps[-1], figures(steps)
    at_most = "" if seen.is_counted else "at most "
    share = f", {seen.spark_s / seen.seconds * 100:.0f} % of it Spark's" if seen.seconds else ""
    lines = [
        ("flow", f"{_count(seen.rows_per_s)} rows/s in, {at_most}{_count(seen.results_per_s)} results/s out"),
        ("time", f"{seen.seconds:.2f} s per batch{share}; {seen.cores:.2g} cores"),
        ("watermark", _watermark(last)),
        *_missing(steps),
        ("turned away", turned_away(steps)),
        ("state", _state(last)),
        *(("held back", str(each)) for each in last.held_back),
        *_borders(last),
        ("plan", small_plan(last.plan, last.names, width - 20)),
    ]
    if last.target is not None:
        lines.append(("on the way to", small_plan(last.target, last.names, width - 20)))
    if last.undelivered:
        lines.append(("sink", f"results of {last.undelivered:,} batches wait for it"))
    for stream, waiting in last.waiting.items():
        lines.append((stream, str(waiting)))
    return lines


def _watermark(step: Progress) -> str:
    when = moment(step.watermark_us)
    if when is None:
        return "none yet: some stream has brought no row" if step.watermark_us <= BEGINNING_US else "at the end of time"
    behind_s = behind(step)
    return f"{when:%Y-%m-%d %H:%M:%S} UTC, {span(abs(behind_s))} {'behind' if behind_s >= 0 else 'ahead of'} the clock"


def _missing(steps: Sequence[Progress]) -> list[tuple[str, str]]:
    """What is told of results that are missing, and of rows and results that are too old; nothing where none is."""
    last, lines = steps[-1], []
    stale, shed = (sum(sum(getattr(s, kind).values()) for s in steps) for kind in ("stale_rows", "shed_rows"))
    suppressed, unprobed = sum(s.stale_results for s in steps), sum(sum(s.unprobed_rows.values()) for s in steps)
    many = "" if len(steps) == 1 else f" in {len(steps):,} batches"
    if last.completeness is not None and last.since_adapted is not None:
        since = f"{last.since_adapted} since batch {last.since_adapted.since:,}"
        now = last.completeness.share
        batch = f", {now * 100:.0f} % in the last" if now is not None and last.since_adapted.since != last.batch else ""
        lines.append(("adapted", f"{since}{batch}; {unprobed:,} rows were not looked up{many}"))
    if shed:
        lines.append(("shed", f"{shed:,} rows{many}"))
    if suppressed or stale:
        lines.append(("too old", f"{suppressed:,} results and {stale:,} rows{many}"))
    if lines and last.lag_s is not None:
        lines.append(("lag", f"streams are {span(max(0.0, last.lag_s))} behind the clock"))
    return lines


def turned_away(steps: Sequence[Progress]) -> str:
    """The rows that gave nothing, and why."""
    late, early, untimed, skipped = (
        sum(sum(getattr(step, kind).values()) for step in steps)
        for kind in ("late_rows", "early_rows", "untimed_rows", "skipped_rows")
    )
    told = f"{late:,} late, {early:,} early, {untimed:,} without a time, {skipped:,} skipped"
    return told if len(steps) == 1 else f"{told} in {len(steps):,} batches"


def _state(step: Progress) -> str:
    told = f"{step.state_rows:,} rows, {show_bytes(step.state_bytes)}"
    if step.budget_bytes is None:
        return told
    share = f" ({step.state_bytes / step.budget_bytes * 100:.0f} %)" if step.budget_bytes else ""
    return f"{told} of {show_bytes(step.budget_bytes)}{share}"


def _borders(step: Progress) -> list[tuple[str, str]]:
    """What databases did in a batch."""
    return [
        ("database", f"{border.database} for {name}, last batch: {border.rows_sent:,} rows ({show_bytes(border.bytes_sent)})"
                     f" there, {border.rows_back:,} ({show_bytes(border.bytes_back)}) back, {border.seconds:.3f} s")
        for name, border in step.borders.items()
    ] + [("pace", f"{what}: {ratio:.2g} times as long as calibrated") for what, ratio in step.paces.items()]  # fmt: skip


def small_plan(plan: str, names: Mapping[str, str], width: int) -> str:
    """A plan in one line, by the names of streams where these fit, else by aliases, which a second line explains.

    >>> print(small_plan("((o s) p)", {"o": "orders", "s": "shipments", "p": "p"}, 80))
    [orders ⋈ shipments] ⋈ p
    >>> print(small_plan("((o s) p)", {"o": "orders", "s": "shipments", "p": "p"}, 20))
    [o ⋈ s] ⋈ p
    o orders, s shipments
    """
    whole = drawn(plan, names)
    if len(whole) <= width:
        return whole
    legend = ", ".join(f"{alias} {name}" for alias, name in names.items() if alias != name)
    return f"{drawn(plan)}\n{legend}" if legend else drawn(plan)


def moment(time_us: int) -> datetime | None:
    """An event time as an instant; None where there is none, or none that a calendar has."""
    if not BEGINNING_US < time_us < FOREVER_US:
        return None
    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_us)
    except OverflowError:
        return None


def behind(step: Progress) -> float:
    """How many seconds the watermark is behind the clock of the driver, when the batch was over."""
    return step.at_s - step.watermark_us / 1e6


def span(seconds: float) -> str:
    """
    >>> span(0.4), span(75), span(7_300), span(1e6)
    ('0.4 s', '1 min 15 s', '2 h 1 min', '11 days 13 h')
    """
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 24 else f"{hours // 24:,} days {hours % 24} h"


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.2g}"


# -- for programs ----------------------------------------------------------------------------------------------------


def plain(name: str, step: Progress) -> dict[str, Any]:
    """A batch of a query as plain values: all that is recorded, and what is worked out of it."""
    when = moment(step.watermark_us)
    made: dict[str, Any] = {"query": name, **msgspec.to_builtins(step)}
    for field in msgspec.structs.fields(Progress):
        made.setdefault(field.name, msgspec.to_builtins(getattr(step, field.name)))
    return made | {
        "seconds": step.seconds,
        "spark_seconds": step.spark_s,
        "watermark": when.isoformat() if when is not None else None,
        "watermark_behind_s": behind(step) if when is not None else None,
        "is_exact": step.is_exact,
        "complete_share": _share(step.completeness),
        "complete_error": step.completeness.error if step.completeness is not None else 0.0,
        "complete_share_since": _share(step.since_adapted),
        "complete_error_since": step.since_adapted.error if step.since_adapted is not None else 0.0,
        "lag_s": step.lag_s,
    }


def _share(complete: Completeness | None) -> float | None:
    """The share of results that are there; None where it is not known."""
    return complete.share if complete is not None else 1.0


def json_line(name: str, step: Progress) -> str:
    """A batch of a query as one line of JSON."""
    return json.dumps(plain(name, step), ensure_ascii=False)


def logfmt_line(name: str, step: Progress) -> str:
    """A batch of a query as one line of key=value."""
    when, rows = moment(step.watermark_us), sum(step.rows.values())
    pairs: dict[str, Any] = {
        "query": name, "batch": step.batch, "rows": rows, "results": step.results if step.is_counted else None,
        "results_at_most": None if step.is_counted else step.results,
        "seconds": f"{step.seconds:.3f}", "spark_seconds": f"{step.spark_s:.3f}", "cpu_seconds": f"{step.cpu_s:.3f}",
        "rows_per_s": f"{rows / step.seconds:.0f}" if step.seconds else None,
        "watermark": when.isoformat() if when is not None else None,
        "behind_s": f"{behind(step):.1f}" if when is not None else None,
        "late": sum(step.late_rows.values()), "early": sum(step.early_rows.values()),
        "untimed": sum(step.untimed_rows.values()), "skipped": sum(step.skipped_rows.values()),
        "state_rows": step.state_rows, "state_bytes": step.state_bytes,
        "budget_bytes": f"{step.budget_bytes:.0f}" if step.budget_bytes is not None else None,
        "held_rows": sum(each.rows for each in step.held_back) or None,
        "held_by": ",".join(dict.fromkeys(each.queries[0] for each in step.held_back)) or None,
        "complete": _figure(_share(step.since_adapted)) if step.since_adapted is not None else None,
        "complete_error": _figure(step.since_adapted.error) if step.since_adapted is not None else None,
        "adapted_since": step.since_adapted.since if step.since_adapted is not None else None,
        "unprobed": sum(step.unprobed_rows.values()) or None, "shed": sum(step.shed_rows.values()) or None,
        "stale_rows": sum(step.stale_rows.values()) or None, "stale_results": step.stale_results or None,
        "lag_s": f"{step.lag_s:.1f}" if step.lag_s is not None else None,
        **_border_pairs(step),
        "undelivered": step.undelivered or None,
        "files_waiting": sum(waiting.count for waiting in step.waiting.values()) or None,
        "plan": step.plan, "target": step.target,
    }  # fmt: skip
    return logfmt(pairs)


def _border_pairs(step: Progress) -> dict[str, Any]:
    """What databases did, all together; nothing where none was asked."""
    if not step.borders:
        return {}
    every = step.borders.values()
    return {
        "database_rows_sent": sum(border.rows_sent for border in every),
        "database_bytes_sent": sum(border.bytes_sent for border in every),
        "database_rows_back": sum(border.rows_back for border in every),
        "database_bytes_back": sum(border.bytes_back for border in every),
        "database_seconds": f"{sum(border.seconds for border in every):.3f}",
        "database_failed": sum(border.failed for border in every) or None,
    }


def _figure(share: float | None) -> str:
    return "unknown" if share is None else f"{share:.4f}"


def logfmt(pairs: Mapping[str, Any]) -> str:
    """Pairs as key=value; values with blanks, quotes or = stand in quotes. What is None is left out.

    >>> print(logfmt({"query": "q", "batch": 3, "plan": "(a b)", "why": 'so "it" is', "target": None}))
    query=q batch=3 plan="(a b)" why="so \\"it\\" is"
    """
    return " ".join(f"{key}={_quoted(str(value))}" for key, value in pairs.items() if value is not None)


def _quoted(value: str) -> str:
    return value if _PLAIN.fullmatch(value) else json.dumps(value, ensure_ascii=False)
