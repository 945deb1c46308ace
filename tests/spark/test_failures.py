"""Every error of ours that a worker raises is told as what it was: its class and its text, without the stacks around it."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

import anabranch as ab
from anabranch import errors
from anabranch.drive import delivery
from anabranch.errors import AnabranchError, FilesError, QueryFailedError, SinkError, SqlError, UnknownFormatError
from anabranch.spark.failures import told
from tests.support.feeding import finish

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, AnabranchError)]

TEXTS = [
    "a file is torn",
    "the files differ:\n--- checkpoint\n+++ query q\n@@ -1 +1 @@\n-input a\n+input b\nuse another checkpoint",
    "a text: with colons, 'quotes' and é\n  at the beginning of a line\nCaused by nobody",
]


def made(kind: type[AnabranchError], text: str) -> AnabranchError:
    if issubclass(kind, SqlError):
        return kind(text, "SELECT a.k\nFROM a, b -- at last\nWHERE a.k = b.k", 2, 9, hint="write it\nanother way")
    if issubclass(kind, UnknownFormatError):
        return kind(text, "name one")
    if issubclass(kind, QueryFailedError):
        return kind("pairs", ValueError(text))
    return kind(text)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", TEXTS)
def test_an_error_is_made_from_its_text(kind: type[AnabranchError], text: str) -> None:
    error = made(kind, text)
    again = kind.from_text(str(error))
    assert type(again) is kind
    assert str(again) == str(error)


def test_an_error_of_sql_keeps_its_place() -> None:
    error = SqlError.from_text(str(made(SqlError, TEXTS[0])))
    assert (error.message, error.line, error.column, error.hint) == (TEXTS[0], 2, 9, "write it\nanother way")
    placeless = SqlError("there are two", "", 0, 0, "rename one")
    assert str(placeless) == str(SqlError.from_text(str(placeless))) == "there are two: rename one"


def test_every_error_over_spark(spark: SparkSession) -> None:
    """Raised in a task: by itself, or because of another error."""
    for number, kind in enumerate(KINDS):
        text = TEXTS[number % len(TEXTS)]

        def fail(
            batches: Iterator[pa.RecordBatch], kind: type[AnabranchError] = kind, text: str = text
        ) -> Iterator[pa.RecordBatch]:
            yield from ()
            try:
                raise OSError("the disk")
            except OSError as cause:
                raise made(kind, text) from (cause if text == TEXTS[0] else None)

        with pytest.raises(Exception, match=kind.__name__) as raised:
            spark.range(0, 1, 1, 1).mapInArrow(fail, "id BIGINT").collect()
        found = told(raised.value)
        assert type(found) is kind, str(raised.value)[:3000]
        assert str(found) == str(made(kind, text))


def session_over(spark: SparkSession, folder: Path) -> ab.Session:
    made = ab.Session(spark, folder / "checkpoint", slots=1)
    made.stream("s", f"{folder}/in/*.parquet", "ts", columns={"k": "BIGINT", "ts": "TIMESTAMP"})
    return made


def write(folder: Path, name: str) -> Path:
    os.makedirs(folder / "in", exist_ok=True)
    path = folder / "in" / name
    times = pa.array(range(1000), pa.timestamp("us"))
    pq.write_table(pa.table({"k": pa.array(range(1000)), "ts": times}), path, compression="none", use_dictionary=False)
    return path


def test_a_failing_sink_is_told_as_that(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Query, batch, sink, and the error: of the function itself, or of a job that it has run."""
    monkeypatch.setattr(delivery, "FINISH_S", 0.0)
    write(tmp_path, "0.parquet")

    def fail(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise FilesError("the disk is full")
        yield from rows

    def save(results: DataFrame, batch: int) -> None:
        results.mapInArrow(fail, results.schema).collect()

    session = session_over(spark, tmp_path)
    session.query("all_of_it", "SELECT k FROM s [NOW]", save)
    with pytest.raises(SinkError) as failed:
        finish(session.start(availableNow=True))
    first, second = str(failed.value).splitlines()
    assert first.startswith("the sink of query all_of_it (the function save) has failed ")
    assert first.endswith(" in batch 0: the disk is full")
    assert second == "what waits for it is delivered at the next start"


def test_a_damaged_file_is_told_in_a_line(spark: SparkSession, tmp_path: Path) -> None:
    path = write(tmp_path, "0.parquet")
    content = bytearray(path.read_bytes())
    content[4:200] = bytes(196)  # its end is whole, and says that it is complete
    path.write_bytes(content)
    os.utime(path, (1000, 1000))
    session = session_over(spark, tmp_path)
    session.query("q", "SELECT k FROM s [NOW]", ab.sinks.memory())
    with pytest.raises(FilesError) as failed:
        finish(session.start(availableNow=True))
    assert str(failed.value).startswith(f"{path} cannot be read as parquet: ")
    assert "\n" not in str(failed.value)
