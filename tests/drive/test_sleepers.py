"""A driver that sleeps through its lease, at any operation, and wakes up when others have gone on: it is fenced by epochs,
so that every result arrives, exactly once in files, at least once in a function."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from hypothesis import strategies as st

from anabranch.errors import AnabranchError
from tests.support import oracle
from tests.support.faulty import Crash, MortalFilesystem, Sleep
from tests.support.kin import kin
from tests.support.scenarios import properties
from tests.support.simulation import Simulation, left_of
from tests.support.workloads import Workload, readings_of, with_table, workloads

Life = tuple[int, bool, int]
"""Of a driver that comes meanwhile: the operation at which it dies, whether that is done, and how many triggers it takes."""


def check_sleeper(
    workload: Workload,
    is_changing: bool,
    slots: int,
    to_files: bool,
    operation: int,
    lives: Sequence[Life],
    breaks: dict[str, int],
    release_every: int,
) -> None:
    batches = [workload.batch(number) for number in range(workload.batches)]
    queries, readings = (with_table(workload), {"t": readings_of(workload)}) if is_changing else (workload.queries, {})
    case = Simulation(
        queries, batches, {"t": workload.table}, (), slots, to_files, readings=readings, breaks=breaks,
        release_every=release_every,
    )  # fmt: skip
    disk = case.world.inner

    def meanwhile() -> None:
        for dies_at, is_done, triggers in lives:
            case.world.inner = MortalFilesystem(disk, {dies_at: is_done})  # type: ignore[assignment]
            with suppress(Crash):
                case.live(min(len(batches), case.done + 1 + triggers))
        case.world.inner = sleeping  # type: ignore[assignment]

    sleeping = Sleep(disk, operation, meanwhile)
    case.world.inner = sleeping  # type: ignore[assignment]
    with suppress(AnabranchError):  # it sees that it was superseded, or that its records have gone
        case.live()
    case.world.inner = disk
    found, expected, left = case.run(), case.expected(), left_of(case.checkpoint)
    for query in case.queries:
        name = query.name
        wanted = case.alone(query, left[name].batch) if name in left else expected[name]
        assert not (wrong := oracle.difference(found[name], wanted)), f"it slept at {sleeping.what}: {name}: {wrong}"
    again = [batch for batch, is_committed in case.computed if is_committed]
    assert not again, f"it slept at {sleeping.what}: batches {again} ran although they were committed"


LIFE = st.tuples(st.integers(1, 250), st.booleans(), st.integers(0, 3))

test_sleepers, test_sleepers_long = properties(
    check_sleeper, 16, 600, workload=st.one_of(workloads(4), kin(4)), is_changing=st.booleans(),
    slots=st.sampled_from([1, 2, 3]), to_files=st.booleans(), operation=st.integers(1, 350),
    lives=st.lists(LIFE, min_size=1, max_size=3), breaks=st.dictionaries(st.just("q1"), st.integers(1, 6)),
    release_every=st.sampled_from([1, 2, 8]),
)  # fmt: skip
