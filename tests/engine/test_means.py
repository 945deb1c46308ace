"""AVG in predicates: readings compared with the mean of their group, against fractions (`oracle.bounds`)."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from anabranch.drive.local import LocalRun
from anabranch.sql import parse_script
from anabranch.storage.filesystem import MemoryFilesystem
from tests.support import oracle

STREAM = "CREATE STREAM s (k BIGINT, load DOUBLE, ts TIMESTAMP) TIME ts;"
ABOVE = """SELECT p.k, p.load, m.mean FROM s [NOW] p
           JOIN (SELECT k, AVG(load) AS mean FROM s [RANGE 5 SECONDS] GROUP BY k) m ON p.k = m.k WHERE p.load {} m.mean"""
COMPARED = """SELECT a.k, a.mean AS one, b.mean AS other
              FROM (SELECT k, AVG(load) AS mean FROM s [RANGE 5 SECONDS] GROUP BY k) a
              JOIN (SELECT k, AVG(load) AS mean FROM s [RANGE 2 SECONDS] GROUP BY k) b ON a.k = b.k WHERE a.mean > b.mean"""
HAVING = "SELECT k, COUNT(*) AS n FROM s [RANGE 3 SECONDS] GROUP BY k HAVING AVG(load) <= 0.3e0"


def readings(loads: np.ndarray, keys: np.ndarray, batches: int) -> list[dict[str, pa.Table]]:
    """Readings that come over ten seconds."""
    times = pa.array(np.arange(len(loads)) * 10_000_000 // len(loads), pa.timestamp("us"))
    rows = pa.table({"k": keys, "load": loads, "ts": times})
    size = -(-len(loads) // batches)
    return [{"s": rows.slice(first, size)} for first in range(0, len(loads), size)]


def results_of(sql: str, batches: list[dict[str, pa.Table]]) -> oracle.Bag:
    run = LocalRun(parse_script(f"{STREAM} CREATE QUERY q AS {sql}").queries[0].query, MemoryFilesystem())
    found: oracle.Bag = Counter()
    for number, rows in enumerate([*batches, {}]):
        found += oracle.bag(run.step(number, rows).results)
    return found


@pytest.mark.parametrize("comparison", ["<", ">"])
def test_no_reading_is_above_or_below_the_mean_of_equal_ones(comparison: str) -> None:
    rng = np.random.default_rng(1)
    keys = rng.integers(0, 200, 8_000)
    batches = readings((rng.integers(1, 5_000, 200) / 10.0)[keys], keys, 7)
    assert not results_of(ABOVE.format(comparison), batches)


@pytest.mark.few(2)
@pytest.mark.parametrize("sql", [ABOVE.format(">"), ABOVE.format(">="), ABOVE.format("<"), COMPARED, HAVING])
def test_predicates_over_means(sql: str) -> None:
    """Parts of thirty are no doubles: the mean of 0.1, 0.2 and 0.3 lies beside 0.2. Such results are left out."""
    left_out = compared = 0
    for seed in range(6):
        rng = np.random.default_rng(seed)
        n = 120
        batches = readings(rng.integers(0, 20, n) / 30.0, rng.integers(0, 4, n), 5)
        query = parse_script(f"{STREAM} CREATE QUERY q AS {sql}").queries[0].query
        certain, possible = oracle.bounds(query, batches, {})
        found = oracle.coarse(results_of(sql, batches))
        assert not certain - found, "missing"
        assert not found - possible, "wrong or repeated"
        compared, left_out = compared + possible.total(), left_out + (possible - certain).total()
    assert compared > 50
    assert left_out < compared / 10


@pytest.mark.parametrize(
    ("loads", "in_doubt"), [([0.2, 0.3, 0.4], True), ([0.3, 0.3, 0.3], False), ([0.25, 0.5, 0.25], False)]
)
def test_what_is_in_doubt(loads: list[float], in_doubt: bool) -> None:
    """A mean beside a double is moved; one that is a double is not."""
    query = parse_script(f"{STREAM} CREATE QUERY q AS {HAVING}").queries[0].query
    times = pa.array([1, 2, 3, 2_000_000], pa.timestamp("us"))
    rows = pa.table({"k": [0] * 4, "load": [*loads, 9.0], "ts": times})
    certain, possible = oracle.bounds(query, [{"s": rows}], {})
    assert (certain != possible) is in_doubt
