"""Queries as data: a worker binds what the driver has written."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import strategies as st

from anabranch.balance.layout import layout_of
from anabranch.balance.together import choose_together
from anabranch.control.query_texts import QueryTexts, text_of
from anabranch.control.records import Control, ExecutionRecord, QueryControl
from anabranch.drive import queries
from anabranch.drive.queries import BoundQueries, bound
from anabranch.errors import DamagedStateError, ForeignStateError
from anabranch.plan.workload import Workload as Queries
from anabranch.sql import parse_script
from anabranch.storage.filesystem import MemoryFilesystem
from tests.support.continuous import Continuous, Shape, shapes
from tests.support.scenarios import Scenario, properties, scenarios
from tests.support.workloads import Workload, workloads


def check_joins(scenario: Scenario) -> None:
    query = parse_script(scenario.script).queries[0].query
    assert bound(text_of(query), QueryTexts(MemoryFilesystem())) == query


test_joins, test_joins_long = properties(check_joins, 40, 800, scenario=scenarios(inputs=(2, 3, 1, 4)))


def check_groups(shape: Shape) -> None:
    query = Continuous(shape).query
    assert bound(text_of(query), QueryTexts(MemoryFilesystem())) == query


test_groups, test_groups_long = properties(check_groups, 40, 800, shape=shapes())


def control_of(workload: Workload, slots: int, disk: MemoryFilesystem) -> tuple[Control, dict[str, object]]:
    spread = choose_together(Queries(tuple(workload.queries)), slots)
    texts, own = QueryTexts(disk), {}
    for query in workload.queries:
        text = text_of(query)
        texts.keep(text)
        layout = layout_of(spread[query.name])
        own[query.name] = QueryControl(text.state_digest, text.digest, 0, ExecutionRecord("(a b)"), layout)
    return Control(0, 0, own), {query.name: (query, spread[query.name]) for query in workload.queries}


def check_spread(workload: Workload, slots: int) -> None:
    """Queries are spread as the driver has chosen for all together, although a worker looks at each by itself."""
    disk = MemoryFilesystem()
    control, wanted = control_of(workload, slots, disk)
    worker = BoundQueries()
    first = workload.queries[-1].name
    found = worker.of(control, slots, disk, [first])
    assert found == wanted
    assert next(iter(found)) == first
    again = worker.of(control, slots, MemoryFilesystem())
    assert all(again[name] is found[name] for name in found), "bound once"


test_spread, test_spread_long = properties(check_spread, 20, 400, workload=workloads(), slots=st.integers(1, 6))


def test_what_a_worker_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    workload, disk = Workload(1, 2), MemoryFilesystem()
    control, _ = control_of(workload, 2, disk)
    text = text_of(workload.queries[0])
    with pytest.raises(ForeignStateError, match="query q0 is another one to this release"):
        bound(msgspec.structs.replace(text, identity="something else"), QueryTexts(disk))
    with pytest.raises(DamagedStateError, match="it is missing although a record names it"):
        BoundQueries().of(control, 2, MemoryFilesystem())
    monkeypatch.setattr(queries, "MOST_BOUND", 1)
    worker = BoundQueries()
    found = worker.of(control, 2, disk)
    assert worker.of(control, 2, disk) == found, "those of a batch are bound once, however many they are"
    assert all(worker.of(control, 2, disk)[name] is found[name] for name in ("q0", "q1"))
    worker.of(msgspec.structs.replace(control, queries={"q1": control.queries["q1"]}), 2, disk)
    assert len(worker.known) == 1, "the others are forgotten"
