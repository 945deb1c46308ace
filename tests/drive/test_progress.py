"""What the runner notes of batches, in the checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pyarrow as pa
import pytest

from anabranch.control.progress import Progress, read_progress
from anabranch.sql import parse_script
from anabranch.storage.filesystem import Part
from tests.support.faulty import Fault
from tests.support.simulation import Simulation

SCRIPT = """
CREATE STREAM a (k BIGINT, g BIGINT, ts TIMESTAMP) TIME ts;
CREATE STREAM b (k BIGINT, ts TIMESTAMP) TIME ts;
CREATE QUERY pairs AS SELECT a.k FROM a [RANGE 2 SECONDS], b [RANGE 2 SECONDS] WHERE a.k = b.k;
CREATE QUERY groups AS SELECT a.g, COUNT(*) AS n FROM a [RANGE 2 SECONDS], b [RANGE 2 SECONDS] WHERE a.k = b.k GROUP BY a.g
"""


def simulation(*names: str, batches: int = 4, **given: object) -> Simulation:
    queries = [bound.query for bound in parse_script(SCRIPT).queries if bound.query.name in names]
    rows = []
    for batch in range(batches):
        times = pa.array([batch * 1_000_000 + n if n % 5 else None for n in range(20)], pa.timestamp("us"))
        keys = pa.array(list(range(20)))
        groups = pa.array([n % 3 for n in range(20)])
        rows.append({"a": pa.table({"k": keys, "g": groups, "ts": times}), "b": pa.table({"k": keys, "ts": times})})
    return Simulation(queries, rows, {}, to_files=False, **given)  # type: ignore[arg-type]


def progress_of(made: Simulation, name: str) -> list[Progress]:
    return read_progress(made.checkpoint)[name]


def test_rows_without_a_time_are_counted() -> None:
    made = simulation("pairs")
    made.check()
    steps = progress_of(made, "pairs")
    assert [step.batch for step in steps] == [0, 1, 2, 3, 4]
    assert [step.is_closing for step in steps] == [False] * 4 + [True]
    assert [step.rows for step in steps[:4]] == [{"a": 20, "b": 20}] * 4
    assert [step.untimed_rows for step in steps[:4]] == [{"a": 4, "b": 4}] * 4
    assert all(step.names == {"a": "a", "b": "b"} and step.plan == "(a b)" and step.seconds > 0 for step in steps)
    assert all(step.cpu_s > 0 for step in steps)


def test_groups_that_span_slots_are_counted_once() -> None:
    """Each of two slots has rows of each group; results are what is delivered."""
    made = simulation("groups")
    assert made.spread["groups"].groups_span_slots
    made.check()
    steps = progress_of(made, "groups")
    assert all(step.is_counted for step in steps)
    assert sum(step.results for step in steps) == sum(made.found()["groups"].values()) > 0


def test_groups_that_nobody_has_put_together_are_at_most_so_many() -> None:
    """An outlet that does not say how many there were: groups are counted in each slot."""
    made = simulation("groups")
    take = made.function.take
    made.function.take = lambda results: take(results) and None  # type: ignore[method-assign,assignment]
    made.check()
    steps = [step for step in progress_of(made, "groups") if step.results]
    assert not any(step.is_counted for step in steps)
    assert sum(step.results for step in steps) > sum(made.found()["groups"].values())


@pytest.mark.parametrize("names", [("pairs",), ("groups",), ("pairs", "groups")])
def test_queries_are_noted_together(names: tuple[str, ...]) -> None:
    made = simulation(*names)
    made.check()
    found = read_progress(made.checkpoint)
    assert [*found] == [*names]
    assert len(made.checkpoint.list("progress")) == 1
    if len(names) > 1:
        shares = [sum(step.cpu_s for step in steps) for steps in found.values()]
        assert min(shares) > 0.1 * max(shares), "what queries have in common is shared out"


@pytest.mark.parametrize("fault", ["lose", "tear", "crash_after"])
def test_a_driver_may_die_while_it_writes_progress(fault: Literal["lose", "tear", "crash_after"]) -> None:
    whole = simulation("pairs")
    whole.check()
    ordinals = [ordinal for ordinal, path in enumerate(whole.world.puts) if "/progress/" in path]
    assert len(ordinals) == 5, "one small file for each batch"
    for ordinal in ordinals:
        made = simulation("pairs", faults={ordinal: Fault(fault)})
        made.check(f"{fault} at put {ordinal}")
        assert progress_of(made, "pairs")


def test_progress_that_cannot_be_written_fails_no_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    made = simulation("pairs")
    put = made.world.put

    def failing(path: str, parts: Sequence[Part]) -> None:
        if "/progress/" in path:
            raise OSError("no space left")
        put(path, parts)

    monkeypatch.setattr(made.world, "put", failing)
    made.check()
    assert made.lives == 1
    assert read_progress(made.checkpoint) == {}
