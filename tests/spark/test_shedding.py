"""Rows that are shed before the exchange, by Spark and by our own reader: which ones, what is counted, what moves on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from anabranch.control.loop import Allowing, Load, LoadRemark
from anabranch.control.records import Commit, Control, Limit
from anabranch.drive.driver import Driver
from anabranch.drive.runner import Computed
from anabranch.engine.shedding import kept_mask, salt_of
from anabranch.plan.actions import ShedRows
from anabranch.plan.demand import read_columns
from anabranch.plan.overload import Overload, Policy
from anabranch.plan.query import Query
from anabranch.plan.workload import Workload
from anabranch.session import Session
from anabranch.spark import sinks
from anabranch.spark.host import Host
from anabranch.spark.pushdown import _hashable, micros_sql
from tests.support import oracle
from tests.support.feeding import finish
from tests.support.pushed import (
    CLOCK_S,
    CLOCKS,
    FUTURE_US,
    WAYS,
    Packed,
    batches_of,
    check_counts,
    declare,
    law_of,
    write_pushed,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pushed(tmp_path_factory.mktemp("pushed"))


KEPT = {"a": 0.5, "b": 0.8}
QUERIES = {
    "filtered": """SELECT a.v, b.v AS w, a.ts FROM {way}_a [RANGE 2 SECONDS] AS a, {way}_b [RANGE 2 SECONDS] AS b
                   WHERE a.k = b.k AND a.v < 7 AND b.v IN (1, 5, 7)""",
    "whole": """SELECT a.v, b.v AS w, b.s FROM {way}_a [RANGE 1 SECOND] AS a, {way}_b [RANGE 2 SECONDS] AS b
                WHERE a.k = b.k""",
    "copied": """SELECT a.v, b.ts, c.ts AS u FROM {way}_a AS a, {way}_b AS b, {way}_a AS c
                 WHERE a.k = b.k AND b.v = c.v WINDOW 300 MILLISECONDS""",
}
"""By "copied" rows of a go to several slots."""


SALT = 2_718_281_828


class Pinned:
    """Sheds the same share from the first batch to the last."""

    cores: Mapping[str, float] = MappingProxyType({})

    def at_start(self, limits: Mapping[str, Mapping[str, Limit]], kept: Mapping[str, float]) -> Sequence[Allowing]:
        return [Allowing(ShedRows({f"{way}_{name}": share for way in WAYS for name, share in KEPT.items()}), "pinned")]

    def serve(self, queries: Mapping[str, Query]) -> Sequence[Allowing]:
        return []

    def after(self, load: Load) -> Sequence[Allowing | LoadRemark]:
        return []


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[tuple[Control, Commit]]]:
    """Pipelines shed; the tasks of each batch run twice. What was begun and committed, by query."""
    found: dict[str, list[tuple[Control, Commit]]] = {}
    computed, committed = Host._computed, Driver.commit

    def twice(host: Host, *given: Any) -> Computed:
        first, again = computed(host, *given), computed(host, *given)
        assert [counts(a) for a in first.attempts] == [counts(a) for a in again.attempts]
        assert first.seen_elsewhere == again.seen_elsewhere
        return again

    def noted(driver: Driver, control: Control, *given: Any) -> Commit:
        commit = committed(driver, control, *given)
        for name in driver.queries:
            found.setdefault(name, []).append((control, commit))
        return commit

    # The same salt in every run: whether any row of a small batch is shed is not left to luck.
    monkeypatch.setattr("anabranch.drive.limiting.uuid", SimpleNamespace(uuid4=lambda: SimpleNamespace(int=SALT << 65)))
    monkeypatch.setattr(Host, "_computed", twice)
    monkeypatch.setattr(Driver, "commit", noted)
    monkeypatch.setattr("anabranch.session_start.OverloadLoop", lambda *given: Pinned())
    return found


def counts(attempt: Any) -> dict[str, Any]:
    return {
        name: (own.results, {s: (c.rows, c.shed_rows, c.stored_rows) for s, c in own.sources.items()})
        for name, own in attempt.statistics.items()
    }


@pytest.mark.parametrize("name", QUERIES)
def test_shed_rows_are_counted_and_move_the_watermark(
    spark: SparkSession, folder: Path, tmp_path: Path, ran: dict[str, list[tuple[Control, Commit]]], name: str
) -> None:
    """Results are those of the rows that are kept; rows, watermarks, late and early ones are as if none were shed."""
    session = Session(spark, str(tmp_path / "checkpoint"), slots=2, clock=lambda: CLOCK_S, overload=Overload(Policy.SHED))
    declare(session, folder, {"a": "0 seconds", "b": "0 seconds"})
    given = {way: sinks.memory() for way in WAYS}
    for way in WAYS:
        session.query(f"{name}_of_{way}", QUERIES[name].format(way=way), given[way])
    run = session.start(availableNow=True)
    finish(run)
    for way, keeps in (("frames", partial(kept_by_spark, spark)), ("files", kept_by_reader)):
        query = session.planning.query(f"{name}_of_{way}").query
        law, columns, steps = law_of(query, folder), read_columns(Workload((query,))), run.progress[query.name]
        batches, left = batches_of(query, folder), dict[str, list[pa.Table]]()
        for number, (batch, (control, commit)) in enumerate(zip(batches, ran[query.name], strict=False)):
            check_counts(steps[number], law, number, sorted(columns))
            assert control.shed == commit.shed
            for stream, rows in batch.items():
                here = rows.filter(pa.array(in_time(rows, law.watermarks[number])))
                kept = keeps(stream, here.select(sorted(columns[stream])), control.salt)
                left.setdefault(stream, []).append(here.filter(pa.array(kept)))
                counted = commit.queries[query.name].statistics.sources[stream]
                assert counted.shed_rows == (useful(here, name, stream) & ~kept).sum() > 0
        found = oracle.bag(given[way].table().cast(query.output_schema))
        wanted = oracle.bag(oracle.results_of(query, {s: pa.concat_tables(parts) for s, parts in left.items()}, FUTURE_US))
        assert not (wrong := oracle.difference(found, wanted)), wrong
        exact = oracle.expected(query, batches, {}, CLOCKS)
        assert 0.1 * exact.total() < found.total() < 0.7 * exact.total()
        assert not found - exact


def in_time(rows: pa.Table, watermark: int | None) -> npt.NDArray[np.bool_]:
    times = rows["ts"].cast(pa.int64()).to_numpy()
    return (times < FUTURE_US) & (watermark is None or times >= watermark)


def useful(rows: pa.Table, name: str, stream: str) -> npt.NDArray[np.bool_]:
    """Those that a query asks for: others are passed over."""
    v = rows["v"].to_numpy()
    if name != "filtered":
        return np.ones(len(v), np.bool_)
    return v < 7 if stream.endswith("a") else np.isin(v, [1, 5, 7])


def kept_by_reader(stream: str, rows: pa.Table, salt: int) -> npt.NDArray[np.bool_]:
    return kept_mask(stream, rows, KEPT[stream[-1]], salt)


def kept_by_spark(spark: SparkSession, stream: str, rows: pa.Table, salt: int) -> npt.NDArray[np.bool_]:
    zoned = rows.set_column(rows.schema.get_field_index("ts"), "ts", rows["ts"].cast(pa.timestamp("us", "UTC")))
    own = salt_of(stream, salt) % (1 << 60)
    hashed = spark.createDataFrame(zoned).selectExpr(f"xxhash64({', '.join(rows.column_names)}, {own}L) AS h")
    below = np.uint64(round(KEPT[stream[-1]] * (1 << 60)))
    return (hashed.toArrow()["h"].to_numpy().view(np.uint64) >> np.uint64(4)) < below


def test_which_rows_spark_sheds(spark: SparkSession) -> None:
    """The same in whatever order rows come; others with another salt; more of them stay with a larger share; all, if nothing
    is shed. Rows that are late, or early, go on."""
    packed, early = Packed(spark, "{i}.x >= 0", sheds=True), {"q0": -(2**62)}
    few = packed.passed(early, shed={"a": 0.5}, salt=1)
    assert few == packed.passed(early, shed={"a": 0.5}, salt=1)
    assert set(few) < set(packed.passed(early, shed={"a": 0.9}, salt=1))
    assert len({tuple(packed.passed(early, shed={"a": 0.5}, salt=salt)) for salt in range(5)}) > 1
    assert packed.passed(early) == packed.passed(early, shed={"b": 0.1}, salt=1) == list(range(10))
    assert packed.passed(early, shed={"a": 0.0}, salt=1) == []
    assert packed.passed({"q0": 4_000_000}, shed={"a": 0.0}, salt=1) == [0, 1, 2, 3]


def test_equal_rows_of_two_streams_have_fates_of_their_own(spark: SparkSession) -> None:
    """Half of the rows of each are kept, and of rows that are equal in both, a quarter with their like."""
    packed = {name: Packed(spark, "{i}.v >= 0", sheds=True, stream=name, rows=400) for name in "ab"}
    kept = {name: set(each.passed({"q0": -(2**62)}, shed=dict.fromkeys("ab", 0.5), salt=1)) for name, each in packed.items()}
    assert all(150 < len(each) < 250 for each in kept.values())
    assert 60 < len(kept["a"] & kept["b"]) < 140


def test_rows_of_all_types_are_shed_by_times_without_a_zone_too(spark: SparkSession) -> None:
    """What is hashed, and the time in microseconds, as SQL."""
    rows = spark.sql(
        "SELECT map(1, id) AS n, array(map(1, id)) AS l, TIMESTAMP_NTZ '1969-12-31 23:59:58.000001' AS ts FROM range(9)"
    )
    hashed = [_hashable(field.name, field.dataType) for field in rows.schema.fields]
    found = rows.selectExpr(f"xxhash64({', '.join(hashed)}) AS h", f"{micros_sql('ts', False)} AS us").toArrow()
    assert len(set(found["h"].to_pylist())) == 9
    assert set(found["us"].to_pylist()) == {-1_999_999}
