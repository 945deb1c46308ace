"""Whatever dies, and wherever, every result arrives: exactly once in files, at least once in a function."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import strategies as st

from anabranch.plan.migration import Strategy
from tests.support.continuous import Continuous, Shape, shapes
from tests.support.faulty import Fault
from tests.support.kin import kin
from tests.support.regressions import REGRESSIONS
from tests.support.scenarios import Scenario, properties, scenarios
from tests.support.simulation import Simulation
from tests.support.troubles import ASKS, FAILS, FAULTS, PAUSES
from tests.support.workloads import Workload, workloads


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
    slots: int,
    to_files: bool,
    faults: Mapping[int, Fault],
    fails: Mapping[int, str],
    workers: int,
    pauses: frozenset[int],
) -> None:
    """Queries in one pipeline, whose watermarks differ."""
    batches = [workload.batch(number) for number in range(workload.batches)]
    tables = {"t": workload.table}
    Simulation(
        workload.queries, batches, tables, (), slots, to_files, faults, workers=workers, fails=fails, pauses=pauses
    ).check(workload.script)  # fmt: skip


test_many, test_many_long = properties(
    check_many, 15, 1_000, workload=st.one_of(workloads(), kin()), slots=st.sampled_from([1, 2, 4]),
    to_files=st.booleans(), faults=FAULTS, fails=FAILS, workers=st.integers(1, 2), pauses=PAUSES,
)  # fmt: skip
