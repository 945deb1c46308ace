"""What queries lose under limits: never anything wrong, repeated or stale, the same whenever a batch runs again, and it is
told how much that was."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st

from anabranch.control.records import Limit, Limited, Statistics
from anabranch.drive.local import LocalPipeline, LocalRun
from anabranch.engine.combination import Combination
from anabranch.engine.freshness import Oldest, fresh, oldest_times, useful_from_us
from anabranch.engine.shared_box import SharedBox
from anabranch.plan.migration import Strategy
from anabranch.plan.overload import Clock
from anabranch.plan.query import FOREVER_US, Query, Stream
from anabranch.sql import parse_script
from anabranch.storage.filesystem import MemoryFilesystem
from tests.support import oracle
from tests.support.losing import (
    fanned,
    larger,
    limit,
    losing,
    may_lose,
    random_limits,
    random_shares,
    shuffled,
    with_freshness,
)
from tests.support.migrating import busy
from tests.support.scenarios import Scenario, properties, scenarios

SEEDS = st.integers(0, 2**32 - 1)
MOVES = (Strategy.MOVING_STATE, Strategy.GRADUAL)
"""How plans change under limits."""


def is_exact(limits: dict[str, Limit]) -> bool:
    return all(each.share is None or each.share >= 1 for each in limits.values()) and not any(
        each.rows for each in limits.values()
    )


def check_losing(scenario: Scenario, seed: int, slots: int) -> None:
    """Batch by batch, results are among those that are fresh, and all of them where nothing is limited and no row was shed;
    whatever the plan, its changes, restarts, and how rows are spread. A batch that runs again sheds the same rows, too."""
    rng = np.random.default_rng(seed)
    query = with_freshness(scenario.query, rng)
    streams = [s for s in query.sources if isinstance(s, Stream)]
    clocks = oracle.event_clocks(scenario.arrow_batches, streams)
    wanted = oracle.fresh_by_batch(query, scenario.arrow_batches, scenario.arrow_tables, clocks)
    disk = MemoryFilesystem()
    run = losing(query, scenario, disk, slots=slots, salts=seed)
    sheds, is_whole = rng.random() < 0.3, True
    for batch, rows in enumerate(scenario.arrow_batches):
        limits = random_limits(query, rng, slots)
        limit(run, limits)
        run.driver.limiting.shed = shed = random_shares([s.name for s in streams], rng) if sheds else {}
        is_whole = is_whole and not shed
        done = run.step(batch, scenario.feed(batch))
        run.verify()
        found = oracle.bag(done.results)
        if is_exact(limits) and is_whole:
            assert not (wrong := oracle.difference(found, wanted[batch])), wrong
        else:
            assert not found - wanted[batch], "among the fresh ones"
        check_counts(query, done.statistics, done.results.num_rows, limits, is_whole)
        assert done.statistics.results == done.results.num_rows
        again = run.step(batch, shuffled(rows, rng))
        assert oracle.bag(again.results) == found, "in any order"
        fate = rng.integers(4)
        if fate == 0:
            run = losing(query, scenario, disk, int(rng.integers(3)), slots, salts=seed + batch + 1)
        elif fate == 1 and len(query.inputs) > 1:
            run.migrate(scenario.plans[int(rng.integers(len(scenario.plans)))], MOVES[int(rng.integers(2))])


def check_counts(query: Query, statistics: Statistics, results: int, limits: dict[str, Limit], is_whole: bool) -> None:
    """What is counted of directions adds up; `is_whole`: no row was shed."""
    limited = statistics.limited
    if len(query.inputs) == 1:
        return
    assert sum(each.results for each in limited.values()) == results
    for alias, each in limited.items():
        assert each.probed <= each.rows
        assert each.probed or not each.results, "nobody finds who does not look"
        if alias not in limits or is_exact({alias: limits[alias]}):
            assert each.probed == each.rows
            assert not is_whole or (each.estimated, each.variance) == (each.results, 0)
        else:
            assert each.estimated >= each.results


test_losing, test_losing_long = properties(
    check_losing, 60, 1_000, scenario=scenarios(batches=(3, 4, 6), inputs=(2, 3, 4, 5)), seed=SEEDS,
    slots=st.sampled_from([1, 1, 3]),
)  # fmt: skip
test_losing_tight, test_losing_tight_long = properties(
    check_losing, 15, 400, scenario=scenarios(tight=True, batches=(6, 9), inputs=(3, 2)), seed=SEEDS,
    slots=st.sampled_from([1, 2]),
)  # fmt: skip


def check_monotone(seed: int, inputs: int, plan: int, slots: int, sheds: bool) -> None:
    """Who may look up more rows, or keeps more, loses none of the results that others have, by the same salts and plan;
    however that was before, whatever plans they have gone over to, and whoever of them starts anew. Shares of what is kept
    change how many rows an allowance in rows is a share of: those who shed have shares alone."""
    scenario, rng = busy(seed, inputs, 6), np.random.default_rng(seed)
    query = with_freshness(scenario.query, rng)
    disks = [MemoryFilesystem() for _ in range(2)]
    runs = [losing(query, scenario, disk, plan, slots, salts=seed) for disk in disks]
    for batch in range(len(scenario.batches)):
        limits = random_limits(query, rng, slots)
        limits = {alias: each for alias, each in limits.items() if not sheds or each.share is not None}
        shed = random_shares([s.name for s in query.sources], rng) if sheds else {}
        more_kept = {name: min(1.0, share + float(rng.choice([0, 0.2]))) for name, share in shed.items()}
        for run, its, kept in zip(runs, (limits, larger(limits, rng)), (shed, more_kept), strict=True):
            limit(run, its)
            run.driver.limiting.shed = {name: share for name, share in kept.items() if share < 1}
        is_same = runs[0].plan == runs[1].plan  # views of who has shed more may be whole sooner
        less, more = (oracle.bag(run.step(batch, scenario.feed(batch)).results) for run in runs)
        assert not is_same or not less - more
        fate, is_steady = int(rng.integers(5)), all(run.execution.migration is None for run in runs)
        if fate < 2 and is_steady:
            runs[fate] = losing(query, scenario, disks[fate], plan, slots, salts=seed + batch + 1)
        elif fate == 2:
            plan, strategy = int(rng.integers(len(scenario.plans))), MOVES[int(rng.integers(2))]
            for run in runs:
                run.migrate(scenario.plans[plan], strategy)


test_monotone, test_monotone_long = properties(
    check_monotone, 25, 400, seed=SEEDS, inputs=st.sampled_from([2, 3, 4]), plan=st.integers(0, 3),
    slots=st.sampled_from([1, 1, 3]), sheds=st.sampled_from([False, False, True]),
)  # fmt: skip


# Nothing limited


@pytest.mark.parametrize("share", [None, 1.0])
def test_nothing_limited_takes_no_pass_over_rows(share: float | None) -> None:
    """No row is hashed, and nothing chosen, where every row looks up; and nobody who may lose nothing is counted."""
    scenario = busy(3, 3, 6)
    ours = {"anabranch.engine.log.hash_rows", "anabranch.engine.limits.chosen", "anabranch.engine.limits.add_up"}
    with pytest.MonkeyPatch.context() as patch:
        for name in ours:
            patch.setattr(name, mock.Mock(side_effect=AssertionError(name)))
        run = losing(scenario.query, scenario, MemoryFilesystem())
        limit(run, {} if share is None else {alias: Limit(share=share) for alias in scenario.query.aliases})
        found: oracle.Bag = Counter()
        for batch in range(6):
            found += oracle.bag(run.step(batch, scenario.feed(batch)).results)
        exact = LocalRun(scenario.query, MemoryFilesystem(), scenario.plans[0])
        with pytest.MonkeyPatch.context() as nothing:
            nothing.setattr("anabranch.engine.box.Direction", mock.Mock(side_effect=AssertionError("counted")))
            nothing.setattr("anabranch.engine.box.fresh", mock.Mock(side_effect=AssertionError("asked for its times")))
            assert all(not exact.step(batch, scenario.feed(batch)).statistics.limited for batch in range(6))
    assert found == oracle.expected(scenario.query, scenario.arrow_batches, {})


def test_sorted_rows_are_not_sorted_again() -> None:
    """Rows that an index has in order are filtered in that order."""
    scenario = two_streams()
    run = losing(scenario.query, scenario, MemoryFilesystem())
    run.step(0, scenario.feed(0))
    limit(run, {"a": Limit(share=0.5), "b": Limit(share=0.5)})
    with mock.patch("anabranch.engine.lookup.sort_by_hash", side_effect=AssertionError("sorted")):
        done = run.step(1, scenario.feed(1))
    assert 0 < done.statistics.limited["a"].probed < done.statistics.limited["a"].rows
    steps = {step.route: step.probes for step in done.statistics.steps}
    assert steps == {alias: each.probed for alias, each in done.statistics.limited.items()}


# What is told of what is lost

STREAMS = "".join(f"CREATE STREAM {s} (k BIGINT, j BIGINT, x BIGINT, ts TIMESTAMP) TIME ts LATENESS 1 HOUR;" for s in "abc")


def query_of(sql: str) -> Query:
    return parse_script(f"{STREAMS} CREATE QUERY q AS {sql}").queries[0].query


def two_streams() -> Scenario:
    rng = np.random.default_rng(1)
    cut = tuple({s: [(int(k), 0, n, 0) for n, k in enumerate(rng.integers(0, 20, 200))] for s in "ab"} for _ in range(3))
    script = f"{STREAMS} CREATE QUERY q AS SELECT a.x, b.x AS y FROM a, b WHERE a.k = b.k WINDOW 9 SECONDS"
    return Scenario(script, ("(a b)",), cut)


def table(rows: list[tuple[int, int, int, int]]) -> pa.Table:
    k, j, x, ts = zip(*rows, strict=True)
    return pa.table({"k": k, "j": j, "x": x, "ts": pa.array(ts, pa.int64()).cast(pa.timestamp("us"))})


def check_estimates(told: list[Limited], true: int) -> None:
    """The mean of estimates is the true number, within three standard errors; and these are about what estimates show."""
    estimates = np.array([each.estimated for each in told])
    errors = np.sqrt([each.variance for each in told])
    shown = estimates.std(ddof=1)
    assert abs(estimates.mean() - true) < 3 * shown / np.sqrt(len(told))
    assert 0.75 < np.sqrt(np.mean(errors**2)) / shown < 1.33


BATCHES = 150


@pytest.mark.parametrize("share", [0.1, 0.4])
def test_a_few_rows_that_find_most(share: float) -> None:
    """Keys have from one to hundreds of partners. Each batch brings the same rows of a, and has another salt."""
    rng = np.random.default_rng(5)
    partners = np.minimum(rng.zipf(1.3, 60), 300)
    b = table([(k, 0, n, 0) for k, count in enumerate(partners.tolist()) for n in range(count)])
    a = table([(k, 0, n, 1) for n, k in enumerate(rng.integers(0, 60, 300).tolist())])
    true = sum(int(partners[k]) for k in a.column("k").to_pylist())
    query = query_of("SELECT a.x FROM a [NOW], b [RANGE 1 DAY] WHERE a.k = b.k")
    run = LocalRun(query, MemoryFilesystem(), limiting=may_lose())
    run.step(0, {"b": b})
    limit(run, {"a": Limit(share=share)})
    told = [run.step(batch, {"a": a}).statistics.limited["a"] for batch in range(1, BATCHES + 1)]
    check_estimates(told, true)
    by_result = np.sqrt([(1 - share) / share**2 * each.results for each in told])
    assert np.mean(np.sqrt([each.variance for each in told])) > 5 * np.mean(by_result), "errors are those of rows"


def test_combined_rows_are_told_as_rows_are() -> None:
    """Rows of a come to the root of a tree combined with rows of c: each combination looks up, or does not. Of c only keys
    are stored, so that rows of one key share their fate."""
    rng = np.random.default_rng(6)
    c = table([(int(k), 0, n, 0) for n, k in enumerate(rng.integers(0, 10, 40))])
    b = table([(0, int(j), n, 0) for n, j in enumerate(np.minimum(rng.zipf(1.5, 200), 12))])
    a = table([(int(k), int(j), n, 1) for n, (k, j) in enumerate(rng.integers(0, 10, (100, 2)).tolist())])
    query = query_of("SELECT a.x FROM a [NOW], b [RANGE 1 DAY], c [RANGE 1 DAY] WHERE a.k = c.k AND a.j = b.j")
    exact = LocalRun(query, MemoryFilesystem(), "((a c) b)")
    exact.step(0, {"b": b, "c": c})
    true = exact.step(1, {"a": a}).results.num_rows
    run = LocalRun(query, MemoryFilesystem(), "((a c) b)", limiting=may_lose())
    run.step(0, {"b": b, "c": c})
    limit(run, {"a": Limit(share=0.3)})
    told = [run.step(batch, {"a": a}).statistics.limited["a"] for batch in range(1, BATCHES + 1)]
    assert told[0].rows > 300, "combinations"
    check_estimates(told, true)


def test_shares_of_rows_that_were_shed_count() -> None:
    """Each batch brings the same rows, far later; some are shed, and of what is left only some look up."""
    rng = np.random.default_rng(7)
    keys = {s: rng.integers(0, 12, 120).tolist() for s in "ab"}
    true = sum(Counter(keys["a"])[k] for k in keys["b"])
    run = LocalRun(query_of("SELECT a.x FROM a, b WHERE a.k = b.k WINDOW 1 SECOND"), MemoryFilesystem(), limiting=may_lose())
    run.driver.limiting.shed = {"a": 0.5, "b": 0.7}
    limit(run, {"b": Limit(share=0.6)})
    estimates, rows = [], []
    for batch in range(BATCHES):
        cut = {s: table([(k, 0, n, batch * 10_000_000) for n, k in enumerate(keys[s])]) for s in "ab"}
        done = run.step(batch, cut).statistics
        estimates.append(sum(each.estimated for each in done.limited.values()))
        assert {done.sources[s].rows for s in "ab"} == {120}
        rows.append([done.sources[s].shed_rows for s in "ab"])
        assert run.commit is not None
        assert run.commit.largest_time_us == dict.fromkeys("ab", batch * 10000000)
    assert abs(np.mean(estimates) - true) < 3 * np.std(estimates, ddof=1) / np.sqrt(BATCHES)
    assert np.allclose(np.mean(rows, axis=0), [60, 36], rtol=0.1)


def test_rows_in_several_slots_look_up_in_each_by_itself() -> None:
    """Rows of a go to two of four slots, and find partners in both."""
    rng = np.random.default_rng(3)
    b = table([(int(k), int(j), n, 0) for n, (k, j) in enumerate(rng.integers(0, 12, (150, 2)).tolist())])
    c = table([(0, int(j), n, 0) for n, j in enumerate(rng.integers(0, 12, 60))])
    a = table([(int(k), 0, n, 1) for n, k in enumerate(rng.integers(0, 12, 80))])
    query = query_of("SELECT a.x, c.x AS z FROM a [NOW], b [RANGE 1 DAY], c [RANGE 1 DAY] WHERE a.k = b.k AND b.j = c.j")
    exact, run = (LocalRun(query, MemoryFilesystem(), "(a b c)", slots=4, limiting=each) for each in (None, may_lose()))
    for each in (exact, run):
        each.step(0, {"b": b, "c": c})
    true = exact.step(1, {"a": a}).results.num_rows
    limit(run, {"a": Limit(share=0.4)})
    told = [run.step(batch, {"a": a}).statistics.limited["a"] for batch in range(1, BATCHES + 1)]
    assert told[0].rows == 2 * a.num_rows
    check_estimates(told, true)


SALTS, MORE_SALTS = 24, 600
"""By how many salts a case is estimated; by more of them, if the first were not within three standard errors: of true
means one in some hundred is not, by chance, and no wrong one is there again."""


def check_means(seed: int, inputs: int, slots: int, sheds: bool, between: str) -> None:
    """Two batches run on by many salts, from what the two before them have left: under shares, under allowances in rows,
    with rows shed. On the mean they tell what there would be if nothing were lost, whatever happens between the two."""
    scenario, rng = fanned(seed, inputs), np.random.default_rng(seed)
    query = with_freshness(scenario.query, rng)
    plans = [int(n) for n in rng.integers(3, size=2)]
    move, disk = MOVES[int(rng.integers(2))], MemoryFilesystem()
    before = losing(query, scenario, disk, plans[0], slots)
    for batch in range(2):
        before.step(batch, scenario.feed(batch))
    limits = [some_of_each(query, rng, slots) for _ in range(2)]
    shed = random_shares([s.name for s in query.sources], rng) if sheds else {}

    def ends(salts: int, is_exact: bool) -> tuple[int, float]:
        """How many results the two batches give, and are told to stand for."""
        own, found, told = disk.copied(), 0, 0.0
        run = losing(query, scenario, own, plans[0], slots, salts=salts)
        for batch, its in zip((2, 3), limits, strict=True):
            limit(run, {} if is_exact else its)
            run.driver.limiting.shed = {} if is_exact else shed
            done = run.step(batch, scenario.feed(batch)).statistics
            found, told = found + done.results, told + in_all(done).estimated
            if between == "restart":
                run = losing(query, scenario, own, plans[1], slots, salts=salts + 1)
            elif between == "move":
                run.migrate(scenario.plans[plans[1]], move)
        return found, told

    true = ends(0, is_exact=True)[0]
    for salts in (SALTS, MORE_SALTS):
        found, told = np.array([ends(seed % 2**20 + 2 * n, is_exact=False) for n in range(salts)]).T
        assert (found <= true).all()
        if abs(told.mean() - true) <= 3 * told.std(ddof=1) / np.sqrt(salts):
            return
    raise AssertionError(f"{told.mean():.1f} are told on the mean of {salts} salts, {true} there are")


def some_of_each(query: Query, rng: np.random.Generator, slots: int) -> dict[str, Limit]:
    """Shares and allowances under which some row of every input may look up."""
    found = {}
    for alias in query.aliases:
        if (kind := rng.random()) < 0.4:
            found[alias] = Limit(share=float(rng.choice([0.2, 0.5, 0.8])))
        elif kind < 0.8:
            found[alias] = Limit(rows={slot: int(rng.integers(3, 12)) for slot in range(slots) if rng.random() < 0.8})
    return found


test_means, test_means_long = properties(
    check_means, 6, 120, seed=SEEDS, inputs=st.sampled_from([2, 3, 4]), slots=st.sampled_from([1, 1, 2]),
    sheds=st.sampled_from([False, False, True]), between=st.sampled_from(["", "move", "restart"]),
)  # fmt: skip


def in_all(statistics: Statistics) -> Limited:
    """What is told of all directions together."""
    found = Limited()
    for each in statistics.limited.values():
        found.estimated += each.estimated
        found.variance += each.variance
        found.covariance += each.covariance
    return found


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("kept", "share", "select"),
    [({"b": 0.3}, 1.0, "a.x, b.x AS y"), ({"b": 0.5}, 0.4, "a.x, b.x AS y"), ({"a": 0.4, "b": 0.6}, 0.5, "a.x, b.x AS y"),
     ({"b": 0.5}, 1.0, "a.k")],
)  # fmt: skip
def test_a_few_shed_rows_that_are_found_by_most(kept: dict[str, float], share: float, select: str) -> None:
    """Rows of b are found by from one to hundreds of rows of a. Each batch brings the same rows, far later, and sheds and
    limits others of them. If only keys are read, rows of one key share their fate."""
    rng = np.random.default_rng(11)
    keys = {"a": np.minimum(rng.zipf(1.4, 300), 60).tolist(), "b": [*range(1, 61)] * 3}
    true = sum(Counter(keys["b"])[k] for k in keys["a"])
    query = query_of(f"SELECT {select} FROM a, b WHERE a.k = b.k WINDOW 1 SECOND")
    run = LocalRun(query, MemoryFilesystem(), limiting=may_lose())
    run.driver.limiting.shed = kept
    limit(run, {"a": Limit(share=share)})
    told = []
    for batch in range(BATCHES):
        cut = {s: table([(k, 0, n, batch * 10_000_000) for n, k in enumerate(keys[s])]) for s in "ba"}
        told.append(in_all(run.step(batch, cut).statistics))
    check_estimates(told, true)
    assert not any(each.covariance for each in told), "batches have no rows in common"


def test_shed_rows_that_would_be_in_several_slots() -> None:
    """Rows of a are in two of four slots, and are found in both by rows of c: from few to hundreds."""
    rng = np.random.default_rng(13)
    b = [(int(k), int(j), n) for n, (k, j) in enumerate(zip(np.minimum(rng.zipf(1.6, 120), 30), range(120), strict=True))]
    a, c = [*range(1, 31)], [*range(120)]
    query = query_of("SELECT a.x, c.x AS z FROM a, b, c WHERE a.k = b.k AND b.j = c.j WINDOW 1 SECOND")
    run, told = LocalRun(query, MemoryFilesystem(), "(a b c)", slots=4, limiting=may_lose()), []
    run.driver.limiting.shed = {"a": 0.5}
    for batch in range(BATCHES // 3):
        at_us = batch * 10_000_000
        rows = {"a": table([(k, 0, k, at_us) for k in a]), "b": table([(k, j, n, at_us) for k, j, n in b])}
        told.append(in_all(run.step(batch, {**rows, "c": table([(0, j, j, at_us) for j in c])}).statistics))
    check_estimates(told, len(b))


def test_rows_that_were_shed_are_missing_in_later_batches_too() -> None:
    """Rows of b are found in four batches, and then over. The sum of the four varies by more than each by itself."""
    rng = np.random.default_rng(12)
    b, a = [*range(30)], np.minimum(rng.zipf(1.5, 100), 30) - 1
    query = query_of("SELECT a.x, b.x AS y FROM a [NOW], b [RANGE 10 SECONDS] WHERE a.k = b.k")
    run, batches = LocalRun(query, MemoryFilesystem(), limiting=may_lose()), iter(range(10_000))
    sums, alone = [], []
    for trial in range(80):
        begin_us, parts = trial * 100_000_000, []
        run.driver.limiting.shed = {"b": 0.5}
        run.step(next(batches), {"b": table([(k, 0, n, begin_us) for n, k in enumerate(b)])})
        run.driver.limiting.shed = {}
        for later in range(1, 5):
            rows = table([(int(k), 0, n, begin_us + later) for n, k in enumerate(a)])
            parts.append(in_all(run.step(next(batches), {"a": rows}).statistics))
        assert parts[0].covariance == 0
        estimated, variance = sum(p.estimated for p in parts), sum(p.variance for p in parts)
        sums.append(Limited(estimated=estimated, variance=variance + sum(p.covariance for p in parts)))
        alone.append(variance)
    check_estimates(sums, 4 * len(a))
    assert np.mean([each.variance for each in sums]) > 3 * np.mean(alone)
    assert run.slot is not None
    (box,) = run.slot.boxes.values()
    assert len(box.fates._logs["b"]._brought) < 50, "rows that are over are forgotten"


def test_results_that_have_no_row_in_common_vary_by_themselves() -> None:
    """Each result has a row of a and one of b, half of which were kept, and a quarter of those of a look up."""
    run = LocalRun(query_of("SELECT a.x FROM a, b WHERE a.k = b.k WINDOW 1 DAY"), MemoryFilesystem(), limiting=may_lose(2))
    run.driver.limiting.shed = {"a": 0.5, "b": 0.5}
    run.step(0, {"b": table([(n, 0, n, 0) for n in range(600)])})
    limit(run, {"a": Limit(share=1 / 4)})
    done = run.step(1, {"a": table([(n, 0, n, 0) for n in range(600)])}).statistics
    told = in_all(done)
    assert done.results > 20
    assert told.estimated == 16 * done.results
    assert told.variance == pytest.approx(done.results * (1 - 1 / 16) * 16**2)


def test_a_row_that_meets_itself_was_kept_once() -> None:
    query = query_of("SELECT a.x FROM a, a AS b WHERE a.k = b.k WINDOW 1 DAY")
    run = LocalRun(query, MemoryFilesystem(), limiting=may_lose())
    run.driver.limiting.shed = {"a": 0.25}
    done = run.step(0, {"a": table([(n, 0, n, 0) for n in range(400)])}).statistics
    told = in_all(done)
    assert told.estimated == 4 * done.results
    assert told.variance == pytest.approx(done.results * 0.75 * 16)


def test_equal_rows_of_a_self_join_were_kept_together() -> None:
    """Each row comes twice: a key has four results, or none. In two batches, both with salts of their own, it has two times
    four of one batch each, and two times four of both."""
    query, estimated = query_of("SELECT a.k FROM a, a AS b WHERE a.k = b.k WINDOW 1 DAY"), []
    for salt in range(30):
        run = LocalRun(query, MemoryFilesystem(), limiting=may_lose(2 * salt))
        run.driver.limiting.shed = {"a": 0.5}
        rows = table([(n // 2, 0, n, 0) for n in range(200)])
        done = [run.step(batch, {"a": rows}).statistics for batch in range(2)]
        estimated.append(told := [in_all(each) for each in done])
        assert told[0].estimated == 2 * done[0].results > 0
        assert told[0].variance == pytest.approx(done[0].results / 4 * 0.5 * 8**2)
    check_estimates([first for first, _ in estimated], 400)
    check_estimates([second for _, second in estimated], 1_200)


def test_rows_that_differ_in_what_only_a_predicate_reads_have_fates_of_their_own() -> None:
    """They are equal by what is stored, and shed one by one; what is told of their error is too much."""
    query = query_of("SELECT a.k FROM a, a AS b WHERE a.k = b.k AND a.j < 9 AND b.j < 9 WINDOW 1 DAY")
    told = []
    for salt in range(30):
        run = LocalRun(query, MemoryFilesystem(), limiting=may_lose(salt))
        run.driver.limiting.shed = {"a": 0.5}
        told.append(in_all(run.step(0, {"a": table([(n // 2, n % 2, n, 0) for n in range(200)])}).statistics))
    shown, error = np.std([each.estimated for each in told], ddof=1), np.sqrt(np.mean([each.variance for each in told]))
    assert abs(np.mean([each.estimated for each in told]) - 400) < 3 * shown / np.sqrt(len(told))
    assert shown < error < 2 * shown


def test_a_result_with_two_rows_that_might_have_been_shed_is_no_more_uncertain_than_itself() -> None:
    """Each has a row of a and one of b for itself: it stands for four, and is one of four that might be there."""
    run = LocalRun(query_of("SELECT a.x FROM a, b WHERE a.k = b.k WINDOW 1 DAY"), MemoryFilesystem(), limiting=may_lose())
    run.driver.limiting.shed = {"a": 0.5, "b": 0.5}
    rows = table([(n, 0, n, 0) for n in range(400)])
    done = run.step(0, {"a": rows, "b": rows}).statistics
    told = in_all(done)
    assert done.results > 50
    assert told.estimated == 4 * done.results
    assert told.variance == pytest.approx(done.results * 0.75 * 16)


def test_rows_that_are_equal_are_shed_together() -> None:
    """Of b only the key is read, and each comes twice: what both bring, four for each key, is there or not."""
    run = LocalRun(query_of("SELECT a.x FROM a, b WHERE a.k = b.k WINDOW 1 DAY"), MemoryFilesystem(), limiting=may_lose())
    run.driver.limiting.shed = {"b": 0.5}
    cut = {"a": table([(k, 0, k, 0) for k in range(200)]), "b": table([(n // 2, 0, n, 0) for n in range(400)])}
    done = run.step(0, cut).statistics
    told = in_all(done)
    assert done.results > 50
    assert told.estimated == 2 * done.results
    assert told.variance == pytest.approx(done.results / 2 * 0.5 * 16)


def test_rows_that_look_up_a_range_are_told_as_others_are() -> None:
    """Of these, only those that look up are sorted."""
    rng = np.random.default_rng(8)
    b = table([(0, int(j), n, 0) for n, j in enumerate(np.minimum(rng.zipf(1.4, 300), 40))])
    a = table([(0, int(j), n, 1) for n, j in enumerate(rng.integers(0, 40, 200).tolist())])
    query = query_of("SELECT a.x FROM a [NOW], b [RANGE 1 DAY] WHERE b.j BETWEEN a.j - 1 AND a.j + 1")
    true = sum(abs(i - j) <= 1 for i in a.column("j").to_pylist() for j in b.column("j").to_pylist())
    run = LocalRun(query, MemoryFilesystem(), limiting=may_lose())
    run.step(0, {"b": b})
    limit(run, {"a": Limit(share=0.3)})
    check_estimates([run.step(n, {"a": a}).statistics.limited["a"] for n in range(1, BATCHES + 1)], true)


def test_inputs_over_one_stream_choose_rows_of_their_own() -> None:
    """Rows of b find older rows, as those of a do; by another salt."""
    query = query_of("SELECT a.x FROM a, a AS b WHERE a.k = b.k WINDOW 1 DAY")
    run = LocalRun(query, MemoryFilesystem(), limiting=may_lose())
    rows = table([(n, 0, n, 0) for n in range(400)])
    run.step(0, {"a": rows})
    found = []
    for batch, limits in ((1, {"a": 0.5, "b": 0.0}), (2, {"a": 0.0, "b": 0.5})):
        limit(run, {alias: Limit(share=share) for alias, share in limits.items()})
        run.driver.limiting.draw_salt = lambda: 9
        found.append(set(run.step(batch, {"a": rows}).results.column("x").to_pylist()))
    assert 150 < len(found[0]) < 250
    assert 60 < len(found[0] & found[1]) < 140


def test_who_looks_up_does_not_depend_on_the_order_of_rows() -> None:
    """Rows of a look up b in the order in which they were sorted for their own index."""
    query, found = query_of("SELECT a.x FROM a, b WHERE a.k = b.k WINDOW 1 DAY"), []
    rows = [(n * 7919 % 400, 0, n, 0) for n in range(400)]
    for given in (rows, rows[::-1]):
        run = LocalRun(query, MemoryFilesystem(), limiting=may_lose())
        run.step(0, {"b": table(rows)})
        limit(run, {"a": Limit(share=0.5)})
        run.driver.limiting.draw_salt = lambda: 9
        found.append(sorted(run.step(1, {"a": table(given)}).results.column("x").to_pylist()))
    assert found[0] == found[1]
    assert 150 < len(found[0]) < 250


def test_a_row_as_old_as_the_user_wants_is_not_too_old() -> None:
    box: Any = SimpleNamespace(log_of=lambda alias: SimpleNamespace(times=lambda ids: ids))
    ids = np.array([9, 10, 11])
    rows = fresh(box, Combination({"a": ids}, ids, ids + 1), [Oldest("a", 10, FOREVER_US)])
    assert rows.ids["a"].tolist() == [10, 11]


def test_rows_are_asked_for_their_times_where_one_may_be_too_old() -> None:
    """The clock is 100, and a row of before 88 too old. What ends at 98 or later has no such row, in a window of 10."""
    one = SimpleNamespace(alias="a", freshness_us=12, window=SimpleNamespace(length_us=10), source=SimpleNamespace(name="s"))
    query: Any = SimpleNamespace(inputs=[one])
    assert [bool(oldest_times(query, 100, watermark_us)) for watermark_us in (95, 96, 97, 98)] == [True, True, False, False]
    readers: Any = [SimpleNamespace(query=name, graph=SimpleNamespace(query=query)) for name in "pq"]
    assert useful_from_us("s", readers, {"p": 100, "q": 70}) == 58, "who is behind has use for older rows"


def test_rows_that_are_shed_move_the_watermark() -> None:
    run = LocalRun(query_of("SELECT a.x FROM a, b WHERE a.k = b.k WINDOW 1 SECOND"), MemoryFilesystem(), limiting=may_lose())
    run.driver.limiting.shed = {"a": 0.0, "b": 0.0}
    done = run.step(0, {"a": table([(0, 0, 0, 70)]), "b": table([(0, 0, 0, 50)])})
    assert {name: each.shed_rows for name, each in done.statistics.sources.items()} == {"a": 1, "b": 1}
    assert run.commit is not None
    assert run.commit.largest_time_us == {"a": 70, "b": 50}
    assert run.step(1, {}).watermark_us == 50 - 3_600_000_000


def test_the_share_of_a_batch_is_kept_with_its_rows() -> None:
    """Rows of a were shed by half in the first batch. What rows of b find of these counts twice, later and elsewhere."""
    disk, query = MemoryFilesystem(), query_of("SELECT a.x FROM a [RANGE 1 DAY], b [NOW] WHERE a.k = b.k")
    run = LocalRun(query, disk, limiting=may_lose(3))
    run.driver.limiting.shed = {"a": 0.5}
    run.step(0, {"a": table([(0, 0, n, 0) for n in range(100)])})
    run.driver.limiting.shed = {}
    b = table([(0, 0, 0, 1)])
    for batch in (1, 2):
        told = run.step(batch, {"b": b}).statistics.limited["b"]
        assert 30 < told.results < 70
        assert told.estimated == 2 * told.results
        run = LocalRun(query, disk, limiting=may_lose(3))


# What goes with limits, and what does not


def test_slots_have_limits_of_their_own() -> None:
    scenario = two_streams()
    run = losing(scenario.query, scenario, MemoryFilesystem(), slots=2)
    run.step(0, scenario.feed(0))
    limit(run, {"a": Limit(rows={1: 0})})
    run.step(1, scenario.feed(1))
    assert run.commit is not None
    told = [run.commit.slots[str(slot)].limited["q"]["a"] for slot in range(2)]
    assert told[0].probed == told[0].rows > 0 == told[1].probed < told[1].rows


def test_limits_begin_when_a_parallel_track_has_ended() -> None:
    scenario, disk = busy(3, 3, 16), MemoryFilesystem()
    exact = LocalRun(scenario.query, disk, scenario.plans[0], scenario.tables)
    exact.step(0, scenario.feed(0))
    exact.migrate("(a b c)" if scenario.plans[0] != "(a b c)" else "((a b) c)", Strategy.PARALLEL_TRACK)
    exact.step(1, scenario.feed(1))
    run = losing(scenario.query, scenario, disk)  # under another policy, with the track under way
    limit(run, {"a": Limit(share=0.0)})
    told: dict[bool, list[Limited]] = {True: [], False: []}
    for batch in range(2, len(scenario.batches)):
        is_parallel = run.driver.queries[run.name].execution.is_parallel
        step = run.step(batch, scenario.feed(batch))
        told[is_parallel].append(step.statistics.limited.get("a", Limited()))
    assert sum(each.probed for each in told[True]) == sum(each.rows for each in told[True]) > 0
    assert sum(each.probed for each in told[False]) == 0 < sum(each.rows for each in told[False])


def pair(freshness_us: int | None = None) -> list[Query]:
    """Two queries with one join."""
    found = [replace(query_of(f"SELECT a.{c} FROM a, b WHERE a.k = b.k WINDOW 9 SECONDS"), name=f"q{c}") for c in "xj"]
    return [replace(q, inputs=tuple(replace(i, freshness_us=freshness_us) for i in q.inputs)) for q in found]


def boxes_of(pipeline: LocalPipeline) -> list[bool]:
    slot = pipeline.slot()
    assert slot is not None
    return [isinstance(box, SharedBox) for box in slot.boxes.values()]


def test_who_may_lose_results_shares_no_routes() -> None:
    """A policy that is changed between two runs changes that, and no result."""
    scenario, disk = two_streams(), MemoryFilesystem()
    wanted = oracle.expected(pair()[0], scenario.arrow_batches, {})
    found: oracle.Bag = Counter()
    for batch, settings in enumerate(({}, {"limiting": may_lose()}, {})):
        pipeline = LocalPipeline(pair(), disk, **settings)  # type: ignore[arg-type]
        found += oracle.bag(pipeline.step(batch, scenario.feed(batch))["qx"].results)
        assert boxes_of(pipeline) == ([False, False] if settings else [True])
    assert found == wanted
    fresh = LocalPipeline(pair(9_000_000), MemoryFilesystem())
    fresh.step(0, scenario.feed(0))
    assert boxes_of(fresh) == [False, False]


# Freshness


def test_rows_too_old_for_every_query_go_no_further() -> None:
    """By the wall clock: rows of a are too old for both queries, which are fresh by 30 and by 60 seconds, before 40 s. Those
    of before 70 s look up nothing for the first, which counts them; it suppresses what newer rows find them in."""
    now = [100.0]
    queries = [*pair(30_000_000)[:1], *pair(60_000_000)[1:]]
    limiting = may_lose(clock=Clock.WALL)
    pipeline = LocalPipeline(queries, MemoryFilesystem(), limiting=limiting, clock=lambda: now[0])
    rows = table([(1, 0, n, n * 10_000_000) for n in range(10)])
    done = pipeline.step(0, {"a": rows, "b": rows})
    for name, stale in (("qx", 7), ("qj", 4)):
        counts = done[name].statistics.sources["a"]
        assert (counts.rows, counts.stale_rows, counts.late_rows, counts.stored_rows) == (10, stale, 0, 6)
        assert counts.largest_time_us == 90_000_000
        probed = {alias: (each.rows, each.probed) for alias, each in done[name].statistics.limited.items()}
        assert probed == dict.fromkeys("ab", (3, 3) if name == "qx" else (6, 6))
    results = {name: sorted(step.results.column(0).to_pylist()) for name, step in done.items()}
    assert (results["qx"], len(results["qj"])) == ([7, 8, 9], 6)
    assert [done[name].statistics.stale_results for name in ("qx", "qj")] == [0, 0]
    assert pipeline.commit is not None
    assert pipeline.commit.largest_time_us == {"a": 90_000_000, "b": 90_000_000}
    newer = table([(1, 0, 10, 75_000_000)])
    done = pipeline.step(1, {"a": newer})
    assert [done[name].statistics.stale_results for name in ("qx", "qj")] == [0, 0]
    now[0] = 104.0
    done = pipeline.step(2, {"b": table([(1, 0, 11, 78_000_000)])})
    assert sorted(done["qx"].results.column(0).to_pylist()) == [8, 10], "of 75 s and 80 s; that of 70 s is too old by now"
    assert [done[name].statistics.stale_results for name in ("qx", "qj")] == [1, 0]


def check_by_wall_clock(seed: int, inputs: int, lag_s: int) -> None:
    """Queries that are so far behind give what is fresh by the driver's clock, each what it is promised of it, and count the
    rest: what is too old for one is not for another."""
    scenario, rng = busy(seed, inputs, 7), np.random.default_rng(seed)
    queries = [replace(with_freshness(scenario.query, rng), name=name) for name in "pq"]
    planned = [(batch + lag_s) * 1_000_000 for batch in range(7)]
    wanted = {q.name: oracle.fresh_by_batch(q, scenario.arrow_batches, {}, planned) for q in queries}
    plans = {name: scenario.plans[int(rng.integers(4))] for name in "pq"}
    limiting = may_lose(clock=Clock.WALL)
    run = LocalPipeline(
        queries, MemoryFilesystem(), plans, limiting=limiting, clock=lambda: planned[run.driver.standing.batch + 1] / 1e6
    )  # fmt: skip
    for batch in range(7):
        for query, done in zip(queries, run.step(batch, scenario.feed(batch)).values(), strict=True):
            assert oracle.bag(done.results) == wanted[query.name][batch]
            assert not done.statistics.stale_results or any(i.freshness_us is not None for i in query.inputs)


test_by_wall_clock, test_by_wall_clock_long = properties(
    check_by_wall_clock, 15, 400, seed=SEEDS, inputs=st.sampled_from([2, 3]), lag_s=st.sampled_from([0, 1, 3, 6])
)


def test_streams_in_order_lose_nothing_by_the_event_clock() -> None:
    """With freshness as long as the window, and rows in order, nothing is asked for its times."""
    query = pair(9_000_000)[0]
    run = LocalRun(query, MemoryFilesystem())
    rng: Any = np.random.default_rng(2)
    cut = [{s: table([(int(k), 0, 0, n * 1_000_000) for k in rng.integers(0, 3, 9)]) for s in "ab"} for n in range(20)]
    found: oracle.Bag = Counter()
    for batch, rows in enumerate(cut):
        done = run.step(batch, rows)
        found += oracle.bag(done.results)
        assert not done.statistics.stale_results
    assert found == oracle.expected(query, cut, {})
