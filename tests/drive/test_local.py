"""The engine in one process, over several slots: together they give what one would."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import strategies as st

from anabranch.drive.local import LocalRun
from anabranch.errors import StateError
from anabranch.sql import parse_script
from anabranch.storage.filesystem import MemoryFilesystem
from tests.support import oracle
from tests.support.continuous import Continuous, Shape, shapes
from tests.support.scenarios import Scenario, properties, scenarios

STOPS = st.lists(st.integers(0, 7), max_size=3)


def check_joins(scenario: Scenario, slots: int, stops: Sequence[int]) -> None:
    disk, found = MemoryFilesystem(), Counter[tuple[object, ...]]()
    run: LocalRun | None = None
    for number, rows in enumerate([*scenario.arrow_batches, {}]):
        if run is None or number in stops:
            run = LocalRun(scenario.query, disk, scenario.plans[0], scenario.arrow_tables, slots=slots)
        done = run.step(number, rows)
        assert done.statistics.results == done.results.num_rows
        assert all(done.statistics.sources[name].rows >= given.num_rows for name, given in rows.items()), "copies count"
        found += oracle.bag(done.results)
    wanted = oracle.expected(scenario.query, scenario.arrow_batches, scenario.arrow_tables)
    assert not (wrong := oracle.difference(found, wanted)), wrong


test_joins, test_joins_long = properties(
    check_joins, 50, 1_000, scenario=scenarios(inputs=(2, 3, 4)), slots=st.integers(2, 5), stops=STOPS
)


def check_groups(shape: Shape, slots: int, stops: Sequence[int]) -> None:
    case, disk, found = Continuous(shape), MemoryFilesystem(), Counter[tuple[object, ...]]()
    tables = {name: rows for name, rows in case.tables.items() if name in {s.name for s in case.query.base_sources}}
    run: LocalRun | None = None
    for number, rows in enumerate([*case.batches, {}]):
        if run is None or number in stops:
            run = LocalRun(case.query, disk, tables=tables, slots=slots)
        found += oracle.bag(run.step(number, rows).results)
    wanted = oracle.expected(case.query, case.batches, tables)
    assert not (wrong := oracle.difference(found, wanted)), f"{case.sql}\n{wrong}"


test_groups, test_groups_long = properties(check_groups, 50, 1_000, shape=shapes(), slots=st.integers(2, 4), stops=STOPS)


def test_which_batches_may_be_handed_in() -> None:
    """The next one; or the newest again, until the next has come."""
    script = "CREATE STREAM a (k BIGINT, ts TIMESTAMP) TIME ts; CREATE QUERY q AS SELECT k FROM a [NOW]"
    disk, query = MemoryFilesystem(), parse_script(script).queries[0].query
    rows = {"a": pa.table({"k": [1, 2], "ts": pa.array([0, 1], pa.timestamp("us"))})}
    run = LocalRun(query, disk)
    with pytest.raises(StateError, match="batch 1 cannot follow batch -1: hand in batch 0"):
        run.step(1, rows)
    first = run.step(0, rows)
    path = run.commits.path_of(0)
    before = disk.get(path).to_pybytes()
    assert LocalRun(query, disk).step(0, rows).results == first.results
    assert disk.get(path).to_pybytes() == before, "the commit stays"
    run = LocalRun(query, disk)
    run.step(1, rows)
    with pytest.raises(StateError, match="batch 0 cannot follow batch 1: hand in batch 2, or batch 1 again"):
        run.step(0, rows)


def test_what_the_batch_before_left_is_kept_until_its_results_have_arrived() -> None:
    """Each batch is handed in again, in a new process, although files and records are released after every batch."""
    script = """
    CREATE STREAM a (k BIGINT, ts TIMESTAMP) TIME ts;
    CREATE STREAM b (k BIGINT, ts TIMESTAMP) TIME ts;
    CREATE QUERY q AS SELECT a.k, a.ts, b.ts AS at FROM a, b WHERE a.k = b.k WINDOW 2 SECONDS
    """
    disk, query = MemoryFilesystem(), parse_script(script).queries[0].query
    for number in range(20):
        times = pa.array([number * 1_000_000 + i for i in range(4)], pa.timestamp("us"))
        rows = dict.fromkeys("ab", pa.table({"k": [0, 1, 0, 1], "ts": times}))
        first = LocalRun(query, disk, release_every=1, sweep_grace_s=0.0).step(number, rows)
        again = LocalRun(query, disk, release_every=1, sweep_grace_s=0.0).step(number, rows)
        assert oracle.bag(again.results) == oracle.bag(first.results)
        assert again.results.num_rows >= 8
    assert len(disk.list("commit")) == 2
    assert len(disk.list("state/0")) < 20


def test_a_start_does_without_what_only_the_commit_before_needs() -> None:
    """Its manifest is gone; the newest one has all that the next batch starts from."""
    script = """
    CREATE STREAM a (k BIGINT, ts TIMESTAMP) TIME ts;
    CREATE STREAM b (k BIGINT, ts TIMESTAMP) TIME ts;
    CREATE QUERY q AS SELECT a.k FROM a, b WHERE a.k = b.k WINDOW 1 SECOND
    """
    disk, query = MemoryFilesystem(), parse_script(script).queries[0].query
    run = LocalRun(query, disk)
    for number in range(5):
        rows = pa.table({"k": [1], "ts": pa.array([number * 9_000_000], pa.timestamp("us"))})
        run.step(number, {"a": rows, "b": rows} if number != 3 else {})
    before, newest = (run.commits.read(number).slots["0"].manifest for number in (3, 4))
    assert before is not None
    assert newest is not None
    assert newest.base == before.base
    assert before.own.file not in (newest.own.file, newest.base.file if newest.base else "")
    disk.delete(before.own.file)
    litter = "state/0/0000000002-litter.log"
    disk.put(litter, [b"?"])
    run = LocalRun(query, disk, sweep_grace_s=0.0)
    assert litter.rpartition("/")[2] in disk.list("state/0"), "nothing is deleted on half of what is needed"
    run.step(5, {})


def test_a_driver_whose_checkpoint_was_taken_over_while_it_committed_ends() -> None:
    """The other may have looked before the commit was there: so this one looks again when it is."""
    script = "CREATE STREAM a (k BIGINT, ts TIMESTAMP) TIME ts; CREATE QUERY q AS SELECT k FROM a [NOW]"
    run = LocalRun(parse_script(script).queries[0].query, MemoryFilesystem())
    rows = pa.table({"k": [1], "ts": pa.array([0], pa.timestamp("us"))})
    run.step(0, {"a": rows})

    class Taken:
        epoch = 0

        def require_held(self) -> None:
            if run.driver.commits.read(run.driver.standing.batch).batch == 1:
                raise StateError("another driver has taken the checkpoint over")

    run.driver.holder = Taken()
    with pytest.raises(StateError, match="taken the checkpoint over"):
        run.step(1, {"a": rows})
    assert run.driver.newest is not None
    assert run.driver.newest.batch == 1
