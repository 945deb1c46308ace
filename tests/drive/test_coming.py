"""Queries that come, change and go while others run, under a driver that may die at any put."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st

from anabranch.balance.together import join_others, restored
from anabranch.control.lease import Holder
from anabranch.control.ledger import commits_in, controls_in
from anabranch.control.pipelines import COMING, ComingNote, read_coming, read_dropped
from anabranch.control.query_texts import text_of
from anabranch.control.records import Commit, Control
from anabranch.drive.coming import Coming
from anabranch.drive.driver import Driver
from anabranch.drive.runner import Computed, Runner
from anabranch.drive.steering import Steering
from anabranch.errors import SessionError
from anabranch.plan.demand import read_columns
from anabranch.plan.distribution import Distribution
from anabranch.plan.eager import Forms
from anabranch.plan.query import Query, Stream
from anabranch.plan.workload import Workload as Plans
from anabranch.run import Run
from anabranch.sql import bind_query, parse_script
from tests.drive.simulation import Below, Files, Simulation
from tests.support import oracle
from tests.support.cases import Part
from tests.support.faulty import Fault
from tests.support.kin import kin
from tests.support.scenarios import properties
from tests.support.workloads import Workload, workloads


@dataclass
class Growing(Simulation):
    """A simulation whose queries are those that the checkpoint says, among all versions of queries that there ever are."""

    BESIDE: ClassVar[tuple[str, ...]] = (*Simulation.BESIDE, "versions", "begun", "later")

    versions: dict[str, Query] = field(default_factory=dict)
    """Queries by the digests of their texts, also those that are to come."""
    later: dict[str, Distribution] = field(default_factory=dict)
    """How queries that come are spread, by the digests of their texts."""
    begun: dict[int, Control] = field(default_factory=dict)
    """What batches began with, when they last ran."""
    notes: dict[str, ComingNote] = field(default_factory=dict)
    """Who was about to come when the last driver died."""
    told: dict[Any, oracle.Bag] = field(default_factory=dict)
    """What the oracle has said of stays, to simulations with the same batches."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for query in self.queries:
            self.versions[text_of(query).digest] = query
        self.first = list(self.queries)
        named = [replace(query, name=f"{query.name}_{place}") for place, query in enumerate(self.versions.values())]
        workload = Plans(tuple(named))
        self.sources, self.columns = workload.sources, read_columns(workload)

    def started(self, holder: Holder) -> tuple[Driver, Runner, Any]:
        """The queries that the newest commit has, and those that were about to come."""
        latest = commits_in(self.checkpoint).latest()  # type: ignore[arg-type]
        self.queries, self.notes = self.first, {}
        if latest is not None:
            self.take_over(latest[1])
        self.forms = {query.name: Forms(query) for query in self.queries}
        return super().started(holder)

    def take_over(self, commit: Commit) -> None:
        gone = [*commit.ended, *read_dropped(self.checkpoint)]  # type: ignore[arg-type]
        self.queries = [self.versions[own.text] for own in commit.queries.values()]
        layouts = {name: own.layout for name, own in commit.queries.items()}
        self.spread = restored(Plans(tuple(self.queries)), layouts, self.slots)
        self.notes = {
            note.name: note
            for note in read_coming(self.checkpoint)  # type: ignore[arg-type]
            if note.name not in gone and getattr(commit.queries.get(note.name), "text", "") != note.text
        }

    def make(self, steerings: Any, files: Any, holder: Holder) -> Driver:
        driver = super().make(steerings, files, holder)
        running = {query.name: (query, self.spread[query.name]) for query in self.queries}
        for name, note in self.notes.items():
            query = self.versions[note.text]
            driver.coming[name] = Coming(self.joining(query, running), note.history, note.command)
        return driver

    def joining(self, query: Query, running: Mapping[str, tuple[Query, Distribution]]) -> Steering:
        """A query as it is to come in."""
        spread = join_others(query, running, self.slots)
        before, forms = self.spread.get(query.name), self.forms.get(query.name)
        self.spread[query.name], self.forms[query.name] = spread, Forms(query)
        made = self.steering(query)
        if query.name not in self.outlets:
            self.outlets[query.name] = self.called(query)
        if before is not None and forms is not None:  # the one of its name runs on until then
            self.spread[query.name], self.forms[query.name] = before, forms
        self.later[text_of(query).digest] = spread
        outlet = self.outlets[query.name]
        made.has_own_files = isinstance(outlet, Files) and outlet.has_own_files
        return made

    def asking(self, query: Query, history: bool) -> Callable[[Run], None]:
        """Has a query come in, if it can."""
        self.versions[text_of(query).digest] = query

        def ask(run: Run) -> None:
            host = run.pipelines[0].host
            queries = host.driver.queries
            read = {s for name, each in queries.items() if name != query.name for s in each.streams}
            is_connected = any(s.name in read for s in query.base_sources if isinstance(s, Stream))
            if query.name in queries and queries[query.name].text.digest == text_of(query).digest:
                return  # it is there already
            if host.driver.needs_no_exchange or (query.name not in queries and not host.driver.is_free(query.name)):
                return
            if not is_connected and query.name not in queries:
                return
            running = {name: (each.query, each.distribution) for name, each in queries.items()}
            coming = Coming(self.joining(query, running), history)
            host.delivery.add(query.name, self.outlets[query.name])
            try:
                host.runner.add(coming, ComingNote(query.name, coming.query.text.digest, None, history))
            except SessionError:
                assert history, "any query can come without history"

        return ask

    def work(self, driver: Driver, run: str, kept: Any, rows: Any, control: Control) -> Computed:
        self.begun[control.batch] = control
        self.queries = [self.versions[own.text] for own in control.queries.values()]
        for own in control.queries.values():
            if own.text in self.later:
                self.spread[self.versions[own.text].name] = self.later[own.text]
        return super().work(driver, run, kept, rows, control)

    def wanted(self) -> dict[str, oracle.Bag]:
        """What each query has to give for its stay, by what the last run of each batch began with."""
        stays: dict[str, list[tuple[str, int, int, int]]] = {}
        for batch, control in sorted(self.begun.items()):
            for name, own in control.queries.items():
                of_name = stays.setdefault(name, [])
                if of_name and of_name[-1][0] == own.text:
                    text, first, since, _ = of_name[-1]
                    assert since == own.since
                    of_name[-1] = text, first, since, batch
                else:
                    of_name.append((own.text, batch, own.since, batch))
        newest = max(self.begun)
        return {name: self.due(of_name, newest) for name, of_name in stays.items()}

    def read_in(self, batch: int) -> set[str]:
        """The streams that some query read in a batch: of others no row was seen, and they had no floor."""
        queries = self.begun[batch].queries.values() if batch in self.begun else ()
        return {source.name for own in queries for source in self.versions[own.text].base_sources}

    def due(self, stays: list[tuple[str, int, int, int]], newest: int) -> oracle.Bag:
        found: oracle.Bag = Counter()
        for text, first, since, last in stays:
            query = self.versions[text]
            read = {source.name for source in query.base_sources}
            names = [frozenset(read & self.read_in(number)) for number in range(last + 1)]
            asked = text, first, since, last == newest, *names
            if asked not in self.told:
                given = zip(self.batches, names, strict=False)
                batches = [{n: r for n, r in batch.items() if n in some} for batch, some in given]
                tables = {n: r for n, r in self.tables.items() if n in read}
                self.told[asked] = oracle.expected_of_stay(query, batches, tables, first, since, last == newest)
            found += self.told[asked]
        return found

    def check(self, what: str = "") -> None:
        found, wanted = self.run(), self.wanted()
        for name, bag in wanted.items():
            assert not (wrong := oracle.difference(found[name], bag)), f"{what} {name}: {wrong}"
        for name in found.keys() - wanted.keys():
            assert not found[name], f"{name} never came"
        self.verify()
        assert not self.checkpoint.list(COMING), "all who are noted have come"


JOIN = "SELECT p.x AS x0, q.x AS x1 FROM a [RANGE 5 SECONDS] AS p, b [RANGE 5 SECONDS] AS q WHERE p.k = q.k"
OTHER = "SELECT p.x AS x0, q.x AS x1 FROM a [RANGE 2 SECONDS] AS p, b [RANGE 3 SECONDS] AS q WHERE p.k = q.k AND q.x > 3"
THIRD = "SELECT p.x AS x0, q.x AS x1 FROM a [RANGE 3 SECONDS] AS p, c [RANGE 3 SECONDS] AS q WHERE p.k = q.k"
GROUPS = "SELECT p.k, COUNT(*) AS n FROM b [RANGE 3 SECONDS] AS p GROUP BY p.k"


def query_of(workload: Workload, name: str, sql: str) -> Query:
    return bind_query(name, sql, parse_script(workload.script).catalog)


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
