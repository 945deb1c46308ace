"""Queries that share a slot give what each gives alone, batch by batch, and what the oracle says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pyarrow as pa
from hypothesis import strategies as st

from anabranch.balance.partition import choose_distribution
from anabranch.control.records import Manifest, Statistics
from anabranch.control.watermark import seen_after, watermark_of
from anabranch.engine.aggregation import Aggregator
from anabranch.engine.cells import source_mask
from anabranch.engine.slot import ONE_SLOT, Slot, Tenant, Times
from anabranch.plan.distribution import Distribution, all_inputs
from anabranch.plan.eager import Forms
from anabranch.plan.identity import RowsKey
from anabranch.plan.jtree import left_deep, parse
from anabranch.plan.migration import Execution, Migration, Strategy, why_not_parallel
from anabranch.plan.query import BEGINNING_US, Query
from anabranch.sql import parse_script
from anabranch.storage.container import ContainerReader
from anabranch.storage.filesystem import MemoryFilesystem
from tests.support import oracle
from tests.support.scenarios import properties, random_plan
from tests.support.workloads import Workload, workloads

STRATEGIES = list(Strategy)


class Shared:
    """Some queries in the slots of one run, driven by hand."""

    def __init__(self, queries: Sequence[Query], table: pa.Table, slots: int = 1) -> None:
        self.queries, self.table = {query.name: query for query in queries}, table
        self.forms = {query.name: Forms(query) for query in queries}
        self.executions = {q.name: Execution(left_deep(self.forms[q.name].graphs[None])) for q in queries}
        self.spread: dict[str, Distribution] = {
            q.name: ONE_SLOT if slots == 1 else choose_distribution(q, slots, may_skip_exchange=False) for q in queries
        }
        self.disks = [MemoryFilesystem() for _ in range(slots)]
        self.slots = [self._slot(cell) for cell in range(slots)]
        self.states: list[Manifest | None] = [None] * slots
        self.seen: dict[str, dict[str, int]] = {name: {} for name in self.queries}
        self.times = {name: Times(BEGINNING_US) for name in self.queries}
        self.number = 0

    def _slot(self, cell: int) -> Slot:
        disk = self.disks[cell]
        tenants = [
            Tenant(self.forms[n], self.executions[n], self.spread[n]) for n in self.queries if self._has(n, cell)
        ]
        return Slot(tenants, "state", disk, ContainerReader(disk), cell)

    def _has(self, name: str, cell: int) -> bool:
        """A query may need fewer slots than there are."""
        return cell < self.spread[name].grid.cells

    def restart(self) -> None:
        """Every slot is attached anew."""
        for cell in range(len(self.slots)):
            self.slots[cell] = self._slot(cell)
            self.slots[cell].attach(self.states[cell], self._next_times())

    def migrate(self, name: str, execution: Execution) -> None:
        self.executions[name] = execution
        for cell, slot in enumerate(self.slots):
            if self._has(name, cell):
                slot.redirect(name, execution, self._next_times())

    def _next_times(self) -> dict[str, Times]:
        return {n: Times(watermark_of(q, self.seen[n]), self.times[n].watermark_us) for n, q in self.queries.items()}

    def step(self, rows: dict[str, pa.Table]) -> dict[str, oracle.Bag]:
        times, found = self._next_times(), dict[str, list[pa.RecordBatch]]()
        if self.number == 0:
            rows = {**rows, "t": self.table}
        counted: dict[str, list[Statistics]] = {name: [] for name in self.queries}
        for cell, slot in enumerate(self.slots):
            for name, piece in slot.step(self.number, self._share(cell, rows), times):
                found.setdefault(name, []).append(piece)
            self.states[cell], _ = slot.save(self.number, f"attempt{self.number}")
            slot.relocate()
            slot.verify()
            for name, statistics in slot.statistics.items():
                counted[name].append(statistics)
        self.times, self.number = times, self.number + 1
        for name, query in self.queries.items():
            self.seen[name] = seen_after(self.seen[name], counted[name])
            self._end(name, counted[name])
            if self.spread[name].groups_span_slots and name in found:
                assert query.grouping is not None
                found[name] = Aggregator(query.grouping, query.row_schema).combine(found[name])
        return {name: bag_of(found.get(name, [])) for name in self.queries}

    def _end(self, name: str, counted: Sequence[Statistics]) -> None:
        """A migration is over when every slot is ready for its target."""
        execution = self.executions[name]
        if execution.target is not None and all(s.preparing.left == 0 for s in counted):
            self.migrate(name, Execution(execution.target))

    def _share(self, cell: int, rows: dict[str, pa.Table]) -> dict[str, pa.Table]:
        """The rows that belong to a slot for the sake of any query."""
        found = {}
        for name, given in rows.items():
            readers = [
                q for q in self.queries.values() for s in q.base_sources if s.name == name and self._has(q.name, cell)
            ]
            if not readers:
                continue
            mask = None
            for query in readers:
                (source,) = [s for s in query.base_sources if s.name == name]
                own = source_mask(self.spread[query.name].grid, cell, all_inputs(query), source, given)
                mask = own if mask is None else mask | own
            found[name] = given.filter(pa.array(mask))
        return found


def bag_of(pieces: Sequence[pa.RecordBatch]) -> oracle.Bag:
    found: oracle.Bag = Counter()
    for piece in pieces:
        found += oracle.bag(pa.Table.from_batches([piece]))
    return found


def check_sharing(workload: Workload, slots: int, actions: Sequence[tuple[int, str, int, int]]) -> None:
    """All together, and each alone. Before some batches there are `actions`: a restart, or a query gets another plan."""
    together = Shared(workload.queries, workload.table, slots)
    alone = {q.name: Shared([q], workload.table) for q in workload.queries}
    whole: dict[str, oracle.Bag] = {name: Counter() for name in alone}
    batches = [workload.batch(number) for number in range(workload.batches)]
    for number, rows in enumerate([*batches, {}]):
        for at, what, which, how in actions:
            if at == number and number:
                act(together, what, workload.queries[which % workload.count], how)
        found = together.step(rows)
        for name, run in alone.items():
            own = {n: table for n, table in rows.items() if n in {s.name for s in run.queries[name].base_sources}}
            problem = oracle.difference(found[name], run.step(own)[name])
            assert not problem, f"{name} in batch {number}, not as alone: {problem}\n{workload.script}"
            whole[name] += found[name]
    for query in workload.queries:
        read = {s.name for s in query.base_sources}
        own = [{n: table for n, table in rows.items() if n in read} for rows in batches]
        tables = {"t": workload.table} if "t" in read else {}
        problem = oracle.difference(whole[query.name], oracle.expected(query, own, tables))
        assert not problem, f"{query.name}: {problem}\n{workload.script}"


def act(run: Shared, what: str, query: Query, how: int) -> None:
    if what == "restart":
        run.restart()
        return
    graph, execution = run.forms[query.name].graphs[None], run.executions[query.name]
    if len(query.inputs) < 3 or execution.migration is not None:
        return
    plan = random_plan(Workload(how, 2).rng("plan"), graph)
    strategy = STRATEGIES[how % len(STRATEGIES)]
    if strategy is Strategy.PARALLEL_TRACK and why_not_parallel(graph, execution.plan, plan):
        strategy = Strategy.MOVING_STATE
    if strategy is Strategy.MOVING_STATE:
        run.migrate(query.name, Execution(plan))
    elif plan != execution.plan:
        run.migrate(query.name, Execution(execution.plan, Migration(plan, strategy, run.number, how % 3)))


ACTIONS = st.lists(
    st.tuples(st.integers(1, 9), st.sampled_from(["plan", "restart", "plan"]), st.integers(0, 7), st.integers(0, 99)),
    max_size=5,
)

test_sharing, test_sharing_long = properties(
    check_sharing, 15, 4_000, workload=workloads(), slots=st.sampled_from([1, 2, 4]), actions=ACTIONS
)


# What is shared is there once.

CREATE = "".join(f"CREATE STREAM {s} (k BIGINT, j BIGINT, x BIGINT, ts TIMESTAMP) TIME ts;\n" for s in "abc")


def shared_of(*selects: str) -> Shared:
    script = CREATE + "".join(f"CREATE QUERY q{n} AS {select};\n" for n, select in enumerate(selects))
    return Shared([declared.query for declared in parse_script(script).queries], pa.table({}))


def fed(run: Shared, batches: int = 6, rows: int = 50, missing: int = 0) -> Shared:
    """Feeds equal batches: of every `missing`-th row j is NULL."""
    for number in range(batches):
        j = pa.array([None if missing and n % missing == 0 else n % 5 for n in range(rows)], pa.int64())
        ts = pa.array([number * 1_000_000 + n for n in range(rows)], pa.timestamp("us"))
        run.step(
            {s: pa.table({"k": pa.array(range(rows)), "j": j, "x": pa.array(range(rows)), "ts": ts}) for s in "abc"}
        )
    return run


def keys_of(run: Shared) -> set[str]:
    """The indexes over sources."""
    return {str(key) for key in run.slots[0].store.spines if isinstance(key.rows, RowsKey)}


def test_a_subquery_over_the_stream_of_its_outer_query_stores_it_once() -> None:
    join = "SELECT a.x, b.x AS y FROM a [RANGE 3 SECONDS], b [RANGE 3 SECONDS] WHERE a.k = b.k"
    counted = f"SELECT a.k, COUNT(*) AS n {join[join.index('FROM') :]} GROUP BY a.k"
    nested = join.replace(" WHERE", f", ({counted}) AS g WHERE") + " AND g.k = a.k"
    one, two = (fed(shared_of(sql)).slots[0] for sql in (join, nested))
    assert set(two.store.logs) == {"a", "b", "q0.g"}
    for name in "ab":
        assert two.store.logs[name].bytes <= 1.5 * one.store.logs[name].bytes, "kept for a batch longer"
    manifest, _ = two.save(6, "again")
    stored = [segment.batch for segment in two.checkpoint.read(manifest).logs if segment.source == "a"]
    assert len(stored) == len(set(stored)) == len(two.store.logs["a"].segments), "one segment for each batch"


def test_indexes_are_shared_whatever_windows_aliases_and_other_keys() -> None:
    run = fed(shared_of(
        "SELECT a.x FROM a [RANGE 3 SECONDS], b [RANGE 3 SECONDS] WHERE a.k = b.k",
        "SELECT p.x FROM b [RANGE 1 SECOND] AS o, a [RANGE 2 SECONDS] AS p WHERE p.k = o.k",
        "SELECT a.x FROM a [RANGE 3 SECONDS], b [RANGE 3 SECONDS], c [NOW] WHERE a.k = b.k AND a.j = c.j AND a.x > 7",
    ), missing=7)  # fmt: skip
    assert keys_of(run) == {
        "a by (a.k)", "b by (b.k)", "a by (a.k) where (a.x > 7)", "c by (c.j)",
    }  # fmt: skip


def test_a_row_without_another_key_is_stored_once_and_seen_by_who_may() -> None:
    """q0 joins a by k, q1 by k and j: rows without a j are in the index that both look up."""
    run = fed(shared_of(
        "SELECT a.x, b.x AS y FROM a [RANGE 3 SECONDS], b [RANGE 3 SECONDS] WHERE a.k = b.k",
        "SELECT a.x, b.x AS y FROM a [RANGE 3 SECONDS], b [RANGE 3 SECONDS], c [NOW] WHERE a.k = b.k AND a.j = c.j",
    ), missing=7)  # fmt: skip
    assert keys_of(run) == {"a by (a.k)", "b by (b.k)", "c by (c.j)"}
    watches = {name: box.reader.watches for name, box in run.slots[0].boxes.items()}
    assert not watches["q0"]["a"].suspects
    assert watches["q1"]["a"].suspects >= set(run.slots[0].store.logs["a"].segments)


def test_rows_are_kept_for_whoever_needs_them_longest() -> None:
    short = "SELECT a.x FROM a [RANGE 1 SECOND], b [RANGE 1 SECOND] WHERE a.k = b.k"
    run, alone = fed(shared_of(short, short.replace("1 SECOND", "5 SECONDS")), 9), fed(shared_of(short), 9)
    kept, few = (set(each.slots[0].store.logs["a"].segments) for each in (run, alone))
    assert few < kept
    assert len(few) <= 3
    assert len(kept) >= 5


def test_equal_views_are_kept_by_one_of_their_readers() -> None:
    sql = "SELECT a.x, b.x AS y, c.x AS z FROM a, b, c WHERE a.k = b.k AND a.k = c.k WINDOW 3 SECONDS"
    other = sql.replace("a.x, b.x AS y, c.x AS z", "RESULT_TIME AS t, a.j")
    run, alone = shared_of(sql, other), shared_of(sql)
    for each in (run, alone):
        for name in each.queries:
            graph = each.forms[name].graphs[None]
            each.migrate(name, Execution(parse("((a b) c)", graph)))
        fed(each)
    (view,) = run.slots[0].store.views.values()
    (own,) = alone.slots[0].store.views.values()
    assert view.rows == own.rows > 0


def test_what_a_reader_watches_goes_with_its_segments() -> None:
    """Of every seventh row j is NULL, and the watermark of q1 is ahead: each batch has rows that q1 must not see."""
    script = (
        CREATE.replace("TIME ts;", "TIME ts LATENESS 3 SECONDS;", 1)
        + """
    CREATE QUERY q0 AS SELECT a.x FROM a [RANGE 2 SECONDS], b [RANGE 2 SECONDS] WHERE a.k = b.k;
    CREATE QUERY q1 AS SELECT b.x FROM b [RANGE 2 SECONDS], c [RANGE 2 SECONDS] WHERE b.k = c.k AND b.j = c.j;
    """
    )
    run = Shared([declared.query for declared in parse_script(script).queries], pa.table({}))
    for number in range(40):
        rows = {"k": list(range(14)), "j": [None, 1, 2, 3, 4, 5, 6] * 2, "x": list(range(14))}
        late = pa.array([number * 1_000_000 - n * 200_000 for n in range(14)], pa.timestamp("us"))
        run.step({s: pa.table({**rows, "ts": late}) for s in "abc"})
    watch, kept = run.slots[0].boxes["q1"].reader.watches["b"], set(run.slots[0].store.logs["b"].segments)
    assert watch.watermarks
    assert watch.suspects <= kept
    assert watch.watermarks.keys() <= kept
    assert len(kept) < 12
