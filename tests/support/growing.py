"""A simulation whose queries come, change and go, and queries for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from anabranch.balance.together import join_others, restored
from anabranch.control.lease import Holder
from anabranch.control.ledger import commits_in
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
from tests.support import oracle
from tests.support.simulation import Files, Simulation
from tests.support.workloads import Workload


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
OTHER = (
    "SELECT p.x AS x0, q.x AS x1 FROM a [RANGE 2 SECONDS] AS p, b [RANGE 3 SECONDS] AS q WHERE p.k = q.k AND q.x > 3"
)
THIRD = "SELECT p.x AS x0, q.x AS x1 FROM a [RANGE 3 SECONDS] AS p, c [RANGE 3 SECONDS] AS q WHERE p.k = q.k"
GROUPS = "SELECT p.k, COUNT(*) AS n FROM b [RANGE 3 SECONDS] AS p GROUP BY p.k"


def query_of(workload: Workload, name: str, sql: str) -> Query:
    return bind_query(name, sql, parse_script(workload.script).catalog)
