"""What the queries of a pipeline may lose, from batch to batch and from run to run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec
import pyarrow as pa
import pytest

from anabranch.control.completeness import completeness_of
from anabranch.control.journal import Journal
from anabranch.control.loop import Allowing, Load, LoadRemark, Recut, SliceRemark
from anabranch.control.query_texts import QueryTexts
from anabranch.control.records import Limit
from anabranch.drive.coming import Coming, admission
from anabranch.drive.limiting import Limiting
from anabranch.drive.local import LocalPipeline, Steady
from anabranch.drive.steering import Steering
from anabranch.errors import SessionError
from anabranch.plan.actions import SetAllowances
from anabranch.plan.distribution import Distribution
from anabranch.plan.eager import Forms
from anabranch.plan.jtree import left_deep, parse
from anabranch.plan.migration import Execution, Migration, Strategy
from anabranch.plan.overload import Clock, Overload, Policy
from anabranch.plan.query import Query
from anabranch.sql import bind_query, parse_script
from anabranch.storage.filesystem import MemoryFilesystem
from tests.support import oracle
from tests.support.pairs import CATALOG

SCRIPT = """
CREATE STREAM a (k BIGINT, ts TIMESTAMP) TIME ts;
CREATE STREAM b (k BIGINT, ts TIMESTAMP) TIME ts;
CREATE STREAM c (k BIGINT, ts TIMESTAMP) TIME ts;
CREATE QUERY q AS SELECT a.k FROM a, b, c WHERE a.k = b.k AND b.k = c.k WINDOW 5 SECONDS {fresh};
"""
NOW_S = 1_800_000_000.0


class Pinned:
    """Pins shares for queries that it is told of."""

    def __init__(self, queries: Mapping[str, Query]) -> None:
        self.queries = queries

    def at_start(self, limits: Mapping[str, Mapping[str, Limit]], kept: Mapping[str, float]) -> Sequence[Allowing]:
        return [Allowing(SetAllowances(name, {}, {"a": 0.5}), "pinned") for name in self.queries]

    def serve(self, queries: Mapping[str, Query]) -> Sequence[Allowing]:
        new, self.queries = [name for name in queries if name not in self.queries], queries
        return [Allowing(SetAllowances(name, {}, {"a": 0.5}), "pinned") for name in new]

    def after(self, load: Load) -> Sequence[Allowing | LoadRemark]:
        return ()


def query(fresh: str = "FRESHNESS 6 SECONDS") -> Query:
    (found,) = parse_script(SCRIPT.format(fresh=fresh)).queries
    return found.query


def pipeline(disk: MemoryFilesystem, overload: Overload, fresh: str = "FRESHNESS 6 SECONDS") -> LocalPipeline:
    """A pipeline on a checkpoint, whose queries do something under overload."""
    made = LocalPipeline([query(fresh)], disk, clock=lambda: NOW_S)
    limiter = Pinned({"q": query(fresh)}) if overload.policy.may_lose else None
    made.driver.limiting = Limiting(overload, limiter)
    made.driver.limiting.open(made.driver.standing.begun or made.driver.newest, made.driver._tell)
    return made


def rows(us: int) -> dict[str, pa.Table]:
    made = pa.table({"k": [1], "ts": pa.array([us], pa.timestamp("us"))})
    return {"a": made, "b": made, "c": made}


def test_event_times_of_another_age_fail_the_first_batch_and_leave_it_to_the_event_clock() -> None:
    """By the wall clock nothing would ever be fresh. The batch has no commit; begun again by event times, it is as it would
    have been."""
    disk = MemoryFilesystem()
    first = pipeline(disk, Overload(clock=Clock.WALL))
    with pytest.raises(SessionError, match="the rows of a are of 1970-01-01 00:00:01 UTC at most, and the clock says 2027"):
        first.step(0, rows(1_000_000))
    assert first.commits.latest() is None
    again = pipeline(disk, Overload(clock=Clock.EVENT))
    again.step(0, rows(1_000_000))
    found = again.commits.read(0).queries["q"]
    assert found.clock_us < 0, "no stream has shown a time before"
    again.step(1, rows(2_000_000))
    assert again.commits.read(1).queries["q"].clock_us == 1_000_000


def test_a_checkpoint_of_another_age_is_refused_by_the_wall_clock_and_goes_on_by_event_times() -> None:
    """It began by event times. Nothing of the batch that is refused is kept, and the next run gives what it would have."""
    disk = MemoryFilesystem()
    pipeline(disk, Overload(clock=Clock.EVENT)).step(0, rows(1_000_000))
    wall = pipeline(disk, Overload(clock=Clock.WALL))
    with pytest.raises(SessionError, match="the rows of a are of 1970-01-01 00:00:02 UTC at most, and the clock says 2027"):
        wall.step(1, rows(2_000_000))
    again = pipeline(disk, Overload(clock=Clock.EVENT))
    assert again.step(1, rows(2_000_000))["q"].results.num_rows == 7
    assert again.commits.read(1).queries["q"].clock_us == 1_000_000


def test_a_run_by_the_wall_clock_leaves_the_event_clock_where_event_times_are() -> None:
    """A batch by the wall clock that brings no rows is not refused: there is nothing of which it could be told."""
    disk, none = MemoryFilesystem(), {name: table.slice(0, 0) for name, table in rows(0).items()}
    pipeline(disk, Overload(clock=Clock.EVENT)).step(0, rows(1_000_000))
    wall = pipeline(disk, Overload(clock=Clock.WALL))
    wall.step(1, none)
    assert wall.commits.read(1).queries["q"].clock_us == int(NOW_S * 1e6)
    again = pipeline(disk, Overload(clock=Clock.EVENT))
    assert again.step(2, rows(2_000_000))["q"].results.num_rows == 7
    assert again.commits.read(2).queries["q"].clock_us == 1_000_000


def test_a_batch_begun_by_event_times_goes_on_by_the_wall_clock_of_when_it_was_planned() -> None:
    disk = MemoryFilesystem()
    pipeline(disk, Overload(clock=Clock.EVENT)).driver.begin(0)
    again = pipeline(disk, Overload(clock=Clock.WALL)).driver
    again.clock = lambda: NOW_S + 77
    assert again.begin(0).queries["q"].clock_us == int(NOW_S * 1e6)


def test_rows_that_are_all_too_old_are_told_once_for_as_long_as_it_lasts() -> None:
    """Thirty days are not years: it is no mistake of units. Nothing is given, and that is told."""
    made, begin_us, day_us = pipeline(MemoryFilesystem(), Overload(clock=Clock.WALL)), int(NOW_S * 1e6), 86_400_000_000
    # Days of the driver's clock, and of the rows.
    days = [(30, 0), (30, 0), (30, 30), (31, 31), (31, 31), (32, 31), (395, 31), (395, 395)]
    for batch, (clock, came) in enumerate(days):
        made.driver.clock = lambda clock=clock: NOW_S + clock * 86_400  # type: ignore[misc]
        made.step(batch, rows(begin_us + came * day_us + batch))
    told = [(entry.batch, entry.text) for entry in made.driver.queries["q"].journal.entries() if entry.event == "too old"]
    assert [batch for batch, _ in told] == [0, 5]
    assert told[0][1].startswith("all rows of a and b and c of batch 0 are too old by the clock, 2027-02-14 08:00:00 UTC: ")


def test_near_times_are_taken_by_the_wall_clock() -> None:
    made = pipeline(MemoryFilesystem(), Overload(clock=Clock.WALL))
    made.step(0, rows(int(NOW_S * 1e6) - 30_000_000))
    assert made.commits.read(0).queries["q"].clock_us == int(NOW_S * 1e6)


def test_a_batch_that_was_begun_with_limits_runs_again_under_the_policy_of_now() -> None:
    disk = MemoryFilesystem()
    first = pipeline(disk, Overload(Policy.ADAPT_JOINS), "")
    begun = first.driver.begin(0)
    assert (begun.may_lose, begun.queries["q"].limits) == (True, {"a": Limit(share=0.5)})
    second = pipeline(disk, Overload(Policy.ADAPT_JOINS, may_shed=True), "").driver
    second.limiting.limits, second.limiting.shed = {"q": {"a": Limit(share=0.9)}}, {"a": 0.9}
    again = second.begin(0)
    assert not again.shed, "what has been decided since holds from the next batch on"
    assert (again.may_lose, again.queries["q"].limits, again.salt) == (True, {"a": Limit(share=0.5)}, begun.salt)
    exact = pipeline(disk, Overload(), "").driver.begin(0)
    assert (exact.may_lose, exact.queries["q"].limits) == (False, {})


@pytest.mark.parametrize("overload", [Overload(Policy.SHED), Overload(Policy.ADAPT_JOINS, may_shed=True)])
def test_a_batch_that_was_begun_and_sheds_runs_again_under_the_policy_of_now(overload: Overload) -> None:
    disk = MemoryFilesystem()
    first = pipeline(disk, overload, "")
    first.driver.limiting.shed = {"a": 0.5}
    begun = first.driver.begin(0)
    assert begun.shed == {"a": 0.5}
    assert pipeline(disk, Overload(Policy.ADAPT_JOINS, may_shed=True), "").driver.begin(0).shed == {"a": 0.5}
    again = pipeline(disk, Overload(Policy.SHED), "").driver.begin(0)
    assert (again.shed, again.queries["q"].limits, again.salt) == ({"a": 0.5}, {}, begun.salt)
    assert pipeline(disk, Overload(Policy.ADAPT_JOINS), "").driver.begin(0).shed == {}


def test_a_parallel_track_ends_before_anything_is_limited() -> None:
    made = pipeline(MemoryFilesystem(), Overload(Policy.ADAPT_JOINS), "")
    (steering,) = made.driver.queries.values()
    target = parse("(a (b c))", steering.graph)
    steering.execution = replace(steering.execution, migration=Migration(target, Strategy.PARALLEL_TRACK, 0))
    assert made.driver._limits(steering) == {}
    steering.execution = replace(steering.execution, migration=Migration(target, Strategy.GRADUAL, 0))
    assert made.driver._limits(steering) == {"a": Limit(share=0.5)}


class FromTo(Pinned):
    """Limits lookups of a from batch 2 on, and lifts that after batch 4."""

    cores: Mapping[str, float] = {}

    def at_start(self, limits: Mapping[str, Mapping[str, Limit]], kept: Mapping[str, float]) -> Sequence[Allowing]:
        return ()

    def after(self, load: Load) -> Sequence[Allowing | LoadRemark]:
        said = {1: ("too many", {"a": 0.5}), 4: ("few enough", {})}
        text, shares = said.get(load.commit.batch, ("", {}))
        return [Allowing(SetAllowances("q", {}, shares), text)] if text else ()


def test_the_journal_tells_what_was_measured_since_results_are_missing() -> None:
    """The share that was given, with its standard error, rows that did not look up, results that were too old, and the lag:
    of all batches since, and of none that is exact. Rows are 2.5 s old when their batch is planned, and those that
    they find up to 6.5 s."""
    now = [100.0]
    limiting = Limiting(Overload(Policy.ADAPT_JOINS, clock=Clock.WALL), FromTo({}), draw_salt=lambda: 7)
    run = LocalPipeline(
        [query()], MemoryFilesystem(), limiting=limiting, clock=lambda: now[0], seconds=lambda commit: 0.25
    )
    for batch in range(5):
        times = [int((now[0] - 2.5) * 1e6) + 1000 * n for n in range(60)]
        made = pa.table({"k": [n % 30 for n in range(60)], "ts": pa.array(times, pa.timestamp("us"))})
        run.step(batch, dict.fromkeys("abc", made))
        now[0] += 1
    entries = {each.event: each for each in run.driver.queries["q"].journal.entries()}
    exact, lifted = entries["limiting"], entries["lifted"]
    assert exact.text.startswith("too many; since batch 0 exact: ")
    assert exact.details["measured"]["is_exact"]
    commits = [run.commits.read(batch).queries["q"].statistics for batch in (2, 3, 4)]
    unprobed = sum(each.limited["a"].rows - each.limited["a"].probed for each in commits)
    told = lifted.details["measured"]
    assert (told["since"], told["unprobed_rows"], told["is_exact"]) == (2, unprobed, False)
    estimated = sum(own.estimated for each in commits for own in each.limited.values())
    assert told["complete_share"] == pytest.approx(sum(each.results for each in commits) / estimated)
    assert told["complete_error"] > 0
    assert told["stale_results"] == sum(each.stale_results for each in commits) > 0
    assert told["lag_s"] == pytest.approx(2.75 - 0.059)
    assert lifted.text.startswith("few enough; since batch 2 adapted: ")
    assert f"{unprobed:,} rows not looked up" in lifted.text
    assert lifted.text.endswith("2.7 s behind the clock")


def steered(found: Query) -> Steering:
    disk = MemoryFilesystem()
    forms = Forms(found)
    execution = Execution(left_deep(forms.graphs[None]))
    return Steering(found, execution, Distribution(), Steady(), Journal(disk, found.name), QueryTexts(disk))


def test_a_query_that_comes_has_no_history_where_results_may_be_lost() -> None:
    made = pipeline(MemoryFilesystem(), Overload(Policy.SHED), "")
    made.step(0, rows(1_000_000))
    other = steered(replace(query(""), name="r"))
    for steering in made.driver.queries.values():
        steering.may_lose = True
    with pytest.raises(SessionError, match="r cannot have history: the overload policy of q may lose results"):
        admission(Coming(other, history=True), 1, made.driver.newest, made.driver.queries.values())
    found = admission(Coming(other), 1, made.driver.newest, made.driver.queries.values())
    assert found.since == 1


JOIN = "SELECT a.x, b.x AS y FROM a, b WHERE a.k = b.k{} WINDOW 3 SECONDS"
KIN = {"later": JOIN.format(" AND a.x >= 0"), "pairs": JOIN.format(" AND b.x >= 0")}
"""A query that comes, and one of the same name as that which keeps what it asks for."""


def pairs(keys: Sequence[int], us: int) -> dict[str, pa.Table]:
    made = pa.table({"k": keys, "x": keys, "ts": pa.array([us] * len(keys), pa.timestamp("us"))})
    return {"a": made, "b": made}


@pytest.mark.parametrize("name", KIN)
def test_history_lacks_rows_that_were_shed_before_the_policy_changed(name: str) -> None:
    """A row of each key and stream comes every second. Rows of the first two batches were shed by half, and are over when
    those of batch 4 come: until then results of a query with history are missing, too, which is told until the watermark
    has come there."""
    disk, batches = MemoryFilesystem(), [pairs(range(40), n * 1_000_000) for n in range(7)]
    shedding = Limiting(Overload(Policy.SHED), draw_salt=lambda: 7)
    first = LocalPipeline([bind_query("pairs", JOIN.format(""), CATALOG)], disk, limiting=shedding)
    shedding.shed = {"a": 0.5, "b": 0.5}
    for batch in range(2):
        first.step(batch, batches[batch])
    run = LocalPipeline([bind_query("pairs", JOIN.format(""), CATALOG)], disk)
    query = bind_query(name, KIN[name], CATALOG)
    run.add(query, history=True)
    wanted = oracle.fresh_by_batch(query, batches, {}, [None] * len(batches))
    for batch in range(2, len(batches)):
        found, commit = oracle.bag(run.step(batch, batches[batch])[name].results), run.commit
        assert not found - wanted[batch]
        assert (found == wanted[batch]) is (batch >= 4)
        assert commit is not None
        told = completeness_of(batch, commit.queries[name])
        assert (told is None) is (batch >= 5)
        assert told is None or told.share is None
    (came,) = [e for e in run.driver.queries[name].journal.entries() if e.event in ("added", "altered")]
    assert came.text.endswith("of which some were shed; results are complete from 1970-01-01 00:00:04 UTC on")


def test_a_query_without_history_lacks_nothing_that_was_shed() -> None:
    disk, shedding = MemoryFilesystem(), Limiting(Overload(Policy.SHED), draw_salt=lambda: 7)
    first = LocalPipeline([bind_query("pairs", JOIN.format(""), CATALOG)], disk, limiting=shedding)
    shedding.shed = {"a": 0.5, "b": 0.5}
    first.step(0, pairs([1, 2], 0))
    run = LocalPipeline([bind_query("pairs", JOIN.format(""), CATALOG)], disk)
    run.add(bind_query("later", KIN["later"], CATALOG))
    run.step(1, pairs([1, 2], 1))
    assert run.commit is not None
    missing = {name: completeness_of(1, own) is not None for name, own in run.commit.queries.items()}
    assert missing == {"pairs": True, "later": False}


def test_a_query_that_comes_is_limited_too() -> None:
    made = pipeline(MemoryFilesystem(), Overload(Policy.ADAPT_JOINS), "")
    made.step(0, rows(1_000_000))
    made.driver.coming["r"] = Coming(steered(replace(query(""), name="r")))
    control = made.driver.begin(1)
    assert control.queries["r"].limits == {"a": Limit(share=0.5)}
    assert made.driver.queries["r"].may_lose
    assert msgspec.json.decode(msgspec.json.encode(control), type=type(control)) == control


def test_nothing_is_remembered_of_a_query_that_has_left() -> None:
    made = pipeline(MemoryFilesystem(), Overload(Policy.ADAPT_JOINS), "")
    made.step(0, rows(1_000_000))
    made.driver.coming["r"] = Coming(steered(replace(query(""), name="r")))
    control = made.driver.end(made.driver.begin(1), {"r": "by request"})
    assert control.queries.keys() == made.driver.limiting.limits.keys() == {"q"}
    assert isinstance(made.driver.limiting.limiter, Pinned)
    assert made.driver.limiting.limiter.queries.keys() == {"q"}


def test_freshness_too_short_for_late_rows_is_noted_when_a_query_starts_comes_or_is_altered() -> None:
    """Once for as long as it is so."""
    text, disk = SCRIPT.replace("TIME ts;", "TIME ts LATENESS 1 SECOND;"), MemoryFilesystem()
    fresh = {us: parse_script(text.format(fresh=f"FRESHNESS {us} SECONDS")).queries[0].query for us in (5, 6)}
    pipeline = LocalPipeline([fresh[5]], disk)
    pipeline.step(0, rows(1_000_000))
    pipeline.add(replace(fresh[5], name="r"))
    pipeline.add(fresh[6])
    pipeline.step(1, rows(2_000_000))
    pipeline.add(fresh[5])
    pipeline.add(replace(fresh[6], name="r"))
    pipeline.step(2, rows(3_000_000))
    pipeline.add(replace(fresh[5], name="r"))
    pipeline.step(3, rows(4_000_000))
    queries = pipeline.driver.queries
    noted = {name: [e for e in each.journal.entries() if e.event == "warned"] for name, each in queries.items()}
    assert {name: [each.batch for each in entries] for name, entries in noted.items()} == {"q": [-1], "r": [0]}
    told = "the freshness of a, 5 seconds, is below its window and the lateness together, 6 seconds"
    assert all(entry.text.startswith(told) for entries in noted.values() for entry in entries)


@pytest.mark.parametrize("fresh", ["", "FRESHNESS 5 SECONDS", "FRESHNESS 9 SECONDS"])
def test_a_restart_with_another_freshness_goes_on_with_its_state(fresh: str) -> None:
    """Rows are stored as they were: freshness is no part of what state depends on."""
    disk = MemoryFilesystem()
    pipeline(disk, Overload(clock=Clock.EVENT)).step(0, rows(1_000_000))
    again = pipeline(disk, Overload(clock=Clock.EVENT), fresh)
    assert again.step(1, rows(2_000_000))["q"].results.num_rows == 7, "each of three inputs has two rows, but for the first"


@pytest.mark.parametrize("overload", [Overload(), Overload(Policy.SHED)])
def test_slices_stay_as_they_are_where_results_may_be_lost(overload: Overload) -> None:
    asked: list[object] = []

    class Asked:
        def at_start(self) -> Sequence[Recut]:
            return ()

        def after(self, *given: object) -> Sequence[Recut | SliceRemark]:
            asked.append(given)
            return ()

    made = pipeline(MemoryFilesystem(), overload, "")
    made.driver.slicer = Asked()
    made.step(0, rows(1_000_000))
    assert bool(asked) is not overload.policy.may_lose
