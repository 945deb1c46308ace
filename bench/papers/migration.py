"""The experiments of 002, chapter 16, on the engine: `python -m bench.papers.migration [--quick]`.

Four streams, the chain A-B-C-D; the old plan is (((A B) C) D), the new one (A ((B C) D)), as in figure 10.1. Parameters are
those of table 16.1, with rates times a scale and selectivities divided by it: all counts of rows grow by that, the ratios
stay.

- Figures 16.1 to 16.4: how long a migration lasts against the window and against a rate. A parallel track lasts for event
  time: W under our law (a combined row ends with its first part), 2W in the paper. Moving state lasts for CPU time.
- Figures 16.5 to 16.8: rows in views and results over time in a low and a high configuration. The machine of the paper is
  played by a queue: a batch is served for its measured CPU time, times a factor by which the old plan is at half (low) or
  one and a half times (high) of what the machine can do.
- Figure 16.9: what the loop costs when there is nothing to adapt to.
- Figures 16.10 to 16.13: join selectivities that change once, and that keep changing: results and memory with and without
  adaptation.

Writes tables to bench/out/migration*.json and the plots to bench/out/migration.png.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import process_time
from typing import Any

import numpy as np
import pyarrow as pa

from anabranch.adapt.loop import AdaptiveLoop, Knowledge, Settings
from anabranch.adapt.timing import DataDriven
from anabranch.control.loop import Proposal
from anabranch.cost.units import unit_costs
from anabranch.drive.local import LocalRun, Step
from anabranch.drive.warm import warm_up
from anabranch.plan.jtree import show
from anabranch.plan.migration import Strategy
from anabranch.sql import parse_script
from anabranch.storage.filesystem import MemoryFilesystem
from bench import report

BATCH_S = 0.1
OLD, NEW = "(((a b) c) d)", "(a ((b c) d))"
MIGRATED_AT_S = 10.0
SECOND_US = 1_000_000


@dataclass(frozen=True)
class Setting:
    """A row of table 16.1: mean times between rows in ms, and selectivities of the predicates of the chain."""

    window_s: float
    gaps_ms: tuple[float, ...]
    selectivities: tuple[float, ...]
    scale: int = 200

    @property
    def streams(self) -> str:
        return "abcd"[: len(self.gaps_ms)]

    @property
    def script(self) -> str:
        fields = ", ".join(f"k{i} BIGINT" for i in range(len(self.selectivities)))
        create = "".join(f"CREATE STREAM {s} ({fields}, ts TIMESTAMP) TIME ts;" for s in self.streams)
        pairs = zip(self.streams, self.streams[1:], strict=False)
        where = " AND ".join(f"{x}.k{i} = {y}.k{i}" for i, (x, y) in enumerate(pairs))
        select = ", ".join(f"{s}.ts AS t{s}" for s in self.streams)
        window_us = round(self.window_s * SECOND_US)
        inputs = ", ".join(self.streams)
        return f"{create} CREATE QUERY q AS SELECT {select} FROM {inputs} WHERE {where} WINDOW {window_us} MICROSECONDS"

    def batch(self, number: int, rng: np.random.Generator) -> dict[str, pa.Table]:
        """Poisson arrivals of one batch."""
        rows = {}
        for stream, gap_ms in zip(self.streams, self.gaps_ms, strict=True):
            n = int(rng.poisson(self.scale * BATCH_S * 1000 / gap_ms))
            times = number * round(BATCH_S * SECOND_US) + np.sort(rng.integers(0, round(BATCH_S * SECOND_US), n))
            keys = {f"k{i}": rng.integers(0, round(self.scale / s), n) for i, s in enumerate(self.selectivities)}
            rows[stream] = pa.table({**keys, "ts": pa.array(times, pa.timestamp("us"))})
        return rows

    def start(self, plan: str) -> LocalRun:
        return LocalRun(parse_script(self.script).queries[0].query, MemoryFilesystem(), plan)


SET1 = Setting(1.0, (100, 100, 100, 100), (0.1, 0.05, 0.02))
SET2 = Setting(1.0, (50, 50, 50, 50), (0.1, 0.05, 0.02))
SET3 = Setting(1.0, (100, 12, 12, 12), (0.1, 0.1, 0.1), scale=5)
LOW = Setting(1.0, (100, 100, 100, 100), (0.1, 0.02, 0.02))
HIGH = Setting(2.0, (50, 50, 50, 50), (0.2, 0.05, 0.05), scale=50)


# -- how long (figures 16.1 to 16.4) -------------------------------------------------------------------------------------


def length(setting: Setting, strategy: Strategy, seed: int) -> dict[str, float]:
    """Migrates once, when windows are full: event time until the new plan gives the results, CPU of the migration, and the
    longest that a batch worked on it."""
    rng, run = np.random.default_rng(seed), setting.start(OLD)
    warm = round(2 * setting.window_s / BATCH_S) + 2
    for number in range(warm):
        run.step(number, setting.batch(number, rng))
    run.migrate(NEW, strategy, pause_us=round(BATCH_S * SECOND_US / 5))
    number, spent, longest = warm, 0.0, 0.0
    while True:
        done = run.step(number, setting.batch(number, rng)).statistics.preparing
        spent, longest, number = spent + done.cpu_ns / 1e9, max(longest, done.cpu_ns / 1e9), number + 1
        if run.execution.migration is None:
            return {"event s": (number - warm) * BATCH_S, "cpu s": spent, "longest s": longest}


def lengths(name: str, settings: Sequence[tuple[float, Setting]], repeat: int) -> list[dict[str, Any]]:
    rows = []
    for value, setting in settings:
        row: dict[str, Any] = {"figure": name, "value": value, "W s": setting.window_s, "2W s": 2 * setting.window_s}
        for strategy in Strategy:
            found = [length(setting, strategy, seed) for seed in range(repeat)]
            row[f"{strategy} event s"] = statistics.median(f["event s"] for f in found)
            row[f"{strategy} cpu ms"] = 1000 * statistics.median(f["cpu s"] for f in found)
            row[f"{strategy} longest ms"] = 1000 * statistics.median(f["longest s"] for f in found)
        rows.append(row)
    return rows


# -- rows and results over time (figures 16.5 to 16.8) -------------------------------------------------------------------


@dataclass
class Track:
    """One run: for each batch its CPU seconds, the rows in views, the results, and the bytes of state."""

    cpu_s: list[float]
    view_rows: list[int]
    results: list[int]
    state_bytes: list[int]

    def done_at(self, factor: float) -> list[float]:
        """When batches are done if each comes at its time and is served for `factor` times its CPU."""
        at, now = [], 0.0
        for number, spent in enumerate(self.cpu_s):
            now = max(now, (number + 1) * BATCH_S) + spent * factor
            at.append(now)
        return at


def note(track: Track, done: Step, spent_s: float) -> None:
    views = [s for s in done.statistics.states if s.kind == "view"]
    track.cpu_s.append(spent_s)
    track.view_rows.append(sum(s.rows for s in views))
    track.results.append(done.results.num_rows)
    logs = sum(s.state_bytes for s in done.statistics.sources.values())
    track.state_bytes.append(logs + sum(s.bytes for s in done.statistics.states))


def follow(setting: Setting, seconds: float, plan: str, strategy: Strategy | None) -> Track:
    rng, run, track = np.random.default_rng(1), setting.start(plan), Track([], [], [], [])
    for number in range(round(seconds / BATCH_S)):
        if strategy is not None and number == round(MIGRATED_AT_S / BATCH_S):
            run.migrate(NEW, strategy, pause_us=round(BATCH_S * SECOND_US / 5))
        rows, began = setting.batch(number, rng), process_time()
        done = run.step(number, rows)
        note(track, done, process_time() - began)
    return track


WAYS: dict[str, tuple[str, Strategy | None]] = {
    "old": (OLD, None), "new": (NEW, None), **{s.value: (OLD, s) for s in Strategy},
}  # fmt: skip


def over_time(setting: Setting, seconds: float, load: float) -> tuple[dict[str, Track], float]:
    """All ways; and the factor that makes the old plan use `load` of the machine before the migration."""
    tracks = {name: follow(setting, seconds, *way) for name, way in WAYS.items()}
    full = tracks["old"].cpu_s[round(3 * setting.window_s / BATCH_S) : round(MIGRATED_AT_S / BATCH_S)]
    return tracks, load * BATCH_S / statistics.median(full)


def summary(name: str, tracks: dict[str, Track], factor: float) -> list[dict[str, Any]]:
    rows = []
    first = round(MIGRATED_AT_S / BATCH_S)
    for way, track in tracks.items():
        done = track.done_at(factor)
        waits = [at - (n + 1) * BATCH_S for n, at in enumerate(done)]
        gaps = np.diff([0.0, *done])
        rows.append({
            "configuration": name, "way": way, "view rows at the end": track.view_rows[-1],
            "most view rows after 10 s": max(track.view_rows[first:]), "results": sum(track.results),
            "last done at s": done[-1], "most behind s": max(waits), "longest silence s": float(gaps[first:].max()),
        })  # fmt: skip
    return rows


# -- the loop (figures 16.9 to 16.13) ------------------------------------------------------------------------------------

RATE_GAP_MS = 50.0
LOOP_WINDOW_S = 5.0
INTERVAL_S = 10.0


def loop_setting(first: float, second: float, scale: int = 400) -> Setting:
    return Setting(LOOP_WINDOW_S, (RATE_GAP_MS,) * 3, (first, second), scale)


def loop_of(run: LocalRun) -> AdaptiveLoop:
    """As in the paper the optimiser is asked every ten seconds at the earliest."""
    units = replace(unit_costs(), batch_s=BATCH_S)
    timing = DataDriven(interval=round(INTERVAL_S / BATCH_S), recent=10)
    return AdaptiveLoop(Knowledge(run.graph, units, settings=Settings(timing, window=40, pause_s=BATCH_S / 5)))


def adapt(phase_of: Callable[[float], Setting], seconds: float, adaptive: bool) -> tuple[Track, list[str], float]:
    """A run of three streams from left to right, with the loop or without it; its decisions, and the CPU of the loop."""
    rng, run, track = np.random.default_rng(3), phase_of(0.0).start("((a b) c)"), Track([], [], [], [])
    loop, decisions, loop_s = loop_of(run), [], 0.0
    for number in range(round(seconds / BATCH_S)):
        rows, began = phase_of(number * BATCH_S).batch(number, rng), process_time()
        done = run.step(number, rows)
        spent = process_time() - began
        if adaptive and run.commit is not None:
            began = process_time()
            said = loop.after(run.execution, run.observed)
            loop_s += process_time() - began
            if isinstance(said, Proposal):
                action = said.action
                run.migrate(action.plan, action.strategy, action.pause_us)
                decisions.append(f"{number * BATCH_S:.1f} s: {show(action.plan, run.graph)} by {action.strategy}")
        note(track, done, spent)
    return track, decisions, loop_s


PHASES: dict[str, Callable[[float], Setting]] = {
    "nothing changes (16.9)": lambda _: loop_setting(0.005, 0.02),
    "one change (16.10, 16.11)": lambda at: loop_setting(0.005, 0.02) if at < 4 else loop_setting(0.02, 0.005),
    "many changes (16.12, 16.13)": lambda at: loop_setting(*((0.02, 0.3) if at % 60 < 30 else (0.3, 0.02)), 40),
}


def loops(seconds: float) -> tuple[list[dict[str, Any]], dict[str, dict[str, Track]]]:
    rows, tracks = [], {}
    # The first analysis of a process loads the optimiser's compiled code: that is no part of a loop's share.
    adapt(next(iter(PHASES.values())), 2.0, adaptive=True)
    for name, phase_of in PHASES.items():
        fixed, _, _ = adapt(phase_of, seconds, adaptive=False)
        ours, decisions, loop_s = adapt(phase_of, seconds, adaptive=True)
        assert sum(fixed.results) == sum(ours.results), "the plan must not change results"
        late = round(20 / BATCH_S)
        rows.append({
            "streams": name, "migrations": len(decisions),
            "results per CPU s, adaptive / fixed": sum(fixed.cpu_s[late:]) / sum(ours.cpu_s[late:]),
            "state, adaptive / fixed": sum(ours.state_bytes[late:]) / sum(fixed.state_bytes[late:]),
            "loop, share of CPU": loop_s / sum(ours.cpu_s), "decisions": "; ".join(decisions) or "none",
        })  # fmt: skip
        tracks[name] = {"without adaptation": fixed, "with adaptation": ours}
    return rows, tracks


# -- plots ---------------------------------------------------------------------------------------------------------------


def draw(
    by_length: list[dict[str, Any]],
    tracks: dict[str, tuple[dict[str, Track], float]],
    adapted: dict[str, dict[str, Track]],
) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(4, 3, figsize=(16, 17))
    for place, name in enumerate(dict.fromkeys(r["figure"] for r in by_length)):
        rows, left = [r for r in by_length if r["figure"] == name], axes[0][place]
        x = [r["value"] for r in rows]
        left.plot(x, [r["parallel-track event s"] for r in rows], "o-", label="parallel track, event time (s)")
        left.plot(x, [r["2W s"] for r in rows], ":", label="2W, the paper's")
        right = left.twinx()
        right.plot(x, [r["moving-state cpu ms"] for r in rows], "s-", color="tab:red", label="moving state, CPU (ms)")
        right.plot(x, [r["gradual longest ms"] for r in rows], "^-", color="tab:green", label="gradual, longest batch (ms)")
        left.set(title=name)
        left.legend(loc="upper left", fontsize=7)
        right.legend(loc="lower right", fontsize=7)
    for row, (name, (found, factor)) in enumerate(tracks.items(), 1):
        for way, track in found.items():
            at, done = np.arange(1, len(track.cpu_s) + 1) * BATCH_S, track.done_at(factor)
            axes[row][0].plot(at, track.view_rows, label=way)
            axes[row][1].plot(done, np.cumsum(track.results), label=way)
            axes[row][2].plot(at, np.array(done) - at, label=way)
        axes[row][0].set(title=f"rows in views, {name}")
        axes[row][1].set(title=f"results over time, {name}")
        axes[row][2].set(title=f"seconds behind, {name}")
        axes[row][0].legend(fontsize=7)
    for place, (name, found) in enumerate(adapted.items()):
        for way, track in found.items():
            axes[3][place].plot(np.arange(len(track.cpu_s)) * BATCH_S, np.cumsum(track.cpu_s), label=f"CPU s, {way}")
        axes[3][place].set(title=name)
        axes[3][place].legend(fontsize=7)
    figure.tight_layout()
    report.OUT.mkdir(exist_ok=True)
    path = report.OUT / "migration.png"
    figure.savefig(path, dpi=80)
    print(f"drawn to {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer points and shorter runs")
    quick = parser.parse_args().quick
    warm_up()
    length(SET1, Strategy.GRADUAL, 0)
    windows = (0.5, 1.0, 2.0) if quick else (0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
    gaps = (50.0, 25.0, 12.0) if quick else (50.0, 40.0, 30.0, 25.0, 20.0, 15.0, 12.0)
    repeat = 1 if quick else 3
    by_length = lengths("against W (16.1, 16.2)", [(w, replace(SET1, window_s=w)) for w in windows], repeat)
    rates = [(1000 / g, replace(SET2, gaps_ms=(50.0, g, 50.0, 50.0))) for g in gaps]
    by_length += lengths("against the rate of B (16.3)", rates, repeat)
    by_length += lengths(
        "against W, high (16.4)", [(w, replace(SET3, window_s=w)) for w in windows[: 3 if quick else 5]], repeat
    )
    print(report.table(by_length), flush=True)
    seconds = 16.0 if quick else 24.0
    tracks = {"low (16.5, 16.6)": over_time(LOW, seconds, 0.5), "high (16.7, 16.8)": over_time(HIGH, seconds, 1.5)}
    sums = [row for name, (found, factor) in tracks.items() for row in summary(name, found, factor)]
    print(report.table(sums), flush=True)
    found, adapted = loops(60.0 if quick else 130.0)
    print(report.table(found))
    for name, rows in (("migration", by_length), ("migration_over_time", sums), ("migration_loop", found)):
        print(f"written to {report.write(name, rows)}")
    draw(by_length, tracks, adapted)


if __name__ == "__main__":
    main()
