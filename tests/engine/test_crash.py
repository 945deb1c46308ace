"""What survives: crashes inside any step at any operation, writes that are lost, torn, late or repeated, damaged files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import assume
from hypothesis import strategies as st

from anabranch.control.query_texts import identity_of
from anabranch.drive.local import LocalRun
from anabranch.errors import DamagedStateError, ForeignStateError
from anabranch.storage.filesystem import Filesystem, MemoryFilesystem
from tests.support import oracle
from tests.support.caller import Caller
from tests.support.cases import Part
from tests.support.faulty import Fault, FaultyFilesystem, MortalFilesystem
from tests.support.local_runs import assert_same, files, named, start, state_of, step
from tests.support.regressions import REGRESSIONS
from tests.support.scenarios import Scenario, properties, scenarios

SOME_BATCHES = (2, 3, 4, 6, 9, 17)
FEW_INPUTS = (2, 3, 4, 1)


# Any put of any step may fail.

CRASHES = st.one_of(
    st.builds(Fault, st.just("lose")),
    st.builds(Fault, st.just("tear"), keep=st.none() | st.integers(0, 80)),
    st.builds(Fault, st.just("crash_after")),
)
SLOW = st.builds(Fault, st.sampled_from(["delay", "repeat"]), after=st.integers(1, 12))
PLANS = st.lists(st.integers(0, 2), min_size=1, max_size=4)


def faults(kinds: st.SearchStrategy[Fault]) -> st.SearchStrategy[dict[int, Fault]]:
    return st.dictionaries(st.integers(0, 50), kinds, min_size=1, max_size=6)


def check_crashes(scenario: Scenario, plan: Mapping[int, Fault], plans: Sequence[int], survives: bool) -> None:
    disk = FaultyFilesystem(MemoryFilesystem(), plan)
    caller = Caller(scenario, disk, plans, survives)
    caller.work()
    caller.assert_right()
    run = LocalRun(scenario.query, disk, tables=scenario.arrow_tables, sweep_grace_s=0.0)
    assert files(disk) == named(run), "litter of crashed attempts is left after a sweep"


test_crashes, test_crashes_long = properties(
    check_crashes,
    80,
    2_000,
    scenario=scenarios(batches=SOME_BATCHES),
    plan=faults(CRASHES),
    plans=PLANS,
    survives=st.booleans(),
)


def check_slow_disk(scenario: Scenario, plan: Mapping[int, Fault], plans: Sequence[int], survives: bool) -> None:
    caller = Caller(scenario, FaultyFilesystem(MemoryFilesystem(), plan), plans, survives)
    caller.work()
    caller.assert_right()


test_slow_disk, test_slow_disk_long = properties(
    check_slow_disk,
    60,
    1_500,
    scenario=scenarios(batches=SOME_BATCHES, inputs=FEW_INPUTS),
    plan=faults(CRASHES | SLOW),
    plans=PLANS,
    survives=st.booleans(),
)


# Any operation may be the last, reads, lists and deletes included.


def check_death_at_any_operation(
    scenario: Scenario, deaths: Mapping[int, bool], plans: Sequence[int], survives: bool
) -> None:
    disk = MemoryFilesystem()
    caller = Caller(scenario, MortalFilesystem(disk, deaths), plans, survives)
    caller.work()
    caller.assert_right()
    run = LocalRun(scenario.query, disk, tables=scenario.arrow_tables, sweep_grace_s=0.0)
    assert files(disk) == named(run), "litter of crashed attempts is left after a sweep"


test_death_at_any_operation, test_death_at_any_operation_long = properties(
    check_death_at_any_operation,
    60,
    1_500,
    scenario=scenarios(batches=SOME_BATCHES, inputs=FEW_INPUTS),
    deaths=st.dictionaries(st.integers(0, 100), st.booleans(), min_size=1, max_size=6),
    plans=PLANS,
    survives=st.booleans(),
)


# Derived files are rebuilt from the log, whatever happens to them.

DAMAGES = st.sampled_from(["delete", "flip", "cut", "zero"])


def damage(disk: Filesystem, path: str, how: str, position: int) -> None:
    content = bytearray(disk.get(path).to_pybytes())
    position %= len(content) or 1
    if how == "delete":
        disk.delete(path)
        return
    if how == "flip":
        content[position : position + 1] = bytes(byte ^ 0xFF for byte in content[position : position + 1])
    elif how == "cut":
        del content[position:]
    else:
        content = bytearray(len(content))
    disk.put(path, [bytes(content)])


def check_derived_damage(
    scenario: Scenario, damages: Sequence[tuple[str, int, int]], plans: Sequence[int], again: bool
) -> None:
    disk = MemoryFilesystem()
    run = start(scenario, disk)
    found: oracle.Bag = Counter()
    for batch in range(len(scenario.batches) + 1):
        results = oracle.bag(step(run, scenario, batch).results)
        how, which, position = damages[batch % len(damages)]
        derived = sorted(path for path in files(disk) if ".log" not in path)
        if derived:
            damage(disk, derived[which % len(derived)], how, position)
            run = start(scenario, disk, plans[batch % len(plans)])
            if again:
                assert oracle.bag(step(run, scenario, batch).results) == results
        found += results
    assert_same(found, scenario)


test_derived_damage, test_derived_damage_long = properties(
    check_derived_damage,
    50,
    1_500,
    scenario=scenarios(batches=SOME_BATCHES, inputs=FEW_INPUTS),
    damages=st.lists(st.tuples(DAMAGES, st.integers(0, 20), st.integers(0, 5000)), min_size=1, max_size=5),
    plans=PLANS,
    again=st.booleans(),
)


# The log is the only truth there is: without it nothing goes on, and nobody pretends.


def check_log_damage(scenario: Scenario, batches: int, how: str, which: int, position: int) -> None:
    disk = MemoryFilesystem()
    run = start(scenario, disk)
    batches = min(batches, len(scenario.batches))
    for batch in range(batches):
        step(run, scenario, batch)
    assert run.commit is not None
    logs = state_of(run).logs
    assume(logs)
    segment = logs[which % len(logs)].data
    damage(disk, segment.file, how, segment.offset + position % segment.length)
    rows = scenario.feed(batches) if batches < len(scenario.batches) else {}
    with pytest.raises(DamagedStateError):
        start(scenario, disk).step(batches, rows)


test_log_damage, test_log_damage_long = properties(
    check_log_damage,
    30,
    400,
    scenario=scenarios(batches=SOME_BATCHES, inputs=FEW_INPUTS),
    batches=st.integers(1, 9),
    how=DAMAGES,
    which=st.integers(0, 20),
    position=st.integers(0, 5000),
)


# The newest commit may be torn, when it was first written or when its batch ran again.


def check_torn_commit(scenario: Scenario, keep: int, torn: Sequence[bool]) -> None:
    disk = MemoryFilesystem()
    run = start(scenario, disk)
    found: oracle.Bag = Counter()
    for batch in range(len(scenario.batches)):
        results = oracle.bag(step(run, scenario, batch).results)
        if torn[batch % len(torn)]:
            damage(disk, run.commits.path(batch), "cut", keep)
            run = start(scenario, disk, 1)
            assert run.last_batch == batch - 1
            assert oracle.bag(step(run, scenario, batch).results) == results
        found += results
    assert_same(found, scenario)


test_torn_commit, test_torn_commit_long = properties(
    check_torn_commit,
    30,
    400,
    scenario=scenarios(batches=SOME_BATCHES, inputs=FEW_INPUTS),
    keep=st.integers(0, 100_000),
    torn=st.lists(st.booleans(), min_size=1, max_size=4),
)


# Somebody else's checkpoint is left alone.


def contents(disk: MemoryFilesystem) -> dict[str, bytes]:
    return {path: content.to_pybytes() for path, (content, _) in disk._files.items()}


def _but_columns(scenario: Scenario) -> list[str]:
    """What the state of a query depends on, whatever columns of rows it has stored."""
    return [line for line in identity_of(scenario.query).splitlines() if not line.startswith("  keeps")]


def check_foreign_state(scenario: Scenario, other: Scenario) -> None:
    assume(_but_columns(scenario) != _but_columns(other))
    disk = MemoryFilesystem()
    run = start(scenario, disk)
    step(run, scenario, 0)
    step(run, scenario, 1)
    before = contents(disk)
    # A scenario may have a residual that is not in its SQL.
    with pytest.raises(ForeignStateError, match=r"another (query|one to this release)"):
        LocalRun(other.query, disk, other.plans[0], other.arrow_tables, sweep_grace_s=0.0)
    assert contents(disk) == before


test_foreign_state, test_foreign_state_long = properties(
    check_foreign_state,
    15,
    200,
    scenario=scenarios(batches=(2,), inputs=FEW_INPUTS),
    other=scenarios(batches=(2,), inputs=FEW_INPUTS),
)


@pytest.mark.parametrize("name", REGRESSIONS)
@pytest.mark.parametrize("survives", [False, True])
def test_what_failed_once_at_every_put(name: str, survives: bool, part: Part) -> None:
    scenario = REGRESSIONS[name]
    counted = FaultyFilesystem(MemoryFilesystem())
    Caller(scenario, counted, [0], survives).work()
    for ordinal in part.of(range(len(counted.puts))):
        for kind in ("lose", "tear", "crash_after"):
            check_crashes(scenario, {ordinal: Fault(kind)}, [0, 1], survives)
