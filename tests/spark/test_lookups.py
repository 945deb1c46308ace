"""Lookups on Spark, in a real PostgreSQL: the table changes between batches, dies, and tells no password."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import anabranch as ab
from anabranch.place.calibrate import FORMAT, Measured, remember
from anabranch.place.databases.registry import close_all
from anabranch.spark.task import ASKING
from bench.postgres import PASSWORD, Server
from tests.support.feeding import WAIT_S

SQL = """SELECT o.id, c.name, p.paid FROM orders [RANGE 1 HOUR] o, customers c, payments [RANGE 1 HOUR] p
WHERE o.customer = c.id AND o.id = p.order_id AND c.region = p.region"""


def write(folder: Path, stream: str, number: int, rows: dict[str, list[object]]) -> None:
    (folder / stream).mkdir(exist_ok=True)
    seconds = [1_700_000_000 + number] * len(next(iter(rows.values())))
    table = pa.table({**rows, "ts": pa.array([s * 1_000_000 for s in seconds], pa.timestamp("us"))})
    pq.write_table(table, folder / stream / f".{number}")
    (folder / stream / f".{number}").rename(folder / stream / f"{number}.parquet")


@pytest.fixture
def customers(postgres: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    postgres.write_service()
    for key, value in postgres.environment.items():
        monkeypatch.setenv(key, value)
    close_all()
    postgres.sql("""DROP TABLE IF EXISTS customers; CREATE TABLE customers (id bigint PRIMARY KEY, name text, region text);
                    INSERT INTO customers SELECT n, 'old ' || n, 'r' || n % 2 FROM generate_series(1, 4) n;
                    GRANT SELECT ON customers TO looker""")
    return postgres


def session_of(
    spark: SparkSession, folder: Path, lookup_failure: str = "fail"
) -> tuple[ab.Session, Counter[tuple[object, ...]]]:
    found: Counter[tuple[object, ...]] = Counter()

    def take(frame: object, batch: int) -> None:
        found.update(tuple(row) for row in frame.collect())  # type: ignore[attr-defined]

    session = ab.Session(spark, str(folder / "checkpoint"), slots=2, lookup_failure=lookup_failure)
    session.stream("orders", f"{folder}/orders/*.parquet", "ts", lateness="1 hour")
    session.stream("payments", f"{folder}/payments/*.parquet", "ts", lateness="1 hour")
    session.table("customers", ab.database("shop").table("public.customers"))
    session.query("q", SQL, sink=take)
    return session, found


def test_rows_meet_the_table_as_their_batch_finds_it(
    spark: SparkSession, customers: Server, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "orders", 1, {"id": [1, 2, 3], "customer": [1, 2, 9]})
    write(tmp_path, "payments", 1, {"order_id": [1], "region": ["r1"], "paid": [10]})
    session, found = session_of(spark, tmp_path)
    session.start(availableNow=True).await_termination()
    assert found == Counter([(1, "old 1", 10)])

    customers.sql("UPDATE customers SET name = 'new ' || id; INSERT INTO customers VALUES (9, 'late', 'r1')")
    write(tmp_path, "orders", 2, {"id": [4], "customer": [9]})
    write(tmp_path, "payments", 2, {"order_id": [2, 4, 3], "region": ["r0", "r1", "r1"], "paid": [20, 40, 30]})
    session, found = session_of(spark, tmp_path)
    session.start(availableNow=True).await_termination()
    assert found == Counter([(2, "old 2", 20), (4, "late", 40)]), "order 2 met the old name, order 3 nobody"

    write(tmp_path, "orders", 3, {"id": [5], "customer": [1]})
    write(tmp_path, "payments", 3, {"order_id": [5, 4], "region": ["r1", "r1"], "paid": [50, 41]})
    customers.kill()
    session, found = session_of_known(spark, tmp_path, customers)
    run = session.start(availableNow=True)
    with pytest.raises(ab.errors.DatabaseError, match=r"database shop .* is it running"):
        run.await_termination()
    customers.start()
    session, found = session_of(spark, tmp_path)
    session.start(availableNow=True).await_termination()
    assert found == Counter([(5, "new 1", 50), (4, "late", 41)])
    out = capfd.readouterr()
    assert PASSWORD not in out.out + out.err
    files = [path for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if PASSWORD.encode() in path.read_bytes()]
    context = spark.sparkContext
    configured = [*context.getConf().getAll(), *spark.conf.getAll.items(), context.getLocalProperty(ASKING)]
    assert PASSWORD not in str(configured)
    assert PASSWORD not in str(run.journal) + str(run.progress) + repr(run) + repr(session)


def test_a_batch_waits_for_a_database_that_is_gone(spark: SparkSession, customers: Server, tmp_path: Path) -> None:
    """Until it is back, or the run is stopped: then whoever comes next waits for it."""
    write(tmp_path, "orders", 1, {"id": [1, 2], "customer": [1, 2]})
    write(tmp_path, "payments", 1, {"order_id": [1], "region": ["r1"], "paid": [10]})
    customers.kill()
    session, found = session_of_known(spark, tmp_path, customers, "wait")
    run = session.start(availableNow=True)
    wait_for(lambda: bool(run.waits_for))
    assert "is it running" in run.waits_for["q"]
    run.stop()
    assert not found
    session, found = session_of_known(spark, tmp_path, customers, "wait")
    run = session.start(availableNow=True)
    wait_for(lambda: run.journal["q"][-1].event == "waiting")
    customers.start()
    run.await_termination()
    assert found == Counter([(1, "old 1", 10)])
    assert [entry.event for entry in run.journal["q"]].count("answered") == 1
    assert run.waits_for == {}


def wait_for(is_so: Callable[[], bool]) -> None:
    deadline_s = monotonic() + WAIT_S
    while not is_so():
        assert monotonic() < deadline_s, "it never comes to that"
        sleep(0.05)


def session_of_known(
    spark: SparkSession, folder: Path, customers: Server, lookup_failure: str = "fail"
) -> tuple[ab.Session, Counter[tuple[object, ...]]]:
    """A session that was declared while the server ran."""
    customers.start()
    made = session_of(spark, folder, lookup_failure)
    customers.kill()
    close_all()
    return made


def test_one_stream_without_an_exchange_in_a_script(
    spark: SparkSession, customers: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what was measured it takes less to read the table than to look it up: workers are told, and ship it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    remember("shop", Measured(FORMAT, "here", False, 1e-4, {"lookup": {1000: 1.0}, "out": {1000: 1e-6}}))
    customers.sql("ANALYZE customers")
    write(tmp_path, "orders", 1, {"id": [1, 2, 3], "customer": [1, None, 4]})
    session = ab.Session(spark, str(tmp_path / "checkpoint"))
    results = ab.sinks.parquet(str(tmp_path / "out"))
    session.script(
        f"""CREATE STREAM orders (id BIGINT, customer BIGINT, ts TIMESTAMP) TIME ts FROM '{tmp_path}/orders/*.parquet';
            CREATE TABLE customers FROM DATABASE shop TABLE 'customers' STATIC;
            CREATE TABLE all_customers FROM DATABASE shop TABLE 'customers' REFRESH 1 MINUTE;
            CREATE QUERY q AS SELECT o.id, c.name, d.region FROM orders [NOW] o, customers c, all_customers d
                WHERE o.customer = c.id AND o.customer = d.id AND c.region <> 'r1'""",
        lambda _: results,
    )
    explained = " ".join(str(session.explain("q", verbose=True)).split())
    assert "orders+customers" in explained
    assert "then it is read once and kept in the worker" in explained
    run = session.start(availableNow=True)
    run.await_termination()
    (border,) = [border for step in run.progress["q"] for border in step.borders.values()]
    assert (border.database, border.calls, border.rows_sent, border.rows_back) == ("shop", 1, 0, 4)
    (file,) = (tmp_path / "out").rglob("*.parquet")
    assert pq.read_table(file, partitioning=None).to_pylist() == [{"id": 3, "name": "old 4", "region": "r0"}]
    shutil.rmtree(tmp_path / "out")


def test_a_frame_with_predicates_that_spark_evaluates(spark: SparkSession, customers: Server, tmp_path: Path) -> None:
    write(tmp_path, "orders", 1, {"id": [1, 2, 3, 4], "customer": [1, 2, 3, 4]})
    write(tmp_path, "payments", 1, {"order_id": [1, 2, 3], "region": ["r1", "r0", "r1"], "paid": [10, 20, 30]})
    session = ab.Session(spark, str(tmp_path / "checkpoint"), slots=2)
    for name in ("orders", "payments"):
        schema = spark.read.parquet(f"{tmp_path}/{name}").schema
        session.stream(name, spark.readStream.schema(schema).parquet(f"{tmp_path}/{name}"), "ts")
    session.table("customers", ab.database("shop").table("customers"), static=True)
    found = ab.sinks.memory()
    session.query("q", SQL + " AND o.id > 1 AND c.name <> 'old 9'", sink=found)
    run = session.start(availableNow=True)
    run.await_termination()
    assert found.table().sort_by("id").to_pylist() == [
        {"id": 2, "name": "old 2", "paid": 20}, {"id": 3, "name": "old 3", "paid": 30}
    ]  # fmt: skip
    (source,) = [name for name in run.progress["q"][0].rows if name.startswith("orders+")]
    assert sum(step.rows.get(source, 0) for step in run.progress["q"]) == 4, "the rows that Spark kept back are counted"
