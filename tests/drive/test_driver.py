"""The driver and its runner, one rule at a time."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from anabranch.control.ledger import Ledger, commits_in
from anabranch.control.loop import Observed, Proposal, Remark
from anabranch.control.records import Commit
from anabranch.control.sweep import batch_of
from anabranch.drive.local import LocalPipeline, Steady
from anabranch.drive.retain import RELEASE_EVERY, Background
from anabranch.drive.steering import MOST_FAILED_RUNS
from anabranch.errors import CheckpointBusyError, SinkError
from anabranch.plan.actions import ChangePlan
from anabranch.plan.jtree import parse
from anabranch.plan.migration import Execution, Strategy
from anabranch.plan.query import Query
from anabranch.spark.stage import STAGING
from anabranch.sql import parse_script
from anabranch.storage.filesystem import MemoryFilesystem
from tests.support import oracle
from tests.support.cases import Part
from tests.support.faulty import Crash, Fault
from tests.support.feeding import wait_until
from tests.support.simulation import Simulation, Taken
from tests.support.workloads import Workload

SCRIPT = """
CREATE STREAM a (k BIGINT, x BIGINT, ts TIMESTAMP) TIME ts;
CREATE STREAM b (k BIGINT, ts TIMESTAMP) TIME ts;
CREATE STREAM c (k BIGINT, ts TIMESTAMP) TIME ts;
CREATE QUERY q AS SELECT a.x, RESULT_TIME AS at FROM a, b {c} WHERE a.k = b.k {and_c} WINDOW {window} SECONDS
"""


def simulation(batches: int = 4, three: bool = False, window: str = "2", **settings: Any) -> Simulation:
    parts = {"c": ", c", "and_c": "AND b.k = c.k"} if three else {"c": "", "and_c": ""}
    query = parse_script(SCRIPT.format(window=window, **parts)).queries[0].query
    streams = ("a", "b", "c") if three else ("a", "b")
    rows: list[Mapping[str, pa.Table]] = []
    for n in range(batches):
        times = pa.array([n * 1_000_000 + i * 100_000 for i in range(4)], pa.timestamp("us"))
        keys = pa.array([0, 1, 0, 1])
        more = {"a": {"x": pa.array(range(4))}}
        rows.append({s: pa.table({"k": keys, **more.get(s, {}), "ts": times}) for s in streams})
    return Simulation([query], rows, {}, **{"slots": 2, **settings})


def check(case: Simulation) -> None:
    """What has arrived is what should."""
    found, expected = case.found(), case.expected()
    assert not (wrong := oracle.difference(found["q"], expected["q"])), wrong


@pytest.mark.parametrize("to_files", [True, False])
def test_every_put_may_be_the_last(to_files: bool, part: Part) -> None:
    """The driver dies at each put of a run in turn, in all ways."""
    for left in part.of(simulation(4, to_files=to_files, pauses={1}).deaths("lose", "tear", "crash_after")):
        case = simulation(4, to_files=to_files, pauses={1})
        case.go_on(left)
        case.check(str(left))
        assert case.lives <= 2, str(left)


def test_a_committed_batch_is_never_computed_again() -> None:
    """The driver dies in calls of the function: the next one reads what was staged."""
    case = simulation(to_files=False, fails={1: "before", 2: "after"})
    case.check()
    assert {number: len(times) for number, times in case.function.brought.items()} == {0: 1, 1: 1, 2: 2, 3: 1}


def test_a_sink_that_fails_is_called_again_and_holds_up_nobody() -> None:
    case = simulation(5, to_files=False, fails={1: "fails before", 3: "fails after"})
    case.check()
    assert case.lives == 1
    assert {number: len(times) for number, times in case.function.brought.items()} == {0: 1, 1: 1, 2: 1, 3: 2, 4: 1}
    assert list(case.function.brought) == sorted(case.function.brought), "in order"


def test_a_sink_that_fails_for_good_is_told_when_input_has_ended() -> None:
    case = simulation(3, to_files=False)
    case.function.fails = Failing(case.function.fails)
    with pytest.raises(SinkError, match=r"the sink of query q \(.*\) has failed .* in batch 0: OSError: the sink fails"):
        case.live()
    assert not case.function.brought
    assert len(case.checkpoint.list("commit")) >= 4, "commits stay until their results have arrived"
    case.function.fails = {}
    case.check()
    assert sorted(case.function.brought) == [0, 1, 2]


def test_commits_stay_for_as_long_as_their_results_wait() -> None:
    """Also when newer ones are there, and records and files that nobody needs have gone several times."""
    case = simulation(3 * RELEASE_EVERY, to_files=False)
    case.function.fails = Failing(case.function.fails)
    case.live(triggers=3 * RELEASE_EVERY)
    assert not case.function.brought
    assert len(case.checkpoint.list("commit")) == 3 * RELEASE_EVERY
    case.function.fails = {}
    case.check()
    assert sorted(case.function.brought)[:2] == [0, 1]


class Failing(dict[int, str]):
    """Every call fails."""

    def pop(self, batch: int, otherwise: str = "") -> str:  # type: ignore[override]
        return "fails before"


def test_no_step_closes_what_the_source_may_bring_again() -> None:
    case = simulation(2, to_files=False)
    holder = Taken(case.checkpoint)  # type: ignore[arg-type]
    holder.acquire()
    _, runner, tasks = case.started(holder)
    for trigger in range(2):
        runner.step(trigger, tasks(case.batches[trigger]))
    assert not runner.close_if_paused(lambda: tasks({}), 0.0, lambda trigger: False)
    assert not runner.close_if_paused(lambda: tasks({}), 3600.0, lambda trigger: True)
    assert runner.close_if_paused(lambda: tasks({}), 0.0, lambda trigger: True)
    assert not runner.close_if_paused(lambda: tasks({}), 0.0, lambda trigger: True), "there is nothing more to close"
    holder.release()


def test_no_step_closes_while_a_batch_that_was_begun_is_to_be_run_again() -> None:
    """The driver dies before it commits batch 2. Input pauses when the next one has started, before the source brings the
    rows of that batch again."""
    puts = [left.ordinal for left in simulation(4).deaths("lose") if left.path.startswith(f"checkpoint/commit/{2:020d}")]
    case = simulation(4, faults={puts[0]: Fault("lose")})
    with pytest.raises(Crash):
        case.live()
    holder = Taken(case.checkpoint)  # type: ignore[arg-type]
    holder.acquire()
    driver, runner, tasks = case.started(holder)
    assert driver.standing.begun is not None
    assert not runner.close_if_paused(lambda: tasks({}), 0.0, lambda trigger: True)
    holder.die()
    case.run()
    check(case)


def test_a_start_is_no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Input has paused for 5 seconds: since Spark began to look for some, however long the start before that took."""
    case, now_s = simulation(2), [0.0]
    monkeypatch.setattr("anabranch.drive.runner.monotonic", lambda: now_s[0])
    case.live(triggers=2)
    holder = Taken(case.checkpoint)  # type: ignore[arg-type]
    holder.acquire()
    _, runner, tasks = case.started(holder)
    closed = []
    for now_s[0] in (60.0, 62.0, 65.0):
        if now_s[0] == 60.0:
            runner.rest()
        closed.append(runner.close_if_paused(lambda: tasks({}), 5.0, lambda trigger: True))
    assert closed == [False, False, True]
    holder.release()


def test_a_driver_that_lost_its_lease_delivers_nothing() -> None:
    """It sleeps before it commits batch 1; another one comes, runs the batch, and goes on."""
    case, slept = simulation(3, to_files=False), []
    write = Ledger.write

    def sleepy(ledger: Any, number: int, record: Any) -> None:
        if isinstance(record, Commit) and number == 1 and not slept:
            slept.append(True)
            case.done = 0
            case.live()
        write(ledger, number, record)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Ledger, "write", sleepy)
        with pytest.raises(CheckpointBusyError, match="another run has taken the checkpoint over"):
            case.live()
    assert [len(times) for times in case.function.brought.values()] == [1] * 3
    check(case)


def test_a_plan_that_fails_is_given_up() -> None:
    """Batch 1 is begun under a plan by request, and never committed under it."""
    case = simulation(3, three=True, to_files=False, plans=("((a b) c)", "(a b c)"), asks={1: (1, Strategy.MOVING_STATE)})
    ran, work = [], case.work

    def fails_under_the_new_plan(driver: Any, *others: Any) -> Any:
        ran.append(driver.queries["q"].plan_text)
        if ran[-1] == "(a b c)":
            raise Crash("tasks fail")
        return work(driver, *others)

    case.work = fails_under_the_new_plan  # type: ignore[method-assign]
    case.run()
    assert ran[: MOST_FAILED_RUNS + 2] == ["((a b) c)", *["(a b c)"] * MOST_FAILED_RUNS, "((a b) c)"]
    check(case)
    latest = commits_in(case.checkpoint).latest()  # type: ignore[arg-type]
    assert latest is not None
    assert latest[1].queries["q"].execution.plan == "((a b) c)"


def test_records_and_files_do_not_grow_with_batches() -> None:
    case = simulation(5 * RELEASE_EVERY, to_files=False)
    case.check()
    for folder in ("control", "commit", "delivered/q"):
        assert 1 <= len(case.checkpoint.list(folder)) <= RELEASE_EVERY + 2, folder
    for slot in range(2):
        assert len(case.checkpoint.list(f"state/{slot}")) < 40


@pytest.mark.parametrize("queries", [3, 6])
def test_a_batch_writes_few_objects_however_many_queries_there_are(queries: int) -> None:
    """In a slot: two of state, one with the results of all functions, and one for each folder of parquet files."""
    workload = Workload(59, queries, batches=6)
    batches = [workload.batch(number) for number in range(workload.batches)]
    case = Simulation(workload.queries, batches, {"t": workload.table}, slots=2, workers=2)
    case.check()
    puts = [path.split("/") for path in case.world.puts]
    state = Counter((put[2], batch_of(put[3])) for put in puts if put[:2] == ["checkpoint", "state"])
    assert 1 <= max(state.values()) <= 2
    staged = Counter((put[2].split("-")[2], batch_of(put[2])) for put in puts if put[:2] == ["checkpoint", "staged"])
    assert {*staged.values()} == {1}
    written = [(put[1], put[3]) for put in puts if put[0] == "out" and put[2] == STAGING]
    files = Counter((query, name.split("-")[2], batch_of(name)) for query, name in written)
    assert {*files.values()} == {1}


class Proposing(Steady):
    """A loop that proposes a plan after some batch."""

    def __init__(self, batch: int, plan: str) -> None:
        self.batch, self.plan = batch, plan
        self.forms: Any = None

    def after(self, execution: Execution, observed: Observed) -> Proposal | Remark | None:
        if observed.batch != self.batch:
            return None
        return Proposal(ChangePlan(parse(self.plan, self.forms.graphs[None]), Strategy.PARALLEL_TRACK), "it is better")


@pytest.mark.parametrize(("pinned", "window"), [(False, "2"), (True, "2"), (False, "UNBOUNDED")])
def test_what_the_loop_proposes(pinned: bool, window: str) -> None:
    """A proposal is followed from the next batch on, unless the plan is pinned."""
    case = simulation(6, three=True, to_files=False, plans=("((a b) c)",))
    if window == "UNBOUNDED":
        script = SCRIPT.format(window="2", c=", c", and_c="AND b.k = c.k").replace("FROM a,", "FROM a [UNBOUNDED],")
        script = script.replace(", b ,", ", b [RANGE 2 SECONDS],").replace(", c WHERE", ", c [RANGE 2 SECONDS] WHERE")
        script = script.replace("WINDOW 2 SECONDS", "")
        case = Simulation([parse_script(script).queries[0].query], case.batches, {}, ("((a b) c)",), to_files=False)
    holder = Taken(case.checkpoint)  # type: ignore[arg-type]
    holder.acquire()
    driver, runner, tasks = case.started(holder)
    query, loop = driver.queries["q"], Proposing(1, "(a b c)")
    query.is_pinned, loop.forms, query.loop = pinned, query.forms, loop  # type: ignore[assignment]
    for trigger in range(6):
        runner.step(trigger, tasks(case.batches[trigger]))
    runner.close(lambda: tasks({}))
    holder.release()
    told = {e.event: e for e in query.journal.entries()}
    assert ("migrating" in told) == (not pinned)
    if not pinned:
        assert told["migrating"].details["strategy"] == ("gradual" if window == "UNBOUNDED" else "parallel-track")
        assert query.plan_text == "(a b c)"
        assert "migrated" in told
    check(case)


def test_a_function_of_the_simulation_can_tell() -> None:
    """The sink that tests rely on notices a batch that is another the second time."""
    sink = simulation(to_files=False).function
    for value in (1, 2):
        sink.bring(0, pa.table({"x": [value]}))
    with pytest.raises(AssertionError, match="a batch is another"):
        sink.found()


@pytest.mark.parametrize("error", [OSError("the store is away"), RuntimeError("a filesystem in Python")])
def test_files_are_deleted_in_the_background_in_order(error: Exception) -> None:
    """One thing after the other; one that fails stops nothing, and no thread is left when all is done."""
    background, done = Background(), list[int]()

    def work(number: int) -> None:
        if number == 1:
            raise error
        done.append(number)

    for number in range(4):
        background(partial(work, number))
    wait_until(lambda: done == [0, 2, 3])
    wait_until(lambda: not any(thread.name == "anabranch-release" for thread in threading.enumerate()))
    background(partial(work, 4))
    wait_until(lambda: done == [0, 2, 3, 4])


def test_the_records_of_the_latest_batches_stay() -> None:
    """However many batches there were: what they measured is shown. Older ones go."""
    text = "CREATE STREAM a (k BIGINT, ts TIMESTAMP) TIME ts; SELECT k FROM a [NOW]"
    run = LocalPipeline([parse_script(text).queries[0].query], MemoryFilesystem(), release_every=4)
    for batch in range(30):
        run.step(batch, {})
        kept = run.commits.numbers()
        assert kept == list(range(kept[0], batch + 1))
        assert min(batch + 1, 5) <= len(kept) <= 8


def test_files_of_an_attempt_that_lost_go_however_late_it_was() -> None:
    """It may write on when another has won its batch and the batch is committed."""
    disk, sql = MemoryFilesystem(), SCRIPT.format(window="9", c="", and_c="")
    run = LocalPipeline([parse_script(sql).queries[0].query], disk, release_every=4)
    litter: list[str] = []
    for batch in range(13):
        times = pa.array([batch * 1_000_000], pa.timestamp("us"))
        a = pa.table({"k": [1], "x": [batch], "ts": times})
        run.step(batch, {"a": a, "b": a.select(["k", "ts"])})
        if batch in (3, 4, 5):
            litter.append(f"{batch:010d}-lost.log")
            disk.put(f"state/0/{litter[-1]}", [b"too late"])
        if batch == 7:
            assert set(litter) <= set(disk.list("state/0")), "in batch 4, when others went, batch 3 was not over"
    kept = disk.list("state/0")
    assert kept
    assert not set(litter) & set(kept)


def test_a_query_that_is_altered_to_read_other_streams_moves_no_watermark_of_theirs() -> None:
    """r joins a and b, of which b is far behind; q reads a, and is altered to join both as r does."""
    sql = {"r": "FROM a, b WHERE a.k = b.k WINDOW 100 SECONDS", "q": "FROM a WINDOW 1 SECOND"}
    creates = "".join(f"CREATE STREAM {s} (k BIGINT, ts TIMESTAMP) TIME ts;" for s in "ab")

    def query(name: str, rest: str) -> Query:
        return parse_script(f"{creates} CREATE QUERY {name} AS SELECT a.k {rest}").queries[0].query

    def rows(second: int) -> pa.Table:
        return pa.table({"k": [1], "ts": pa.array([second * 1_000_000], pa.timestamp("us"))})

    disk, altered, seen = MemoryFilesystem(), query("q", sql["r"]), []
    pipeline = LocalPipeline([query(*each) for each in sql.items()], disk)
    for number in range(6):
        if number == 3:
            pipeline.add(altered, history=True)
        if number == 5:
            pipeline = LocalPipeline([query("r", sql["r"]), altered], disk)
        steps = pipeline.step(number, {"a": rows(100 + number), "b": rows(10 + number)})
        seen.append([steps[name].watermark_us // 1_000_000 for name in "rq"])
        assert not steps["r"].statistics.sources["b"].late_rows
    assert seen[1:] == [[10, 100], [11, 101], [12, 12], [13, 13], [14, 14]]
