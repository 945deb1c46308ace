"""The simulator of windows in time beside the engine: the same rows, plans and limits give as many results."""

import numpy as np
import pyarrow as pa
import pytest

from anabranch.control.records import Limit
from anabranch.drive.local import LocalRun
from anabranch.sql import parse_script
from anabranch.storage.filesystem import MemoryFilesystem
from bench.papers.jaqpot.matching import Rows
from bench.papers.jaqpot.time_windows import TimeWindows
from tests.support.losing import limit, may_lose
from tests.support.simulated_chain import CHAIN, NAMES, tree

UNTIL_S, BATCH_S, WINDOW_S = 10, 1, 2
SCRIPT = (
    " ".join(f"CREATE STREAM {name} (ab BIGINT, bc BIGINT, cd BIGINT, ts TIMESTAMP) TIME ts;" for name in NAMES)
    + " CREATE QUERY q AS SELECT a.ab, d.cd FROM a, b, c, d WHERE a.ab = b.ab AND b.bc = c.bc AND c.cd = d.cd"
    + f" WINDOW {WINDOW_S} SECONDS"
)


def drawn(seed):
    """Rows in whole microseconds, as the engine has them."""
    chosen = np.random.default_rng(seed)
    found = {}
    for name in NAMES:
        times_us = np.sort(chosen.integers(0, UNTIL_S * 1_000_000, 1500))
        found[name] = Rows(times_us / 1e6, {column: chosen.integers(0, 90, 1500) for column in ("ab", "bc", "cd")})
    return found


def by_the_engine(rows, shape, shares):
    query = parse_script(SCRIPT).queries[0].query
    run = LocalRun(query, MemoryFilesystem(), shape, limiting=may_lose(7))
    limit(run, {name: Limit(share=share) for name, share in shares.items()})
    count = 0
    for batch in range(UNTIL_S // BATCH_S):
        fed = {}
        for name, each in rows.items():
            first, last = np.searchsorted(each.times_s, (batch * BATCH_S, (batch + 1) * BATCH_S))
            at_us = np.rint(each.times_s[first:last] * 1e6).astype(np.int64)
            columns = {column: values[first:last] for column, values in each.columns.items()}
            fed[name] = pa.table({**columns, "ts": pa.array(at_us).cast(pa.timestamp("us"))})
        count += run.step(batch, fed).results.num_rows
    return count


def by_the_simulator(rows, shape, shares, seed=0):
    return TimeWindows(tree(shape), rows, CHAIN, dict.fromkeys(NAMES, WINDOW_S), shares, seed).run(UNTIL_S, BATCH_S).count


@pytest.mark.parametrize("shape", ["(a b c d)", "(((a b) c) d)", "((a b) (c d))"])
def test_nothing_limited_gives_the_same_number(shape):
    rows = drawn(1)
    assert by_the_engine(rows, shape, {}) == by_the_simulator(rows, shape, {}) > 10_000


def test_directions_that_do_not_probe_give_the_same_number():
    """A result is found by the last of its rows that comes; within a batch inputs come in the order of the plan."""
    rows, shape = drawn(2), "(a b c d)"
    found = [by_the_engine(rows, shape, {name: float(name == only) for name in NAMES}) for only in NAMES]
    simulated = [by_the_simulator(rows, shape, {name: float(name == only) for name in NAMES}) for only in NAMES]
    assert found == simulated


@pytest.mark.parametrize(
    ("shape", "engine", "simulator"),
    [
        ("(a b c d)", dict.fromkeys(NAMES, 0.4), dict.fromkeys(NAMES, 0.4)),
        ("(a b c d)", {"a": 0.3, "d": 0.6}, {"a": 0.3, "d": 0.6}),
        ("(((a b) c) d)", {"a": 0.5, "b": 0.5, "c": 0.5}, {"((a b) c)": 0.5}),
        ("(((a b) c) d)", {"d": 0.25}, {"d": 0.25}),
    ],
)
def test_shares_give_as_many_but_for_chance(shape, engine, simulator):
    """Both draw: the one by hashes of rows, the other by random numbers; the mean of five draws is compared."""
    rows = drawn(3)
    found = by_the_engine(rows, shape, engine)
    simulated = [by_the_simulator(rows, shape, simulator, seed) for seed in range(5)]
    assert found == pytest.approx(np.mean(simulated), rel=0.05)
