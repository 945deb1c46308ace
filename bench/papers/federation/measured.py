"""Placements of CQ1 to CQ6 that run, engine-local: CPU per row of each beside the one that the optimizer chooses; or, where
one of the two does not keep up with the rate, the largest rate that each sustains (`sustained`).

One slot in one process, without Spark; batches of a second go through the whole protocol, state is written to a folder.
The optimizer chooses by costs that are measured first (`anabranch calibrate`, for the engine and for DuckDB), in a cache of
this run's own, and is told the rate, how many plugs and households there are, and which share of rows CQ1 and CQ2 count, as
a user tells a session; or nothing of all that (`--nothing-told`). What it chooses with less told stands beside it.
The chosen placement and another one then take turns, a batch each, at least seven pairs; told is the median of the ratios of
their CPU time with its 90 % interval.

Windows of five minutes are full when measuring begins. The instants of the filling are passed over in all placements alike
(in DuckDB each would look at its whole window, 300 times): rows are taken in, logged and folded as always, and nothing is
asked. Results of all batches that are measured are compared with those of the chosen placement.

A placement of which three pairs show more than `HOPELESS` times the chosen one's CPU is given up, and left out at higher
rates.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter, process_time
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa

from anabranch.cost import units
from anabranch.cost.facts import Given
from anabranch.drive.calibrate import calibrate
from anabranch.drive.local import LocalRun
from anabranch.drive.warm import warm_up
from anabranch.engine.aggregation import Aggregator
from anabranch.engine.mig_box import MigBox
from anabranch.place.calibrate import SIZES, measure_blocks, remember
from anabranch.place.choice import Choice
from anabranch.place.databases.embedded import DUCK, open_embedded
from anabranch.place.tree import group_keys
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.query import Query
from anabranch.planning import Planning
from anabranch.sql import parse_script
from anabranch.storage.filesystem import LocalFilesystem
from bench.compare import LEAST_PAIRS, interval
from bench.papers.federation.placements import WORDS, Placement, parsed, placements
from bench.papers.federation.plug_rows import GAMMA, PlugRows
from bench.papers.federation.queries import CQ
from bench.papers.federation.queries import PLUGS as PLUGS_SQL
from bench.papers.federation.shapes import HOUSEHOLDS, LOADS, PLUGS
from bench.papers.federation.sustained import BY_CPU, Sustained, compared, largest_sustained

RATES = (1_000, 10_000, 40_000, 200_000)
WINDOW_S, SAMPLED_PLUGS = 300, 64
WARM = 2
"""Batches after the filling that are not measured: the first has the instants of the filling's last one."""
HOPELESS, TRIED = 3.0, 3
ADVANTAGE = 1.1
"""A placement that takes a tenth less than the chosen one beats it."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Told:
    """What the optimizer is told."""

    rate: bool = True
    keys: bool = True
    """How many plugs and households there are."""
    shares: bool = True
    """Which share of rows CQ1 and CQ2 count."""


ALL, NO_SHARES, NOTHING = Told(), Told(shares=False), Told(rate=False, keys=False, shares=False)


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    rates: Sequence[int] = RATES
    pairs: int = LEAST_PAIRS
    calibrated: Sequence[int] = SIZES
    gives_up: bool = True
    names: Sequence[str] = tuple(CQ)
    told: Told = ALL
    """What the optimizer is told of streams, keys and predicates."""
    filling_s: Sequence[int] = 31 * (10,)
    """Windows are filled in batches of so many seconds. The instants of the last one are asked for once they are full."""


QUICK = Sizes((200,), 2, (1_000, 10_000), gives_up=False, filling_s=(150, 150, 9, 1))


@contextmanager
def calibrated(sizes: Sequence[int]) -> Iterator[None]:
    """What the engine and DuckDB take on this machine is measured, and known as long as this lasts."""
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, {"XDG_CACHE_HOME": folder}):
        warm_up()
        units.remember(calibrate())
        duck = open_embedded(DUCK)
        remember(DUCK, measure_blocks(duck, sizes))
        duck.close()
        yield


def passing(rate: int, seed: int = 5) -> dict[str, float]:
    """The share of loads that are above 90 % of the most, or above the mean, of their plug in five minutes."""
    count = max(1, round(rate * LOADS * WINDOW_S / PLUGS))
    loads = np.random.default_rng(seed).gamma(*GAMMA, (SAMPLED_PLUGS, count))
    most, mean = loads.max(axis=1, keepdims=True), loads.mean(axis=1, keepdims=True)
    return {"CQ1": float((loads > 0.9 * most).mean()), "CQ2": float((loads > mean).mean())}


def facts_of(query: Query, rate: int, told: Told = ALL) -> Given:
    """The facts, as a user says them of one query."""
    joined = {str(term) for block in query.blocks for terms in JoinGraph(block).classes for term in terms}
    keys = joined | {key for block in query.blocks for key in group_keys(block)}
    # A plug is in one household: beside the plug, the household adds no groups.
    distinct = {
        key: PLUGS if key.endswith(".plug") else 1.0 if key == "plugs.household" else HOUSEHOLDS for key in sorted(keys)
    }
    shares = {name: share for name, share in passing(rate).items() if name == query.name}
    return Given(
        {"plugs": float(rate)} if told.rate else {}, distinct=distinct if told.keys else {},
        passing=shares if told.shares else {},
    )  # fmt: skip


def chosen_at(name: str, rate: int, told: Told = ALL) -> tuple[frozenset[str], Choice | None]:
    """The blocks of a query that the product places in DuckDB at a rate, and why. Facts are those that a session takes."""
    planning = Planning(slots=1)
    planning.facts = facts_of(parsed(name, CQ[name]), rate, told)
    planning.add_script(parse_script(f"{PLUGS_SQL} CREATE QUERY {name} AS {CQ[name]};", planning.catalog))
    planning.check_facts()
    places = planning.query(name).forms.written.places
    return frozenset(places), planning.choose_places(parsed(name, CQ[name]), planning.facts)


class Measuring:
    """A placement whose windows are full."""

    def __init__(self, placement: Placement, source: PlugRows, folder: str, filling_s: Sequence[int]) -> None:
        assert placement.query is not None, "it cannot run"
        self.source, self.second, self.batch = source, 0, 0
        self.run = LocalRun(placement.query, LocalFilesystem(folder))
        self.found: dict[int, pa.Table] = {}
        """What it gave in each batch."""
        self.wall_s: list[float] = []
        self.cpu_s: list[float] = []
        self.asked_s: list[float] = []
        with _passing_over():
            for seconds in filling_s:
                self._step(seconds)
        for _ in range(WARM):
            self._step(1)
        self.warm = self.batch

    def _step(self, seconds: int) -> Any:
        rows = self.source.rows(self.second, seconds)
        began, clock = process_time(), perf_counter()
        step = self.run.step(self.batch, {"plugs": rows})
        self.last_s = process_time() - began, perf_counter() - clock
        self.second, self.batch = self.second + seconds, self.batch + 1
        return step

    def measure(self) -> float:
        """CPU seconds of the next batch."""
        step = self._step(1)
        self.found[self.batch - 1 - self.warm] = step.results
        self.cpu_s.append(self.last_s[0])
        self.wall_s.append(self.last_s[1])
        self.asked_s.append(step.statistics.cpu_ns.get("database", 0) / 1e9)
        return self.cpu_s[-1]


@contextmanager
def _passing_over() -> Iterator[None]:
    """Instants give nothing, in the engine as in DuckDB; rows are taken in, logged and folded."""

    def passed(self: Aggregator, watermark_us: int) -> Iterator[pa.RecordBatch]:
        self.pass_over(watermark_us)
        return iter(())

    with mock.patch.object(MigBox, "_together", return_value=()), mock.patch.object(Aggregator, "advance", passed):
        yield


def measured(sizes: Sizes) -> list[Row]:
    """All placements of all queries at all rates, beside the chosen one."""
    found: list[Row] = []
    with calibrated(sizes.calibrated):
        for name in sizes.names:
            known, hopeless, kept = placements(name), set[str](), dict[str, tuple[int, float]]()
            for rate in sizes.rates:
                found += _at(name, rate, known, hopeless, kept, sizes)
    return found


def sustained_by(
    placement: Placement, at: Measuring, rate: int, kept: dict[str, tuple[int, float]], sizes: Sizes
) -> Sustained:
    """The largest rate that a placement sustains, as far as it is below a rate at which it was measured. `kept` are the
    largest rates that were kept up with so far, by the placement, with what a batch took."""
    wall_s = statistics.median(at.wall_s)
    if wall_s < 1:
        return Sustained(rate)

    def seconds_at(lower: int) -> float:
        with tempfile.TemporaryDirectory() as folder:
            tried = Measuring(placement, PlugRows(lower), folder, sizes.filling_s)
            for _ in range(TRIED):
                tried.measure()
            return statistics.median(tried.wall_s)

    return largest_sustained(seconds_at, (rate, wall_s), kept.get(placement.name))


def _at(
    name: str, rate: int, known: Sequence[Placement], hopeless: set[str], kept: dict[str, tuple[int, float]], sizes: Sizes
) -> list[Row]:
    blocks, choice = chosen_at(name, rate, sizes.told)
    told: Row = {"query": name, "rate": rate}
    decision = None if choice is None else choice.decision
    chosen = next(each for each in known if each.blocks == blocks and each.query is not None and each.sql is not None)
    source, found = PlugRows(rate), list[Row]()
    with tempfile.TemporaryDirectory() as folder:
        best, best_sustains = Measuring(chosen, source, os.path.join(folder, "chosen"), sizes.filling_s), None
        for number, each in enumerate(known):
            row: Row = {**told, "in DuckDB": each.name, "is chosen": each is chosen}
            if each is chosen:
                found.append(row)
                continue
            if each.query is None or each.name in hopeless:
                more = f"more than {HOPELESS:g} times the chosen one's at a lower rate"
                why = each.refused if each.query is None else more
                found.append({**row, "why not": why})
                continue
            other = Measuring(each, source, os.path.join(folder, str(number)), sizes.filling_s)
            ratios = _pairs(best, other, sizes)
            if sizes.gives_up and min(ratios) > HOPELESS:
                hopeless.add(each.name)
            low, high = interval(ratios)
            told_of = {"compared by": BY_CPU, "of chosen": statistics.median(ratios), "low": low, "high": high}
            if not (keeps_up(best) and keeps_up(other)):
                best_sustains = best_sustains or sustained_by(chosen, best, rate, kept, sizes)
                sustains = sustained_by(each, other, rate, kept, sizes)
                told_of = {**compared(best_sustains, sustains), "sustains": sustains.kept, "not": sustains.over}
            found.append({
                **row, **_told(other, rate), **told_of, "of chosen's CPU": statistics.median(ratios),
                "pairs": len(ratios), "same": _same(best, other), "hints": each.refused or "yes",
            })  # fmt: skip
            if keeps_up(other):
                kept[each.name] = rate, statistics.median(other.wall_s)
            del other
            print(f"{name} {rate} {each.name}: {_ratio(found[-1])}, by {told_of['compared by']}", flush=True)
    if not best.cpu_s:
        best.measure()
    if keeps_up(best):
        kept[chosen.name] = rate, statistics.median(best.wall_s)
    other_use = None if choice is None or choice.other is None else choice.other.use.total
    for row in found:
        if row["is chosen"]:
            row |= {
                **_told(best, rate), "of chosen": 1.0, "hints": "yes",
                **({"sustains": best_sustains.kept, "not": best_sustains.over} if best_sustains else {}),
                "C_u": decision and decision.use.total,
                "next C_u": other_use, "without shares": _called(chosen_at(name, rate, NO_SHARES)[0], known),
                "nothing told": _called(chosen_at(name, rate, NOTHING)[0], known),
            }  # fmt: skip
    return found


def _called(blocks: frozenset[str], known: Sequence[Placement]) -> str:
    return next(each.name for each in known if each.blocks == blocks)


def _pairs(best: Measuring, other: Measuring, sizes: Sizes) -> list[float]:
    """The ratios of another placement's CPU time to that of the chosen one, in turns."""
    ratios: list[float] = []
    for pair in range(sizes.pairs):
        sides = (best, other) if pair % 2 else (other, best)
        spent = {side: side.measure() for side in sides}
        ratios.append(spent[other] / spent[best])
        if sizes.gives_up and pair + 1 == TRIED and min(ratios) > HOPELESS:
            break
    return ratios


def keeps_up(one: Measuring) -> bool:
    """A batch is of a second: a placement keeps up if it takes less."""
    return statistics.median(one.wall_s) < 1


def _told(one: Measuring, rate: int) -> Row:
    wall = statistics.median(one.wall_s)
    return {
        "CPU µs a row": statistics.median(one.cpu_s) / rate * 1e6, "seconds a batch": wall, "keeps up": keeps_up(one),
        "rows/s worked off": rate / wall, "asking, share": sum(one.asked_s) / sum(one.cpu_s),
    }  # fmt: skip


def _same(best: Measuring, other: Measuring) -> bool:
    """Whether two placements gave the same multiset in each batch that both have: a group has one row at an instant."""
    return all(same_rows(best.found[n], rows) for n, rows in other.found.items())


def same_rows(one: pa.Table, other: pa.Table) -> bool:
    """Whether tables with a key in their first column have the same rows, floats up to 1e-9.

    >>> same_rows(pa.table({"k": [1, 2], "x": [0.5, 1.0]}), pa.table({"k": [2, 1], "x": [1.0 + 1e-12, 0.5]}))
    True
    """
    if one.num_rows != other.num_rows:
        return False
    key = one.column_names[0]
    for left, right in zip(one.sort_by(key).columns, other.sort_by(key).columns, strict=True):
        exact = not pa.types.is_floating(left.type)
        a, b = left.to_numpy(), right.to_numpy()
        if not (np.array_equal(a, b) if exact else np.allclose(a, b, rtol=1e-9, atol=1e-9)):
            return False
    return True


def beaten(rows: Sequence[Row]) -> list[Row]:
    """The placements that beat the chosen one by more than a tenth, surely."""
    return [row for row in rows if row.get("high") is not None and row["high"] < 1 and row["of chosen"] < 1 / ADVANTAGE]


def fastest(rows: Sequence[Row]) -> dict[tuple[str, int], Row]:
    """The placement of each query and rate that takes the least CPU a row, or sustains the largest rate."""
    best: dict[tuple[str, int], Row] = {}
    for row in rows:
        key = row["query"], row["rate"]
        if "CPU µs a row" in row and (key not in best or row["of chosen"] < best[key]["of chosen"]):
            best[key] = row
    return best


def summary(rows: Sequence[Row]) -> list[Row]:
    """A line for each query and rate: the chosen placement, the best and the worst other one, and the whole in DuckDB's
    words, in CPU time of the chosen one's; marked where the largest sustained rate is compared."""
    found = []
    for name, rate in dict.fromkeys((row["query"], row["rate"]) for row in rows):
        mine = [row for row in rows if (row["query"], row["rate"]) == (name, rate)]
        (chosen,) = (row for row in mine if row["is chosen"])
        others = sorted((row for row in mine if "low" in row), key=lambda row: row["of chosen"])
        words = [row for row in others if row["in DuckDB"] == WORDS]
        found.append({
            "query": name, "rows/s": rate, "chosen: in DuckDB": chosen["in DuckDB"], "CPU µs a row": chosen["CPU µs a row"],
            "best other": f"{others[0]['in DuckDB']}: {_ratio(others[0])}" if others else "-",
            "worst other": _ratio(others[-1]) if others else "-",
            WORDS: _ratio(words[0]) if words else "-", "measured": len(others) + 1,
            "left out": sum("why not" in row for row in mine), "keep up": sum(row.get("keeps up", False) for row in mine),
            "compared by rate": sum(row["compared by"] != BY_CPU for row in others),
        })  # fmt: skip
    return found


def _ratio(row: Row) -> str:
    """A ratio with its interval: of CPU time to the chosen one's, or of the chosen one's largest sustained rate to this
    one's. Below 1 the chosen one is beaten."""
    upper = "more" if row["high"] is None else f"{row['high']:.2f}"
    marked = "" if row["compared by"] == BY_CPU else " by rate"
    return f"{row['of chosen']:.2f} ({row['low']:.2f} to {upper}){marked}"
