"""Queries that come, go and change while others run, and what each has to give for its stay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from anabranch.drive.kept import Kept
from anabranch.errors import SessionError
from anabranch.plan.query import Query, Stream
from tests.support import oracle
from tests.support.together import Together, act
from tests.support.workloads import Workload

Action = tuple[int, str, int, int]
"""Before which batch, what, of which query, and how."""


@dataclass
class Stay:
    """A query while it runs: since when, which rows before that are its own, and what it has given."""

    query: Query
    first: int = 0
    since: int = 0
    found: oracle.Bag = field(default_factory=Counter)


class Changing(Together):
    """Some queries of a workload in one pipeline; others come in, and some go."""

    def __init__(self, workload: Workload, slots: int, count: int) -> None:
        super().__init__(workload.queries[:count], workload.table, slots)
        self.tables = {"t": workload.table}
        self.restart()
        self.workload, self.over = workload, list[tuple[Stay, int]]()
        self.stays = {query.name: Stay(query) for query in self.queries}
        self.pending: dict[str, tuple[Query, bool]] = {}
        self.leaving: set[str] = set()

    def restart(self) -> None:
        """A new driver goes on with the queries that the last commit has; who was to come is asked in again."""
        super().restart()
        for query, history in getattr(self, "pending", {}).values():
            self.pipeline.add(query, history=history)
        for name in getattr(self, "leaving", ()):
            self.pipeline.drop(name)

    def add(self, query: Query, history: bool) -> bool:
        """Asks a query in, or one of the same name to take its place. Whether it can come."""
        if query.name in self.pending or query.name in self.leaving or not self._reads(query):
            return False
        try:
            self.pipeline.add(query, history=history)
        except SessionError:
            assert history, "every query can come without history"
            return False
        self.pending[query.name] = query, history
        return True

    def _reads(self, query: Query) -> bool:
        """Whether the streams of a query are read: of others the pipeline does not know how far they have come."""
        stays = [stay.query for name, stay in self.stays.items() if name not in self.leaving and name != query.name]
        read = {source.name for each in stays for source in each.base_sources}
        return all(s.name in read for s in query.base_sources if isinstance(s, Stream)) or query.name in self.stays

    def leave(self, name: str) -> None:
        """Asks a query to go with the next batch."""
        if name in self.stays and name not in self.pending and self.stays.keys() - self.leaving - {name}:
            self.leaving.add(name)
            self.pipeline.drop(name)

    def take(self, rows: dict[str, pa.Table]) -> None:
        """Runs a batch, and notes what each query gives."""
        for name, (query, _) in self.pending.items():
            if name in self.stays:
                self.over.append((self.stays.pop(name), self.number))
            self.stays[name] = Stay(query, self.number)
        for name in self.leaving:
            self.over.append((self.stays.pop(name), self.number))
        self.queries = [stay.query for stay in self.stays.values()]
        self.pending, self.leaving = {}, set()
        for name, found in self.step(rows).items():
            stay = self.stays[name]
            stay.since = self.pipeline.driver.queries[name].since
            assert stay.since <= stay.first
            stay.found += found


def check_coming(
    workload: Workload, slots: int, count: int, actions: Sequence[Action], turns: Sequence[int]
) -> None:
    """Queries come, go and change at random batches, two workers take turns, plans change and the driver is started anew:
    each query gives what the oracle says of its stay."""
    run, workers = Changing(workload, slots, min(count, workload.count - 1)), [Kept(), Kept()]
    batches = [workload.batch(number) for number in range(workload.batches)]
    known = [*workload.queries]
    for number, rows in enumerate([*batches, {}]):
        for at, what, which, how in actions:
            if at != number or not number:
                continue
            query = known[which % workload.count]
            gone = {stay.query.name for stay, _ in run.over}
            if what in ("add", "history") and query.name not in run.stays.keys() | gone:
                run.add(query, what == "history")
            elif what == "alter" and query.name in run.stays:
                other = replace(known[how % workload.count], name=query.name)
                run.add(other, history=True)
            elif what == "leave":
                run.leave(query.name)
            elif what in ("plan", "plan of all", "restart", "cut") and not run.pending:
                act(run, what, query, how)
        run.pipeline.worker = workers[turns[number % len(turns)]]
        run.take(rows)
    for stay, last in [*run.over, *((stay, len(batches)) for stay in run.stays.values())]:
        query, closes = stay.query, any(stay is each for each in run.stays.values())
        read = {s.name for s in query.base_sources}
        own = [{n: table for n, table in rows.items() if n in read} for rows in batches[:last]]
        tables = {"t": workload.table} if "t" in read else {}
        wanted = oracle.expected_of_stay(query, own, tables, stay.first, stay.since, closes)
        problem = oracle.difference(stay.found, wanted)
        assert not problem, f"{query.name} from batch {stay.first} (rows since {stay.since}): {problem}\n{workload.script}"
