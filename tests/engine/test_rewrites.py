"""Rewrites change what is planned, never what comes out: with any of them left out the oracle says the same."""

from __future__ import annotations

from collections import Counter

from hypothesis import strategies as st

from anabranch.drive.local import LocalRun
from anabranch.plan.rewrites import REWRITES, without
from anabranch.sql import parse_script
from anabranch.storage.filesystem import MemoryFilesystem
from tests.support import oracle
from tests.support.continuous import Continuous, Shape, shapes
from tests.support.scenarios import Scenario, properties, scenarios

LEFT_OUT = st.lists(st.sampled_from([r.name for r in REWRITES if not r.is_needed]), unique=True)


def check_continuous(shape: Shape, left_out: list[str], slots: int) -> None:
    """Groups and subqueries."""
    case = Continuous(shape)
    query = parse_script(case.script, rewrites=without(*left_out)).queries[0].query
    tables = {name: rows for name, rows in case.tables.items() if name in {s.name for s in query.base_sources}}
    run = LocalRun(query, MemoryFilesystem(), tables=tables, slots=slots)
    found: oracle.Bag = Counter()
    for number, rows in enumerate([*case.batches, {}]):
        found += oracle.bag(run.step(number, rows).results)
    problem = oracle.difference(found, oracle.expected(case.query, case.batches, tables))
    assert not problem, f"{case.sql}\n{problem}"


test_continuous, test_continuous_long = properties(
    check_continuous, 60, 1_000, shape=shapes(), left_out=LEFT_OUT, slots=st.integers(1, 4)
)


def check_joins(scenario: Scenario, left_out: list[str]) -> None:
    """Joins of values of all types, NaN, -0.0 and NULL among them, under any plan."""
    query = parse_script(scenario.script, rewrites=without(*left_out)).queries[0].query
    run = LocalRun(query, MemoryFilesystem(), scenario.plans[0], scenario.arrow_tables)
    found: oracle.Bag = Counter()
    for number in range(len(scenario.batches) + 1):
        rows = scenario.feed(number) if number < len(scenario.batches) else {}
        found += oracle.bag(run.step(number, rows).results)
    full = parse_script(scenario.script).queries[0].query
    problem = oracle.difference(found, oracle.expected(full, scenario.arrow_batches, scenario.arrow_tables))
    assert not problem, f"{scenario.script}\n{problem}"


test_joins, test_joins_long = properties(check_joins, 60, 1_000, scenario=scenarios(inputs=(2, 3)), left_out=LEFT_OUT)
