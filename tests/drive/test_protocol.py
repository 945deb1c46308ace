"""Whatever dies, and wherever, every result arrives: exactly once in files, at least once in a function."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import strategies as st

from anabranch.plan.migration import Strategy
from tests.support import oracle
from tests.support.changes import CHANGES, Change, asking
from tests.support.continuous import Continuous, Shape, shapes
from tests.support.faulty import Fault
from tests.support.kin import kin
from tests.support.regressions import REGRESSIONS
from tests.support.scenarios import Scenario, properties, scenarios
from tests.support.simulation import Simulation
from tests.support.troubles import ASKS, FAILS, FAULTS, PAUSES
from tests.support.workloads import Workload, readings_of, with_table, workloads


def check_joins(
    scenario: Scenario,
    slots: int,
    to_files: bool,
    faults: Mapping[int, Fault],
    asks: Mapping[int, tuple[int, Strategy]],
    fails: Mapping[int, str],
    workers: int,
    pauses: frozenset[int],
) -> None:
    Simulation(
        [scenario.query], scenario.arrow_batches, scenario.arrow_tables, scenario.plans, slots, to_files, faults, asks,
        workers, fails, pauses,
    ).check()  # fmt: skip


UNTIMED = {
    "scenario": REGRESSIONS["rows of two inputs, and one without a time"], "slots": 4, "to_files": False, "faults": {},
    "asks": {}, "fails": {}, "workers": 1, "pauses": frozenset[int](),
}  # fmt: skip

test_joins, test_joins_long = properties(
    check_joins, 100, 4_000, examples=[UNTIMED], scenario=scenarios(inputs=(2, 3, 1, 4)),
    slots=st.sampled_from([1, 2, 3, 4]), to_files=st.booleans(), faults=FAULTS, asks=ASKS, fails=FAILS,
    workers=st.integers(1, 2), pauses=PAUSES,
)  # fmt: skip


def check_groups(
    shape: Shape,
    slots: int,
    to_files: bool,
    faults: Mapping[int, Fault],
    fails: Mapping[int, str],
    pauses: frozenset[int],
) -> None:
    case = Continuous(shape)
    Simulation([case.query], case.batches, case.tables, (), slots, to_files, faults, fails=fails, pauses=pauses).check()


test_groups, test_groups_long = properties(
    check_groups, 60, 2_000, shape=shapes(), slots=st.sampled_from([1, 2, 3]), to_files=st.booleans(), faults=FAULTS,
    fails=FAILS, pauses=PAUSES,
)  # fmt: skip


def check_many(
    workload: Workload,
    is_changing: bool,
    slots: int,
    to_files: bool,
    faults: Mapping[int, Fault],
    fails: Mapping[int, str],
    changes: Mapping[int, list[Change]],
    workers: int,
    pauses: frozenset[int],
    zombies: frozenset[int],
) -> None:
    """Queries in one pipeline, whose watermarks differ, give what each gives alone, and what DuckDB says: while drivers die,
    sinks fail, tasks run twice, input pauses, plans of any of them change, and the table that some read."""
    batches = [workload.batch(number) for number in range(workload.batches)]
    queries, readings = (with_table(workload), {"t": readings_of(workload)}) if is_changing else (workload.queries, {})
    case = Simulation(
        queries, batches, {"t": workload.table}, (), slots, to_files, faults, workers=workers, fails=fails, pauses=pauses,
        zombies=zombies, readings=readings, before={trigger: asking(asked) for trigger, asked in changes.items()},
    )  # fmt: skip
    case.check(workload.script)
    first = case.queries[0]
    assert not (wrong := oracle.difference(case.found()[first.name], case.alone(first))), f"{first.name}: {wrong}"


test_many, test_many_long = properties(
    check_many, 22, 1_000, workload=st.one_of(workloads(8), kin(8)), is_changing=st.booleans(),
    slots=st.sampled_from([1, 2, 4]), to_files=st.booleans(), faults=FAULTS, fails=FAILS, changes=CHANGES,
    workers=st.integers(1, 2), pauses=PAUSES, zombies=st.frozensets(st.integers(0, 9), max_size=1),
)  # fmt: skip
