"""Groups below a join give what groups above it give."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import strategies as st

from anabranch.drive.local import LocalRun
from anabranch.plan.eager import pushable_inputs, with_groups_below
from anabranch.sql import parse_script
from anabranch.storage.filesystem import MemoryFilesystem
from tests.support import oracle
from tests.support.continuous import COLUMNS, Continuous, Shape, shapes
from tests.support.scenarios import properties

STREAMS = "".join(f"CREATE STREAM {s} ({COLUMNS}) TIME ts;\n" for s in ("a", "b"))
STREAMS += "CREATE TABLE t (k BIGINT, name STRING);\n"


def query_of(select):
    return parse_script(f"{STREAMS} CREATE QUERY q AS {select} WINDOW 5 SECONDS").queries[0].query


@pytest.mark.parametrize(
    ("select", "inputs"),
    [
        ("SELECT b.g, SUM(a.x) AS s FROM a, b WHERE a.k = b.k GROUP BY b.g", ("a",)),
        ("SELECT b.g, COUNT(*) AS n FROM a, b WHERE a.k = b.k GROUP BY b.g", ("a", "b")),
        ("SELECT a.g, SUM(a.x + b.x) AS s FROM a, b WHERE a.k = b.k GROUP BY a.g", ()),
        ("SELECT b.g, COUNT(DISTINCT a.k) AS n FROM a, b WHERE a.k = b.k GROUP BY b.g", ()),
        ("SELECT a.g, MAX(a.x) AS m FROM a GROUP BY a.g", ()),
        ("SELECT t.name, COUNT(*) AS n FROM a, t WHERE a.k = t.k GROUP BY t.name", ("a",)),
        ("SELECT a.g FROM a, b WHERE a.k = b.k", ()),
    ],
)
def test_which_inputs_can_be_grouped_first(select, inputs):
    assert pushable_inputs(query_of(select)) == inputs


def test_what_stands_below():
    query = with_groups_below(query_of("SELECT b.g, AVG(a.x) AS m FROM a, b WHERE a.k = b.k GROUP BY b.g"), "a")
    (inner,) = query.subqueries
    assert [str(expr) for _, expr in inner.select] == ["a.k", "a.x"]
    assert [str(a) for a in inner.grouping.aggregates] == ["avg(#1)"]
    assert [str(a) for a in query.grouping.aggregates] == ["avg(#1)"]


def check(shape: Shape, which: int) -> None:
    case = Continuous(shape)
    inputs = pushable_inputs(case.query)
    if not inputs:
        return
    tables = {name: rows for name, rows in case.tables.items() if name in {s.name for s in case.query.base_sources}}
    pushed = with_groups_below(case.query, inputs[which % len(inputs)])
    assert pushed.output_schema == case.query.output_schema
    wanted = oracle.expected(case.query, case.batches, tables)
    problem = oracle.difference(oracle.expected(pushed, case.batches, tables), wanted)
    assert not problem, f"{case.sql}\n{problem}"
    run = LocalRun(pushed, MemoryFilesystem(), tables=tables)
    found: oracle.Bag = Counter()
    for number, rows in enumerate([*case.batches, {}]):
        found += oracle.bag(run.step(number, rows).results)
    problem = oracle.difference(found, wanted)
    assert not problem, f"{case.sql}, on the engine\n{problem}"


test_groups_below, test_groups_below_long = properties(
    check, 60, 1_000, shape=shapes(groups=True), which=st.integers(0, 2)
)
