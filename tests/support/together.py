"""Queries of a workload in one pipeline, beside each of them alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from anabranch.drive.kept import Kept
from anabranch.drive.local import LocalPipeline, Step
from anabranch.engine.slot import Slot
from anabranch.errors import MigrationError
from anabranch.plan.contained import ways_into
from anabranch.plan.jtree import Plan, left_deep
from anabranch.plan.migration import Strategy
from anabranch.plan.query import Query, Stream
from anabranch.share.canonical import part_in_names, renamed_plan, shape_of
from anabranch.storage.filesystem import MemoryFilesystem
from tests.support import oracle
from tests.support.scenarios import random_plan
from tests.support.workloads import Workload

STRATEGIES = list(Strategy)
COMPANIES = ("", "one", "other")


class Together:
    """Queries of a workload in one pipeline, batch after batch; between two of them it may be started anew."""

    def __init__(
        self,
        queries: Sequence[Query],
        table: pa.Table,
        slots: int = 1,
        readings: Sequence[pa.Table] = (),
        companies: Mapping[str, str] | None = None,
    ) -> None:
        """`readings` are what the table holds in each batch, if it changes; `companies` who is to run joins with whom."""
        self.queries, self.slots, self.disk = list(queries), slots, MemoryFilesystem()
        self.tables = {"t": table} if any(s.name == "t" for q in queries for s in q.base_sources) else {}
        self.number, self.readings, self.dropped, self.companies = 0, readings, list[str](), companies
        self.is_verified = len(queries) > 1
        """Who sees what of the state of one query is verified where that is tested by itself."""
        self.pipeline = self.started()

    def started(self) -> LocalPipeline:
        return LocalPipeline(
            self.queries, self.disk, tables=self.tables, slots=self.slots, dropped=self.dropped, release_every=1,
            sweep_grace_s=0.0, companies=self.companies,
            refresh={"t": (1_500_000, lambda: self.readings[self.number])} if self.readings and self.tables else None,
        )  # fmt: skip

    def restart(self) -> None:
        self.pipeline = self.started()

    def drop(self, name: str) -> None:
        """The others go on without a query."""
        if len(self.queries) > 1:
            self.queries = [query for query in self.queries if query.name != name]
            self.dropped.append(name)
            self.restart()

    def step(self, rows: dict[str, pa.Table]) -> dict[str, oracle.Bag]:
        read = {source.name for query in self.queries for source in query.base_sources}
        steps = self.pipeline.step(self.number, {name: table for name, table in rows.items() if name in read})
        if self.is_verified:
            self.pipeline.verify()
        self.number += 1
        for query in self.queries:
            self._check_counts(query, steps[query.name], rows)
        return {name: oracle.bag(step.results) for name, step in steps.items()}

    def _check_counts(self, query: Query, step: Step, rows: dict[str, pa.Table]) -> None:
        """A row is counted once, however many slots it goes to, and whoever else wants it there."""
        for source in query.base_sources:
            if not isinstance(source, Stream) or source.name not in rows:
                continue
            counts, times = step.statistics.sources[source.name], rows[source.name].column(source.time)
            late = pc.sum(pc.less(times.cast(pa.int64()), step.watermark_us)).as_py() or 0
            found = (counts.rows, counts.late_rows, counts.early_rows, counts.untimed_rows)
            assert found == (len(times), late, 0, times.null_count), (query.name, source.name)

    @property
    def slot(self) -> Slot:
        found = self.pipeline.slot()
        assert found is not None
        return found


def check_sharing(
    workload: Workload, slots: int, actions: Sequence[tuple[int, str, int, int]], turns: Sequence[int]
) -> None:
    """Whoever has a join in common runs it together."""
    check_companies(workload, slots, actions, turns, ("",))


def check_companies(
    workload: Workload,
    slots: int,
    actions: Sequence[tuple[int, str, int, int]],
    turns: Sequence[int],
    companies: Sequence[str],
) -> None:
    """All together, and each alone. Before some batches there are `actions`: a restart, a query gets another plan, all that
    have its join get another, it is dropped, it goes to another company, or rows are cut into other slices. Two workers take
    turns at the slots, and have to catch up. `companies` are those that queries start in, by turns."""
    named = {query.name: companies[place % len(companies)] for place, query in enumerate(workload.queries)}
    together, workers = Together(workload.queries, workload.table, slots, companies=named), [Kept(), Kept()]
    alone = {q.name: Together([q], workload.table) for q in workload.queries}
    whole: dict[str, oracle.Bag] = {name: Counter() for name in alone}
    batches = [workload.batch(number) for number in range(workload.batches)]
    for number, rows in enumerate([*batches, {}]):
        for at, what, which, how in actions:
            if at == number and number:
                act(together, what, workload.queries[which % workload.count], how)
        together.pipeline.worker = workers[turns[number % len(turns)]]
        for name, found in together.step(rows).items():
            problem = oracle.difference(found, alone[name].step(rows)[name])
            assert not problem, f"{name} in batch {number}, not as alone: {problem}\n{workload.script}"
            whole[name] += found
    for query in together.queries:
        read = {s.name for s in query.base_sources}
        own = [{n: table for n, table in rows.items() if n in read} for rows in batches]
        tables = {"t": workload.table} if "t" in read else {}
        problem = oracle.difference(whole[query.name], oracle.expected(query, own, tables))
        assert not problem, f"{query.name}: {problem}\n{workload.script}"


def cut_anew(run: Together, how: int) -> None:
    """Has rows that come be cut into slices at random: at windows, between them, beyond them, or by the rule."""
    rng = Workload(how, 2).rng("cut")
    windows: dict[str, set[int]] = {}
    for query in run.queries:
        for i in query.inputs:
            windows.setdefault(i.source.name, set()).add(i.window.length_us)
    chosen = {
        source: [us + int(rng.integers(-1, 2)) * int(rng.integers(2)) for us in sorted(found) if rng.integers(2)]
        for source, found in windows.items()
        if rng.integers(4)
    }
    run.pipeline.driver.slices = {source: tuple(sorted(found)) for source, found in chosen.items()}


def act(run: Together, what: str, query: Query, how: int) -> None:
    if what == "restart":
        run.restart()
    elif what == "cut":
        cut_anew(run, how)
    elif query.name not in run.pipeline.driver.queries:
        return
    elif what == "drop":
        run.drop(query.name)
    elif what == "groups":
        move_groups(run, query.name, how)
    elif what == "company":
        steering = run.pipeline.driver.queries[query.name]
        steering.execution = replace(steering.execution, company=COMPANIES[how % len(COMPANIES)])
    elif len(query.inputs) > 2 and run.pipeline.driver.queries[query.name].execution.grouped_input is None:
        steering = run.pipeline.driver.queries[query.name]
        query = steering.query  # it may have been altered
        plan: Plan = random_plan(Workload(how, 2).rng("plan"), steering.forms.graphs[None])
        strategy = STRATEGIES[how % len(STRATEGIES)]
        for other in run.queries if what == "plan of all" else [query]:
            its = _same_plan(plan, query, other)
            if its is None or len(other.inputs) < 3:
                continue
            try:
                run.pipeline.change(other.name, its, strategy, how % 3)
            except MigrationError:
                run.pipeline.change(other.name, its)


def move_groups(run: Together, name: str, how: int) -> None:
    """Has groups of a query go below a join, or above it again, if they can."""
    steering = run.pipeline.driver.queries[name]
    forms = steering.forms
    target = list(forms.graphs)[how % len(forms.graphs)]
    if target != steering.execution.grouped_input:
        strategy = Strategy.MOVING_STATE if how % 5 == 0 else Strategy.PARALLEL_TRACK
        with suppress(MigrationError):
            run.pipeline.change(name, left_deep(forms.graphs[target]), strategy, groups_below=target or "")


def _same_plan(plan: Plan, query: Query, other: Query) -> Plan | None:
    """The plan of a query as another has it: one with the same join, or one whose join is contained in the query's."""
    if other is query:
        return plan
    shape, its = shape_of(query), shape_of(other)
    if shape is None or its is None:
        return None
    if shape.text == its.text:
        return renamed_plan(plan, dict(zip(shape.order, its.order, strict=True)))
    ways = ({there: here for here, there in way.items()} for way in ways_into(other, query))
    return next((found for names in ways if (found := part_in_names(plan, names)) is not None), None)
