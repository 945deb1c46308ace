"""Queries that come, change and go while others run, under a driver that may die at any put."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import strategies as st

from anabranch.control.ledger import controls_in
from anabranch.control.pipelines import COMING, ComingNote, read_dropped
from anabranch.control.query_texts import text_of
from anabranch.control.records import Control
from anabranch.drive.coming import Coming
from anabranch.drive.driver import Driver
from anabranch.drive.runner import Computed
from anabranch.errors import SessionError
from anabranch.plan.demand import read_columns
from anabranch.plan.workload import Workload as Plans
from anabranch.run import Run
from tests.support import oracle
from tests.support.cases import Part
from tests.support.faulty import Fault
from tests.support.growing import GROUPS, JOIN, OTHER, THIRD, Growing, query_of
from tests.support.kin import kin
from tests.support.scenarios import properties
from tests.support.simulation import Below
from tests.support.workloads import Workload, workloads


def fixed(faults: dict[int, Fault] | None = None, **settings: Any) -> Growing:
    """One query runs; one of the same join comes in, one with history, one over a stream that nobody has read, one with
    groups; the first is altered, one goes."""
    drawn = Workload(35, 0, batches=7)
    first = [query_of(drawn, "q0", JOIN)]
    batches = [drawn.batch(number) for number in range(drawn.batches)]
    case = Growing(first, batches, {}, slots=2, faults=faults or {}, **settings)
    old = case.asking(query_of(drawn, "old", OTHER), history=True)
    third = case.asking(query_of(drawn, "third", THIRD), history=False)
    come: dict[int, Callable[[Run], object]] = {
        1: case.asking(query_of(drawn, "later", OTHER), history=False),
        2: lambda run: (old(run), third(run)),
        3: case.asking(query_of(drawn, "q0", OTHER), history=True),
        4: case.asking(query_of(drawn, "groups", GROUPS), history=False),
        5: lambda run: run.pipelines[0].host.runner.drop("later") if "later" in run.queries else None,
        6: case.asking(query_of(drawn, "q0", OTHER + " AND p.x > 1"), history=True),
    }
    case.before.update(come)
    workload = Plans(tuple(replace(q, name=f"{q.name}_{n}") for n, q in enumerate(case.versions.values())))
    case.sources, case.columns = workload.sources, read_columns(workload)
    return case


def test_queries_come_change_and_go() -> None:
    case = fixed()
    case.check()
    newest = case.steps[-1][0]
    assert newest.queries.keys() == {"q0", "old", "third", "groups"}
    assert newest.ended.keys() == {"later"}
    assert {name: own.since for name, own in newest.queries.items()} == {"q0": 0, "old": 0, "third": 2, "groups": 4}
    assert newest.queries["q0"].declared == text_of(case.first[0]).sql_digest
    assert all(case.found()[name] for name in ("q0", "old", "third", "later", "groups")), "each has results"


def test_a_driver_dies_at_any_put_while_queries_come(part: Part) -> None:
    deaths = fixed().deaths("tear", "crash_after")  # a put that is lost: as if the driver had died after the one before it
    told: dict[Any, oracle.Bag] = {}
    first = next(each.ordinal for each in deaths if each.path.startswith("checkpoint/coming/"))
    for left in part.of([each for each in deaths if each.ordinal >= first - 1]):
        case = fixed(told=told)
        case.go_on(left)
        case.check(str(left))
        assert case.lives == 2


def test_queries_come_with_the_batch_that_was_begun_with_them() -> None:
    """The driver dies when the batch is begun: what is told of a query from then on, in which batch it came, stays so."""
    come = []
    for left in fixed().deaths("crash_after"):
        if left.path.startswith("checkpoint/control/"):
            case, files = fixed(), Below(left.files, "checkpoint")
            latest, dropped = controls_in(files).latest(), read_dropped(files)  # type: ignore[arg-type]
            assert latest is not None
            case.go_on(left)
            case.run()
            begun = latest[1]
            told = {name: (own.text, own.since) for name, own in begun.queries.items() if name not in dropped}
            found = case.begun[begun.batch].queries
            assert {name: (own.text, own.since) for name, own in found.items()} == told, str(left)
            come.append([name for name, (_, since) in told.items() if since == begun.batch])
    assert come == [["q0"], ["later"], ["third"], [], ["groups"], *[[]] * 4]


def test_who_is_asked_for_while_a_batch_runs_stays_noted() -> None:
    """The batch does not have it. Whoever goes on, if the driver dies after it, has it come in."""
    drawn = Workload(35, 0, batches=4)
    case = Growing([query_of(drawn, "q0", JOIN)], [drawn.batch(n) for n in range(4)], {}, slots=2)
    runs, noted, work = list[Run](), list[list[str]](), case.work

    def asks(driver: Driver, run: str, kept: Any, rows: Any, control: Control) -> Computed:
        if control.batch == 1:
            case.asking(query_of(drawn, "later", OTHER), False)(runs[0])
        return work(driver, run, kept, rows, control)

    case.work = asks  # type: ignore[method-assign]
    case.before = {1: runs.append, 2: lambda run: noted.append([*case.checkpoint.list(COMING)])}
    case.check()
    assert noted == [["later"]]
    assert next(batch for batch, control in case.begun.items() if "later" in control.queries) == 2


def check_coming_and_dying(
    workload: Workload, slots: int, count: int, comes: dict[int, tuple[int, bool]], faults: dict[int, Fault]
) -> None:
    """Queries of a workload come before some triggers, with history or without, while drivers die."""
    count = min(count, workload.count - 1)
    batches = [workload.batch(number) for number in range(workload.batches)]
    case = Growing(workload.queries[:count], batches, {"t": workload.table}, slots=slots, faults=faults, workers=2)
    for query in workload.queries:
        case.versions[text_of(query).digest] = query
    plans = Plans(tuple(workload.queries))
    case.sources, case.columns, case.tables = plans.sources, read_columns(plans), {"t": workload.table}
    case.tables = {name: rows for name, rows in case.tables.items() if name in case.sources}
    for at, (which, history) in comes.items():
        query = workload.queries[count + which % (workload.count - count)]
        case.before[at] = case.asking(query, history)
    case.check(workload.script)


KINDS = st.sampled_from(["lose", "tear", "crash_after"]).map(lambda kind: Fault(kind))  # type: ignore[arg-type]

test_coming_and_dying, test_coming_and_dying_long = properties(
    check_coming_and_dying, 20, 1_000, workload=st.one_of(kin(5), workloads(5)), slots=st.sampled_from([1, 2, 3]),
    count=st.integers(1, 3),
    comes=st.dictionaries(st.integers(1, 5), st.tuples(st.integers(0, 4), st.booleans()), min_size=1),
    faults=st.dictionaries(st.integers(20, 160), KINDS, max_size=2),
)  # fmt: skip


def test_who_cannot_have_history() -> None:
    drawn = Workload(35, 0, batches=3)
    case = Growing([query_of(drawn, "q0", OTHER)], [drawn.batch(n) for n in range(3)], {}, slots=2)
    asked = {
        "longer": (JOIN, "no query keeps all rows that it would have"),
        "grouped": (GROUPS, "groups count rows of an instant"),
        "third": (THIRD, "no query that runs reads c, so no row of it is stored"),
    }
    seen = []

    def ask(run: Run) -> None:
        host = run.pipelines[0].host
        for name, (sql, why) in asked.items():
            query = query_of(drawn, name, sql)
            running = {n: (each.query, each.distribution) for n, each in host.driver.queries.items()}
            coming = Coming(case.joining(query, running), True)
            with pytest.raises(SessionError, match=f"{name} cannot have history: {why}"):
                host.runner.add(coming, ComingNote(name, coming.query.text.digest, None, True))
            seen.append(name)

    case.before[1] = ask
    case.run()
    assert seen == [*asked]
    assert not case.checkpoint.list(COMING), "nothing is noted of who is refused"
