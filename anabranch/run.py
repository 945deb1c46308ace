"""The queries of a session while they run: what they do, and what can be asked of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from html import escape
from time import monotonic, sleep

from pyspark.sql import DataFrame

from anabranch.control.journal import Entry
from anabranch.control.lease import Holder
from anabranch.control.loop import Proposal, Wish
from anabranch.control.progress import Progress, Waiting
from anabranch.control.records import Ended
from anabranch.drive.steering import Steering
from anabranch.errors import MigrationError, SessionError
from anabranch.online import Online
from anabranch.place.databases.embedded import plain_name
from anabranch.plan.actions import PlaceBlock
from anabranch.plan.jtree import parse
from anabranch.plan.migration import Strategy, why_not_raise
from anabranch.plan.overload import Overload
from anabranch.plan.selects import raise_selects
from anabranch.plan.statement import FAIL
from anabranch.settings import strategy_of
from anabranch.show.explain import PlanText
from anabranch.spark.pipeline import Pipeline
from anabranch.spark.sinks import Sink
from anabranch.sql import parse_duration

POLL_S = 0.05
"""How often pipelines are asked whether they have ended."""


@dataclass(repr=False)
class Run:
    """The queries of a session, running."""

    holder: Holder
    pipelines: list[Pipeline] = field(default_factory=list)
    stopped: bool = False
    draw: Callable[[str], str] | None = None
    """Draws the plan of a query by what its newest batches measured."""
    online: Online | None = None
    """Has queries come and go."""
    changing: threading.RLock = field(default_factory=threading.RLock)
    """Held by whoever has a query come or go: a pipeline may be started anew meanwhile."""
    command_error: Exception | None = None
    """Why commands could not be looked for, the last time that failed."""
    database_failure: str = FAIL
    """What becomes of statements that fail, of blocks that go to a database while their queries run."""

    @property
    def queries(self) -> dict[str, Steering]:
        return {name: query for p in self.pipelines for name, query in p.host.driver.queries.items()}

    @property
    def plans(self) -> dict[str, PlanText]:
        """The plan each query runs under; a notebook draws it."""
        return {name: PlanText(query.plan_text, name, self.draw) for name, query in self.queries.items()}

    @property
    def progress(self) -> dict[str, list[Progress]]:
        """What each query did in its latest batches."""
        return {name: list(steps) for p in self.pipelines for name, steps in p.host.progress.items()}

    @property
    def waiting_files(self) -> dict[str, dict[str, Waiting]]:
        """The files that each query does not read yet because they are not complete, by stream."""
        found: dict[str, dict[str, Waiting]] = {}
        for pipeline in self.pipelines:
            waiting = pipeline.host.waiting()
            for name, query in pipeline.host.driver.queries.items():
                found[name] = {stream: files for stream, files in waiting.items() if stream in query.streams}
        return found

    @property
    def journal(self) -> dict[str, list[Entry]]:
        """What was decided about each query and why, since its checkpoint was new."""
        return {name: query.journal.entries() for name, query in self.queries.items()}

    @property
    def undelivered(self) -> dict[str, int]:
        """Of how many batches the results of each query have not been taken by its sink."""
        return {name: count for p in self.pipelines for name, count in p.host.delivery.waiting.items()}

    @property
    def failing(self) -> dict[str, Exception]:
        """The sinks that fail at the moment, by query: they are tried again, and their results wait."""
        return {name: error for p in self.pipelines for name, error in p.host.delivery.failing.items()}

    @property
    def waits_for(self) -> dict[str, str]:
        """The queries whose batch waits for a database at the moment, and what is said of that
        (`lookup_failure="wait"`)."""
        found: dict[str, str] = {}
        for pipeline in self.pipelines:
            if said := pipeline.host.runner.patience.waits_for:
                found |= dict.fromkeys(pipeline.host.driver.queries, said)
        return found

    @property
    def failures(self) -> dict[str, Ended]:
        """The queries that have left their pipelines: from which batch on their results are not computed, and why."""
        return {name: ended for p in self.pipelines for name, ended in p.host.driver.has_left.items()}

    def migrate(
        self,
        name: str,
        plan: str,
        strategy: str | None = None,
        pause: str | timedelta = "500 milliseconds",
        groups_below: str | None = None,
        selects_above: Mapping[str, str] | None = None,
    ) -> None:
        """Changes the plan of a query from its next batch on, without a result lost or repeated. `strategy` is
        "moving-state", "parallel-track" or "gradual", by default the cheapest of which no batch waits longer than `pause`.
        A migration under way is given up for it. `groups_below` names an input whose rows are grouped before they are
        joined, or "" to have the groups above the join again. `selects_above` names predicates that rows pass only where
        they are joined: all of an input (`{"a": "a b"}`: above the join of a and b), those that read a column
        (`{"a.s": "a b"}`), or single ones by their text as `explain` shows it; those that are not named are evaluated when
        a row comes in, as all are by default."""
        query = self._query(name)
        way = strategy_of(strategy) if strategy is not None else None
        grouped_input = query.execution.grouped_input if groups_below is None else groups_below or None
        if grouped_input not in query.forms.graphs:
            reason = query.forms.why_not(query.execution.grouped_input, grouped_input)
            raise MigrationError(reason or f"there is no input {grouped_input}")
        parsed = parse(plan, query.forms.graphs[grouped_input])
        selects = None if selects_above is None else raise_selects(query.query, selects_above)
        if selects is not None:
            if grouped_input != query.execution.grouped_input:
                raise MigrationError("groups and selects go elsewhere one after the other: ask for one of them at a time")
            if reason := why_not_raise(query.execution, query.graph, selects, way or Strategy.MOVING_STATE):
                raise MigrationError(reason)
        wish = Wish(parsed, grouped_input, way, parse_duration(pause, "pause"), selects)
        query.request(query.loop.granted(query.execution, wish))

    def place(self, name: str, block: str, place: str, pause: str | timedelta = "500 milliseconds") -> None:
        """Has a block of a query that a database may run (`explain` says which) run there from the next batch on, or in the
        "engine"; without a result lost or repeated. `block` is the alias of a subquery, or the name of the query. A block
        over one stream that began in the engine goes when the rows of its window are kept; one with groups comes to the
        engine when its rows are folded, which no batch works at for longer than `pause`. The journal says when."""
        query = self._query(name)
        called = block if block == name else f"{name}.{block}"
        way, pause_us = Strategy.GRADUAL, parse_duration(pause, "pause")
        action = PlaceBlock(called, plain_name(place), query.execution.plan, way, pause_us, self.database_failure)
        query.request(Proposal(action, "by request"))

    def add_query(
        self,
        name: str,
        sql: str,
        sink: Sink | Callable[[DataFrame, int], None] | None = None,
        plan: str | None = None,
        history: bool = False,
        overload: Overload | None = None,
    ) -> str:
        """Has a query come in with the next batch, among those that read its streams. Rows of that batch are the first of
        its own; with `history` it also has the combinations of new rows with rows that came before, if some query that runs
        keeps them. It runs on when the session is started again, although no script declares it. A stream that nobody
        reads comes with it, if the sources of its pipeline have names in Spark. Else, and where it has no stream in common
        with others, would connect two pipelines, or is to do something else under overload than others (`overload`; None: as
        the session says), it gets a pipeline of its own, and reads its streams from the beginning. What is told of it: the
        journal says from when on its results are complete."""
        return self._online.add(name, sql, sink, plan, history, overload)

    def alter_query(self, name: str, sql: str) -> str:
        """Has another query take the place of one, in one batch: a combination whose last row came before is the old
        query's, any other the new one's. It is refused where the rows that are stored are not enough for that, and where it
        has other columns than results that its sink keeps (files, a table, `memory`)."""
        return self._online.alter(name, sql)

    def drop_query(self, name: str) -> str:
        """Has a query leave its pipeline with the next batch: its results are not computed from then on, and its state is
        given up; what waits for its sink is delivered. The others go on. It stays dropped when the session is started
        again, although it is declared: `start(fresh=[name])` has it start anew. The last query cannot be dropped: stop the
        run instead."""
        return self._online.drop(name)

    @property
    def _online(self) -> Online:
        assert self.online is not None, "the run has started"
        return self.online

    def pin(self, name: str) -> None:
        """Keeps the plan of a query as it is, until `unpin`; `migrate` still works."""
        self._query(name).is_pinned = True

    def unpin(self, name: str) -> None:
        """Lets the plan of a query change with what is measured."""
        self._query(name).is_pinned = False

    def approve(self, name: str) -> bool:
        """Agrees to the change that was last proposed for a query; False if there is none."""
        return self._query(name).approve()

    @property
    def _state(self) -> str:
        is_over = bool(self.pipelines) and all(p.is_over for p in self.pipelines)
        return "stopped" if self.stopped else "ended" if is_over else "running"

    def __repr__(self) -> str:
        """What each query does, a line each."""
        return "\n".join([f"<Run, {self._state}>", *(f"  {name}: {_last(steps)}" for name, steps in self.progress.items())])

    def _repr_html_(self) -> str:
        lines = [
            f"<tr><td><b>{escape(name)}</b></td><td>{escape(_last(steps))}</td></tr>"
            for name, steps in self.progress.items()
        ]
        return f"<p>Run, {self._state}</p><table>{''.join(lines)}</table>"

    def _query(self, name: str) -> Steering:
        queries = self.queries
        if name not in queries:
            if name in self.failures:
                raise SessionError(f"query {name} has left its pipeline: {self.failures[name].reason}")
            raise SessionError(f"no query {name} runs; running are: {', '.join(queries) or 'none'}")
        return queries[name]

    def pipeline(self, name: str) -> Pipeline:
        """The pipeline that a query runs in."""
        self._query(name)
        return next(p for p in self.pipelines if name in p.host.driver.queries)

    def await_termination(self, timeout_s: float | None = None) -> bool:
        """Waits until all queries have ended; the first that failed raises its error. False if time ran out."""
        deadline = None if timeout_s is None else monotonic() + timeout_s
        while True:
            with self.changing:
                try:
                    left = [p for p in self.pipelines if not p.has_ended(self.stopped)]
                finally:
                    if all(p.is_over for p in self.pipelines):
                        self._release()
            if not left:
                return True
            if deadline is not None and monotonic() >= deadline:
                return False
            sleep(POLL_S if deadline is None else max(0.0, min(POLL_S, deadline - monotonic())))

    def stop(self) -> None:
        """Stops all queries. What was committed stays; start the session again to go on."""
        self.stopped = True
        if self.online is not None:
            self.online.stop()
        with self.changing:
            for pipeline in self.pipelines:
                pipeline.stop()
            self._release()

    def _release(self) -> None:
        if self.online is not None:
            self.online.stop()
        self.holder.release()


def _last(steps: list[Progress]) -> str:
    return repr(steps[-1]).strip("<>") if steps else "no batch has been committed yet"
