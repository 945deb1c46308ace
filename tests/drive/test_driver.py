"""The driver and its runner, one rule at a time."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from anabranch.control.ledger import Ledger, commits_in
from anabranch.control.loop import Proposal, Remark
from anabranch.control.records import Commit
from anabranch.drive.driver import MOST_FAILED_RUNS
from anabranch.drive.retain import RELEASE_EVERY
from anabranch.errors import CheckpointBusyError, StateError
from anabranch.plan.actions import ChangePlan
from anabranch.plan.jtree import parse
from anabranch.plan.migration import Execution, Strategy
from anabranch.sql import parse_script
from tests.drive.simulation import Function, Simulation, Taken
from tests.support import oracle
from tests.support.cases import Part
from tests.support.faulty import Crash, Fault

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
    return Simulation(query, rows, {}, **{"slots": 2, **settings})


def wanted(case: Simulation) -> oracle.Bag:
    return oracle.expected(case.query, case.batches, case.tables)


@pytest.mark.parametrize("to_files", [True, False])
def test_every_put_may_be_the_last(to_files: bool, part: Part) -> None:
    """The driver dies at each put of a run in turn, in all ways."""
    calm = simulation(4, to_files=to_files, pauses={1})
    calm.run()
    for ordinal in part.of(range(len(calm.world.puts))):
        for kind in ("lose", "tear", "crash_after"):
            case = simulation(4, to_files=to_files, pauses={1}, faults={ordinal: Fault(kind)})
            found = case.run()
            what = f"{kind} at {calm.world.puts[ordinal]}"
            assert not (wrong := oracle.difference(found, wanted(case))), f"{what}: {wrong}"
            case.verify()
            assert case.lives <= 2, what


def test_a_committed_batch_is_computed_again_for_a_function_alone() -> None:
    case = simulation(to_files=False, fails={1: "before", 2: "after"})
    assert not oracle.difference(case.run(), wanted(case))
    assert [batch for batch, is_committed in case.computed if is_committed] == [1, 2]
    assert {number: len(times) for number, times in case.function.brought.items()} == {0: 1, 1: 1, 2: 2, 3: 1, 4: 1}


@pytest.mark.parametrize("guard", ["source", "delivery"])
def test_no_step_closes_what_is_not_over(guard: str) -> None:
    """While the last trigger may be brought again, or its results have not arrived: they would never be."""
    case = simulation(2, to_files=False, fails={1: "before"} if guard == "delivery" else {})
    with suppress(Crash):
        case.live()
    if guard == "source":
        case = simulation(2, to_files=False)
    holder = Taken(case.checkpoint)  # type: ignore[arg-type]
    holder.acquire()
    driver, runner, tasks = case.started(holder)
    if guard == "source":
        for trigger in range(2):
            runner.step(trigger, tasks(case.batches[trigger]))
    assert driver.standing.waits == (guard == "delivery")
    assert not runner.close_if_paused(lambda: tasks({}), 0.0, lambda trigger: guard == "delivery")
    assert not runner.close_if_paused(lambda: tasks({}), 3600.0, lambda trigger: True)
    if guard == "source":
        assert runner.close_if_paused(lambda: tasks({}), 0.0, lambda trigger: True)
        assert not runner.close_if_paused(lambda: tasks({}), 0.0, lambda trigger: True), "there is nothing more to close"
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
    assert [len(times) for times in case.function.brought.values()] == [1] * 4
    assert not oracle.difference(case.found(), wanted(case))


def test_a_plan_that_fails_is_given_up() -> None:
    """Batch 1 is begun under a plan by request, and never committed under it."""
    case = simulation(3, three=True, to_files=False, plans=("((a b) c)", "(a b c)"), asks={1: (1, Strategy.MOVING_STATE)})
    ran, work = [], case.work

    def fails_under_the_new_plan(driver: Any, *others: Any) -> Any:
        ran.append(driver.plan_text)
        if ran[-1] == "(a b c)":
            raise Crash("tasks fail")
        return work(driver, *others)

    case.work = fails_under_the_new_plan  # type: ignore[method-assign]
    case.run()
    assert ran[: MOST_FAILED_RUNS + 2] == ["((a b) c)", *["(a b c)"] * MOST_FAILED_RUNS, "((a b) c)"]
    assert not oracle.difference(case.found(), wanted(case))
    latest = commits_in(case.checkpoint).latest()  # type: ignore[arg-type]
    assert latest is not None
    assert latest[1].plan == "((a b) c)"


def test_records_and_files_do_not_grow_with_batches() -> None:
    case = simulation(5 * RELEASE_EVERY, to_files=False)
    assert not oracle.difference(case.run(), wanted(case))
    for folder in ("control", "commit", "delivered"):
        assert 1 <= len(case.checkpoint.list(folder)) <= RELEASE_EVERY + 2, folder
    for slot in range(2):
        assert len(case.checkpoint.list(f"state/{slot}")) < 40


def test_a_foreign_control_record_is_refused() -> None:
    """A batch that is computed once more for delivery must be the one that was committed."""
    case = simulation(2, to_files=False, fails={1: "before"})
    with suppress(Crash):
        case.live()
    path = next(name for name in case.checkpoint.list("control") if name.startswith(f"{1:020d}"))
    holder = Taken(case.checkpoint)  # type: ignore[arg-type]
    holder.acquire()
    driver, runner, tasks = case.started(holder)
    record = driver.controls.read(1)
    case.checkpoint.delete(f"control/{path}")
    driver.controls.write(1, msgspec.structs.replace(record, token="another"))
    with pytest.raises(StateError, match=r"is not what commit/.* was made from"):
        runner.step(1, tasks(case.batches[1]))
    holder.release()


class Proposing:
    """A loop that proposes a plan after some batch."""

    def __init__(self, batch: int, plan: str) -> None:
        self.batch, self.plan = batch, plan
        self.forms: Any = None

    def after(self, execution: Execution, commit: Commit) -> Proposal | Remark | None:
        if commit.batch != self.batch:
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
        case = Simulation(parse_script(script).queries[0].query, case.batches, {}, ("((a b) c)",), to_files=False)
    holder = Taken(case.checkpoint)  # type: ignore[arg-type]
    holder.acquire()
    driver, runner, tasks = case.started(holder)
    driver.is_pinned, loop = pinned, Proposing(1, "(a b c)")
    loop.forms, driver.loop = driver.forms, loop  # type: ignore[assignment]
    for trigger in range(6):
        runner.step(trigger, tasks(case.batches[trigger]))
    runner.close(lambda: tasks({}))
    holder.release()
    told = {e.event: e for e in driver.journal.entries()}
    assert ("migrating" in told) == (not pinned)
    if not pinned:
        assert told["migrating"].details["strategy"] == ("gradual" if window == "UNBOUNDED" else "parallel-track")
        assert driver.plan_text == "(a b c)"
        assert "migrated" in told
    assert not oracle.difference(case.found(), wanted(case))


def test_a_function_of_the_simulation_can_tell() -> None:
    """The sink that tests rely on notices a batch that is another the second time."""
    sink = Function(pa.schema([("x", pa.int64())]))
    for value in (1, 2):
        sink.deliver([pa.RecordBatch.from_pydict({"x": [value]})], 0)
    with pytest.raises(AssertionError, match="a batch is another"):
        sink.found()
