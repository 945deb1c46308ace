"""The benchmark of overload: its engine's part at a tiny size, the truth that runs on Spark are held to, and verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from anabranch.overload.algorithms import ALGORITHMS
from anabranch.overload.by_cpu import Direction
from bench.overload.cases import BEHIND, DOMAINS, OURS, SHED, WINDOW_S, Capacity, Case, Size, cases
from bench.overload.chain import BINARY, N_ARY, STREAMS, Chain
from bench.overload.division import OURS as PATHS
from bench.overload.division import UNIFORM, divided
from bench.overload.engine_part import GOALS, PARTS, goals, measure, summary
from bench.overload.hosted import OUT
from bench.overload.traffic import EVERY_S, Traffic
from bench.overload.truth import truth
from bench.overload.verdicts import batches_until_exact
from bench.overload.verdicts import goals as verdicts

CHAIN = Chain(60, 2, seed=1)


def test_the_engines_part() -> None:
    """All ways at a tiny size: exact by every plan, what is limited gives less, and every goal has a verdict."""
    rows = measure(CHAIN, measured=2)
    exact = [row for row in rows if row["part"] == 1.0]
    assert [row["plan"] for row in exact] == [N_ARY, N_ARY, *BINARY]
    assert all(row["results"] == 1.0 for row in exact)
    for part in PARTS:
        own = [row for row in rows if row["part"] == part]
        assert {PATHS, UNIFORM, *ALGORITHMS} <= {row["way"] for row in own if row["plan"] == N_ARY}
        assert all(0 <= row["results"] <= 1 for row in own)
        assert sum(row["way"].startswith("shed at random") for row in own) == 2
    found = goals(summary(rows), rows)
    assert len(found) == 3 * len(GOALS) + 1
    assert {row["kept"] for row in found} <= {"yes", "no"}


@pytest.mark.parametrize("way", [PATHS, UNIFORM, *ALGORITHMS])
def test_shares_take_no_more_than_there_is(way: str) -> None:
    costs_s = zip(STREAMS, (1e-3, 4e-4, 1e-4, 5e-5, 2e-5), strict=True)
    directions = [Direction(alias, 1000, cost_s, 5.0) for alias, cost_s in costs_s]
    whole = sum(d.cpu_s for d in directions)
    for part in (1.0, 0.5, 0.1):
        shares = divided(way, directions, part * whole, CHAIN.as_written)
        assert shares.keys() == set(STREAMS)
        assert all(0 <= share <= 1 for share in shares.values())
        assert sum(d.cpu_s * shares[d.alias] for d in directions) <= part * whole * (1 + 1e-6)


def test_chains_are_the_same_for_every_way() -> None:
    whole, part = CHAIN.batch(3), CHAIN.batch(3, kept=0.5)
    for stream in STREAMS:
        assert whole[stream].num_rows == 60 > part[stream].num_rows > 0
        assert set(part[stream]["v"].to_pylist()) < set(whole[stream]["v"].to_pylist())
    assert CHAIN.batch(3)["a"] == whole["a"] != CHAIN.batch(4)["a"]


TRAFFIC = Traffic("", "abc", (4, 30), ((2, 40), (1, 80)), hot=0.5)


def test_files_come_in_order_and_rates_change(tmp_path: Path) -> None:
    traffic = replace(TRAFFIC, folder=str(tmp_path))
    traffic.write_all()
    for stream in "abc":
        tables = [pq.read_table(path) for path in sorted((tmp_path / stream).glob("*.parquet"))]
        assert [t.num_rows for t in tables] == [20, 20, 20, 20, 40, 40]
        whole = pa.concat_tables(tables)
        assert whole["v"].to_pylist() == list(range(160))
        times = whole["ts"].cast(pa.int64()).to_numpy()
        assert (np.diff(times) > 0).all()
        assert times[-1] - times[0] < 6 * EVERY_S * 1e6
        hot = (whole["k1"].to_numpy() == 0).mean()
        assert (hot > 0.5) == (stream in "ab")


def test_truth_counts_results_by_batch_and_finds_wrong_ones(tmp_path: Path) -> None:
    """Two files of each stream in a batch; the second batch's clock makes pairs with rows of the first one too old."""
    rows = {
        "a": [(1, 0, 0.0, 0), (1, 0, 1.0, 1_000_000)], "b": [(1, 5, 0.0, 100), (2, 5, 1.0, 1_500_000)],
        "c": [(9, 5, 0.0, 200), (9, 5, 1.0, 9_000_000)],
    }  # fmt: skip
    for stream, given in rows.items():
        (tmp_path / stream).mkdir()
        for number, (k1, k2, v, us) in enumerate(given):
            row = pa.table({"k1": [k1], "k2": [k2], "v": [v], "ts": pa.array([us], pa.timestamp("us", "UTC"))})
            pq.write_table(row, tmp_path / stream / f"{number:06d}.parquet")
    edges = (("a.k1", "b.k1"), ("b.k2", "c.k2"))

    def found(freshness_s: float, *given: tuple[int, float, float, float]) -> Any:
        for batch in {each[0] for each in given}:
            own = [each[1:] for each in given if each[0] == batch]
            (tmp_path / OUT / f"batch={batch}").mkdir(parents=True, exist_ok=True)
            columns = {f"{s}_v": [v[n] for v in own] for n, s in enumerate("abc")}
            pq.write_table(pa.table(columns), tmp_path / OUT / f"batch={batch}" / "part.parquet")
        return truth(str(tmp_path), "abc", edges, 2, freshness_s, {0: [1, 1, 1], 1: [2, 2, 2]}, {0: 1_000, 1: 2_000_000})

    right = found(1.0, (0, 0.0, 0.0, 0.0))
    assert (right.exact, right.fresh, right.given) == ({0: 1, 1: 1}, {0: 1}, {0: 1})
    assert (right.stale, right.wrong, right.oldest_s) == (0, 0, 0.001)
    stale = found(1.0, (0, 0.0, 0.0, 0.0), (1, 1.0, 0.0, 0.0))
    assert (stale.stale, stale.wrong) == (1, 0)
    assert found(3.0, (0, 0.0, 0.0, 0.0), (1, 1.0, 0.0, 0.0)).fresh == {0: 1, 1: 1}
    assert found(3.0, (0, 0.0, 0.0, 0.0), (1, 0.0, 0.0, 0.0)).wrong == 1, "given twice"
    assert found(3.0, (0, 0.0, 0.0, 0.0), (1, 0.0, 1.0, 0.0)).wrong == 1, "no result"


def test_cases_and_verdicts() -> None:
    capacity = Capacity((1e-8, 0.0, 0.5), (1e-8, 1e-6, 0.5), 0.6)
    assert capacity.rate_at(1.0) == round(capacity.rate_per_s) == 7071
    assert capacity.rate_at(2.0) > 7071 > capacity.rate_at(0.5) > 0
    found = cases(("load", "burst", "skew", "cannot-help"), capacity, Size(), False)
    assert len([case for case in found if case.part == "load" and case.load == 2.0]) == 5
    assert all("FRESHNESS" not in case.sql for case in found if case.way == BEHIND)
    assert "WINDOW 4 SECONDS FRESHNESS 8 SECONDS" in found[0].sql
    point = {"given": 10, "exact": 10, "fresh": 10}
    series = [{**point, "batch": n, "second": float(n), "given": 5 if 8 < n < 25 else 10} for n in range(40)]
    row: Mapping[str, Any] = {"part": "burst", "way": OURS, "load": 4.0, "falls_s": 18, "series": series}
    assert batches_until_exact(row) == 24 - 18 - WINDOW_S
    about = {"part": "load", "load": 2.0, "told %": 71.0, "true %": 70.0, "lag s": 3.0, "stale": 0, "wrong": 0}
    rows = [{**about, "way": OURS, "results/s": 180.0}, {**about, "way": SHED, "results/s": 100.0}, row]
    assert {each["goal"]: each["kept"] for each in verdicts(rows, capacity)} == {
        "probing, % of all CPU of the exact run": "yes", "load 2: lag, s": "yes", "load 2: stale results": "yes",
        "load 2: told less true, points": "yes", "load 2: times the results of shed": "yes",
        "results that are none, or given twice": "yes", "burst of 4: batches beyond a window until exact again": "yes",
    }  # fmt: skip
    assert Case("load", OURS, ((1, 1),)).domains == DOMAINS
