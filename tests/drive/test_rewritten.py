"""A query that is written in another way when it starts again goes on with its state, if that has what it selects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st

from anabranch.control.query_texts import identity_of
from anabranch.drive.local import LocalRun
from anabranch.errors import ForeignStateError
from anabranch.plan.query import Query
from anabranch.sql import parse_script
from anabranch.storage.filesystem import MemoryFilesystem
from tests.support import oracle
from tests.support.cases import Part
from tests.support.faulty import Crash, Fault
from tests.support.scenarios import properties
from tests.support.simulation import Simulation
from tests.support.workloads import Workload

STREAMS = """
CREATE STREAM a (k BIGINT, j BIGINT, x BIGINT, s STRING{more}, ts TIMESTAMP) TIME ts LATENESS 1 SECOND;
CREATE STREAM b (k BIGINT, j BIGINT, x BIGINT, s STRING, ts TIMESTAMP) TIME ts;
CREATE STREAM c (k BIGINT, j BIGINT, x BIGINT, s STRING, ts TIMESTAMP) TIME ts;
CREATE TABLE t (k BIGINT, j BIGINT, x BIGINT, s STRING);
"""
SHAPES = {
    "join": "a [RANGE 3 SECONDS], b [RANGE 2 SECONDS] WHERE a.k = b.k AND a.x > 1",
    "three": "a [RANGE 2 SECONDS], b [RANGE 2 SECONDS], c [RANGE 2 SECONDS] WHERE a.k = b.k AND b.k = c.k",
    "table": "a [NOW], t WHERE a.k = t.k",
    "alone": "a [NOW] WHERE a.x > 1",
    "below": "(SELECT k, MAX(x) AS m FROM a [RANGE 2 SECONDS] GROUP BY k) AS g, b [RANGE 2 SECONDS] WHERE g.k = b.k",
}
FREE = {"alone": "a", "table": "a"}
"""Of these inputs nothing is stored: any column may be selected of them."""
COLUMNS = {
    "join": ("a.k", "a.j", "a.x + b.x", "b.s", "b.ts", "RESULT_TIME"),
    "three": ("a.s", "b.k", "b.x * 2", "c.s || 'z'", "c.ts"),
    "table": ("a.k", "t.s", "a.x + t.x", "t.j"),
    "alone": ("k", "x + 1", "s", "ts"),
    "below": ("g.m", "g.k", "b.x", "b.s"),
}
AGGREGATES = ("COUNT(*)", "SUM({0}.x)", "MAX({1}.x)", "COUNT(DISTINCT {1}.s)", "AVG({0}.x)", "MIN({0}.s)")
KEYS = ("{0}.k", "{1}.s")
GROUPED = {"join": "ab", "three": "ac", "alone": "aa"}


@dataclass(frozen=True)
class Rewriting:
    """A query, and another way to write it."""

    seed: int
    shape: str
    is_grouped: bool
    batches: int = 6

    def chosen(self, what: str, of: tuple[str, ...], least: int = 1) -> list[str]:
        rng = np.random.default_rng([self.seed, len(what), ord(what[0])])
        count = int(rng.integers(least, len(of) + 1))
        return [of[place] for place in rng.permutation(len(of))[:count]]

    @cached_property
    def scripts(self) -> tuple[str, str]:
        """How it is written at first, and then."""
        if not self.is_grouped or self.shape not in GROUPED:
            before = tuple(self.chosen("first", COLUMNS[self.shape]))
            after = self.chosen("then", before)
            if self.shape in FREE:
                after += [f"{FREE[self.shape]}.s", f"{FREE[self.shape]}.j"]
            first, then = _list(before, "x"), _list(after, "y")
            return self._script(f"{first} FROM {SHAPES[self.shape]}", ""), self._script(
                f"{then} FROM {SHAPES[self.shape]}", ", more DOUBLE"
            )
        aliases = GROUPED[self.shape]
        keys, aggregates = [tuple(x.format(*aliases) for x in of) for of in (KEYS, AGGREGATES)]
        before, by = tuple(self.chosen("first", aggregates)), self.chosen("keys", keys)
        after = [*self.chosen("then", before), *self.chosen("which", tuple(by), 0)]
        having = f" HAVING {before[0]} > 1" if before[0].startswith(("COUNT", "SUM", "AVG")) else ""
        first = f"{_list((*by, *before), 'x')} FROM {SHAPES[self.shape]} GROUP BY {', '.join(by)}"
        then = f"{_list(after, 'y')} FROM {SHAPES[self.shape]} GROUP BY {', '.join(reversed(by))}{having}"
        return self._script(first, ""), self._script(then, ", more DOUBLE")

    def _script(self, select: str, more: str) -> str:
        return f"{STREAMS.format(more=more)} CREATE QUERY q AS SELECT {select}"

    @cached_property
    def queries(self) -> tuple[Query, Query]:
        first, then = (parse_script(script).queries[0].query for script in self.scripts)
        return first, then

    @cached_property
    def _rows(self) -> Workload:
        return Workload(self.seed, 1, self.batches, 14)

    @property
    def tables(self) -> dict[str, pa.Table]:
        return {"t": self._rows.table} if self.shape == "table" else {}

    def rows(self, query: Query) -> list[dict[str, pa.Table]]:
        """The batches; a column that the stream has only later is NULL in all of them."""
        found = []
        for number in range(self.batches):
            batch = {name: rows for name, rows in self._rows.batch(number).items() if name in self._read(query)}
            if query is self.queries[1] and "a" in batch:
                nulls = pa.nulls(batch["a"].num_rows, pa.float64())
                batch["a"] = batch["a"].add_column(4, "more", nulls)
            found.append(batch)
        return [*found, {}]

    def _read(self, query: Query) -> set[str]:
        return {source.name for source in query.base_sources}


def _list(shown: tuple[str, ...] | list[str], name: str) -> str:
    return ", ".join(f"{expr} AS {name}{place}" for place, expr in enumerate(shown))


def rewritings() -> st.SearchStrategy[Rewriting]:
    return st.builds(Rewriting, st.integers(0, 2**32 - 1), st.sampled_from(list(SHAPES)), st.booleans())


@lru_cache(maxsize=2)
def by_batch(case: Rewriting) -> tuple[list[oracle.Bag], list[oracle.Bag]]:
    """What each batch gives of the query, written in one way or the other from the beginning."""
    first, then = (_given(case, query) for query in case.queries)
    return first, then


def _given(case: Rewriting, query: Query) -> list[oracle.Bag]:
    run = LocalRun(query, MemoryFilesystem(), tables=case.tables)
    return [oracle.bag(run.step(number, rows).results) for number, rows in enumerate(case.rows(query))]


def check_goes_on(case: Rewriting, at: int, slots: int) -> None:
    """Before the restart results are those of the query as it was, and after it those of the query as it is: as if it had
    been so from the beginning. It may be written as it was again."""
    (first, then), disk, found = case.queries, MemoryFilesystem(), []
    wanted = by_batch(case)
    lives = [(first, 0, at), (then, at, at + 2), (first, at + 2, at + 3), (then, at + 3, case.batches + 1)]
    for query, begin, end in lives:
        if begin >= case.batches + 1:
            break
        run = LocalRun(query, disk, tables=case.tables, slots=slots)
        for number in range(begin, min(end, case.batches + 1)):
            found.append(oracle.bag(run.step(number, case.rows(query)[number]).results))
            expected = wanted[0 if query is first else 1][number]
            assert not (wrong := oracle.difference(found[-1], expected)), f"{case.scripts} batch {number}: {wrong}"
        run.verify()
    total = sum(wanted[1], type(wanted[1][0])())
    assert not oracle.difference(total, oracle.expected(then, case.rows(then), case.tables))


test_goes_on, test_goes_on_long = properties(
    check_goes_on, 25, 1_000, case=rewritings(), at=st.integers(1, 4), slots=st.sampled_from([1, 2, 3])
)


# What the state lacks


@pytest.mark.parametrize(
    ("first", "then", "told"),
    [
        ("a.j FROM {join}", "a.s FROM {join}", "column s of a is not in the state"),
        ("a.j FROM {join}", "a.x FROM {join}", "column x of a is not in the state"),  # only its filter reads it
        ("a.j FROM {join}", "t.s FROM {table}", "-input b: b by ts"),
        ("a.s FROM {table}", "t.s FROM {table}", "column s of t is not in the state"),
        ("a.k FROM a [NOW] WHERE a.x > 1", "a.k FROM a [NOW] WHERE a.x > 2", "+  filter (a.x > 2)"),
        ("a.j FROM {join}", "a.j FROM {wider}", "+input a: a by ts [RANGE 4000000 us]"),
        ("COUNT(*) FROM {join}", "SUM(a.x) FROM {join}", "sum(a.x) is not among the aggregates of the state"),
        ("a.k, COUNT(*) FROM {join} GROUP BY a.k", "COUNT(*) FROM {join}", "the groups of the state have the key a.k too"),
        ("COUNT(*) FROM {join}", "a.s, COUNT(*) FROM {join} GROUP BY a.s", "the groups of the state have no key a.s"),
        ("a.k FROM {join}", "COUNT(*) FROM {join}", "+groups, slide 1000000 us"),
        ("COUNT(*) FROM {join}", "COUNT(*) FROM {join} SLIDE 2 SECONDS", "+groups, slide 2000000 us"),
        ("g.m FROM {below}", "g.m FROM {lower}", "result m: (.agg0 + 1)"),
    ],
)
def test_what_the_state_lacks(first: str, then: str, told: str) -> None:
    shapes = {**SHAPES, "wider": SHAPES["join"].replace("3 SECONDS", "4 SECONDS")}
    shapes["lower"] = SHAPES["below"].replace("MAX(x)", "MAX(x) + 1")
    queries = []
    for select in (first, then):
        slide = " SLIDE 2 SECONDS" if "SLIDE" in select else ""
        text = select.replace(slide, "").format(**shapes) + slide
        queries.append(parse_script(f"{STREAMS.format(more='')} CREATE QUERY q AS SELECT {text}").queries[0].query)
    disk, tables = MemoryFilesystem(), {"t": Workload(1, 1).table}
    run = LocalRun(queries[0], disk, tables=tables)
    run.step(0, {})
    before = {path: disk.get(path).to_pybytes() for path in sorted(disk._files)}
    with pytest.raises(ForeignStateError) as error:
        LocalRun(queries[1], disk, tables=tables)
    assert told in str(error.value)
    assert "start(fresh=['q'])" in str(error.value)
    assert {path: disk.get(path).to_pybytes() for path in sorted(disk._files)} == before, "nothing is changed"


def test_a_column_that_nobody_reads_is_no_part_of_it() -> None:
    """Wherever it stands, of a stream or of a table; one whose type has changed is."""
    text = "CREATE QUERY q AS SELECT a.j, t.s FROM a [RANGE 1 SECOND], b [RANGE 1 SECOND], t WHERE a.k = b.k AND b.k = t.k"
    written = STREAMS.format(more="") + text
    wider = written.replace("a (k", "a (new STRING, k").replace("t (k", "t (new DOUBLE, k")
    one, two, three = (
        parse_script(each).queries[0].query for each in (written, wider, written.replace("b (k BIGINT", "b (k INT"))
    )
    assert identity_of(one) == identity_of(two)
    assert identity_of(one) != identity_of(three)


# Crashes


def as_it_was(case: Rewriting, slots: int, **settings: Any) -> Simulation:
    """Runs the query as it was written at first."""
    first = case.queries[0]
    return Simulation([first], case.rows(first), case.tables, (), slots, False, **settings)


def check_changed(case: Rewriting, sim: Simulation, wanted: Sequence[Sequence[oracle.Bag]], is_changed: bool = True) -> None:
    """A driver has died, and the next one runs the query as it is written then. Each batch arrives as one or the other has
    it: at first as it was, from some batch on as it is."""
    then = case.queries[1]
    if is_changed:
        sim.rewrite([then], case.rows(then))
        sim.run()
    brought = sim.function.brought
    assert all(again == one for one, *others in brought.values() for again in others), "a batch is another"
    is_new = False
    for number in range(len(sim.batches)):
        found = brought[number][-1] if brought[number] else Counter()
        was, is_ = (not oracle.difference(found, each[number]) for each in wanted)
        is_new = is_new or not was
        assert is_ or not is_new, f"{case.scripts} batch {number}"
    sim.verify()


@pytest.mark.parametrize(("case", "slots"), [(Rewriting(5, "join", True, 3), 2), (Rewriting(6, "join", False, 3), 1)])
def test_crashes_at_every_put(case: Rewriting, slots: int, part: Part) -> None:
    wanted = by_batch(case)
    for left in part.of(as_it_was(case, slots).deaths("tear", "crash_after")):
        sim = as_it_was(case, slots)
        sim.go_on(left)
        check_changed(case, sim, wanted)


def check_crashes(case: Rewriting, slots: int, at: int, fails: int) -> None:
    sim, dies = as_it_was(case, slots, faults={at: Fault("crash_after")}, fails={fails: "before"}), False
    try:
        sim.live()
    except Crash:
        dies = True
    check_changed(case, sim, by_batch(case), dies)


test_crashes, test_crashes_long = properties(
    check_crashes, 15, 500, case=rewritings(), slots=st.sampled_from([1, 2, 3]), at=st.integers(5, 60),
    fails=st.integers(0, 5),
)  # fmt: skip
