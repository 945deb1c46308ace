"""What goes in comes out as it was, whatever the sink and the user's zone: values of any type, columns of any name, times
with a zone and without one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

import anabranch as ab
from anabranch.spark.host import set_for_a_moment
from tests.support.feeding import finish

MOMENT = datetime(2024, 1, 31, 12, 0, 0, 5)
SELECTS = {
    "joined": "SELECT a.k, a.t, a.n FROM a [NOW], a [NOW] AS b WHERE a.k = b.k",
    "grouped": "SELECT k, MAX(t) AS t, MAX(n) AS n FROM a [RANGE 1 SECOND] GROUP BY k",
    "counted": "SELECT COUNT(*) AS k, MAX(t) AS t, MAX(n) AS n FROM a [RANGE 1 SECOND]",
}
INSTANTS = "SELECT a.ts, t.at, RESULT_TIME AS r FROM a [NOW], t WHERE a.ts = t.at"


class Times:
    """A stream with times of both kinds, each of the queries over it with a sink of each kind; and a table of an instant."""

    def __init__(self, spark: SparkSession, session: ab.Session, folder: Path) -> None:
        (folder / "in").mkdir()
        later = MOMENT + timedelta(seconds=3)  # what is grouped is given when the watermark has passed it
        moment, times = pa.array([MOMENT] * 2, pa.timestamp("us")), pa.array([MOMENT, later], pa.timestamp("us", "UTC"))
        zoned = moment.cast(pa.timestamp("us", "UTC"))
        pq.write_table(pa.table({"k": [1, 2], "t": zoned, "n": moment, "ts": times}), folder / "in" / "0.parquet")
        schema = "k BIGINT, t TIMESTAMP, n TIMESTAMP_NTZ, ts TIMESTAMP"
        session.stream("a", spark.readStream.schema(schema).parquet(str(folder / "in")), "ts")
        session.table("t", spark.sql(f"SELECT timestamp '{MOMENT} UTC' AS at"))
        self.spark, self.out = spark, folder / "out"
        self.taken: dict[str, list[tuple[T.StructType, pa.Table]]] = defaultdict(list)
        self.kept = {name: ab.sinks.memory() for name in (*SELECTS, "instants")}
        session.query("instants", INSTANTS, self.kept["instants"])
        for name, select in SELECTS.items():
            session.query(f"{name}_kept", select, self.kept[name])
            session.query(f"{name}_taken", select, self.take_for(name))
            session.query(f"{name}_written", select, ab.sinks.parquet(self.out / name))

    def take_for(self, name: str) -> Callable[[DataFrame, int], None]:
        def take(results: DataFrame, batch: int) -> None:
            self.taken[name].append((results.schema, results.toArrow()))

        return take

    def check(self) -> None:
        for name in SELECTS:
            types = {field.name: field.dataType for field in self.taken[name][0][0].fields[1:]}
            assert types == {"t": T.TimestampType(), "n": T.TimestampNTZType()}, name
            for table in (self.kept[name].table(), pq.read_table(self.out / name)):
                assert table.schema.field("t").type == pa.timestamp("us", "UTC"), name
                assert table.schema.field("n").type == pa.timestamp("us"), name
                assert set(table.column("n").to_pylist()) == {MOMENT}, name
            assert {value for _, rows in self.taken[name] for value in rows.column("n").to_pylist()} == {MOMENT}, name
            assert self.spark.read.parquet(str(self.out / name)).schema["n"].dataType == T.TimestampNTZType(), name
        found = self.kept["instants"].table()
        assert found.num_rows == 1
        assert {value.as_py() for column in found.columns for value in column} == {MOMENT.replace(tzinfo=UTC)}


STRUCTS = [
    ("struct(1 AS x, 2 AS y)", "struct(1 AS x_int_y)"),
    ("named_struct('x y', 1, 'ü-z', 2)", "named_struct('x y', 3, 'ü-z', 4)"),
    ("named_struct('x y', 1)", "7"),
    ("map('a', array(1, NULL))", "array(timestamp_seconds(1))"),
]


class Nested:
    """Streams with values of nested types, of different ones under one name, and a query over them."""

    def __init__(self, spark: SparkSession, session: ab.Session, folder: Path) -> None:
        self.spark, self.kept = spark, ab.sinks.memory()
        for place, name in enumerate("xy"):
            path, columns = str(folder / name), ", ".join(f"{pair[place]} AS `c.{n}`" for n, pair in enumerate(STRUCTS))
            spark.sql(f"SELECT 0L AS `the key`, {columns}, timestamp_seconds(5) AS ts").write.parquet(path)
            session.stream(name, spark.readStream.schema(spark.read.parquet(path).schema).parquet(path), "ts")
        select = ", ".join(f'x."c.{n}" AS x{n}, y."c.{n}" AS y{n}' for n in range(len(STRUCTS)))
        session.query("nested", f'SELECT {select} FROM x [NOW], y [NOW] WHERE x."the key" = y."the key"', self.kept)

    def check(self) -> None:
        wanted = ", ".join(f"{left} AS x{n}, {right} AS y{n}" for n, (left, right) in enumerate(STRUCTS))
        assert self.kept.table().to_pylist() == self.spark.sql(f"SELECT {wanted}").toArrow().to_pylist()


def test_types_are_kept(spark: SparkSession, tmp_path: Path) -> None:
    with set_for_a_moment(spark, {"spark.sql.session.timeZone": "America/New_York"}):
        session = ab.Session(spark, tmp_path / "checkpoint", slots=2)
        times, nested = Times(spark, session, tmp_path), Nested(spark, session, tmp_path)
        finish(session.start(availableNow=True))
        times.check()
        nested.check()
