"""Every error of ours that a worker raises is told as what it was: its class and its text, without the stacks around it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from anabranch import errors
from anabranch.errors import AnabranchError, QueryFailedError, SqlError, UnknownFormatError
from anabranch.spark.failures import told

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
