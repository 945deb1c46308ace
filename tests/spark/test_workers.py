"""Python workers: what they have loaded, and what the collector of garbage looks at after each task."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession


def looked_at(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Says of a worker where it has pyspark from, whether our task is loaded, and how much is passed over."""
    for _ in batches:
        pass
    import gc

    import pyspark

    is_loaded = "anabranch.spark.task" in sys.modules
    yield pa.RecordBatch.from_pydict(
        {"pyspark": [pyspark.__file__], "loaded": [is_loaded], "frozen": [gc.get_freeze_count()]}
    )


def test_workers_of_our_sessions_begin_with_our_code(spark: SparkSession) -> None:
    """It is there before any task of ours has run in the worker."""
    rows = spark.range(2, numPartitions=2).mapInArrow(looked_at, "pyspark string, loaded boolean, frozen long").collect()
    assert len(rows) == 2
    assert all(row.loaded and row.frozen > 50_000 and ".zip" not in row.pyspark for row in rows), rows


SETTLES = """
import gc, weakref
from anabranch.spark.workers import settle, settle_with

class Node: pass

def node():
    made = Node()
    made.itself = made
    return made

settle()
frozen = gc.get_freeze_count()
assert frozen > 50_000, frozen
gone = weakref.ref(node())
settle()
assert gc.get_freeze_count() <= frozen, "what is made later is not frozen"
gc.collect()
assert gone() is None, "and still collected"
kept = {"slot 0": node()}
settle_with(kept)
assert gc.get_freeze_count() > frozen, "what is kept between tasks is passed over, too"
frozen, before = gc.get_freeze_count(), weakref.ref(kept["slot 0"])
other = node()
settle_with(kept)
assert gc.get_freeze_count() <= frozen, "as long as it is the same"
kept = {"slot 0": node()}
settle_with(kept)
assert before() is None, "and collected when something else takes its place"
gone = weakref.ref(kept.pop("slot 0"))
settle_with(kept)
assert gone() is None, "or nothing does"
print("settled")
"""


def test_what_tasks_make_is_still_collected() -> None:
    done = subprocess.run([sys.executable, "-c", SETTLES], capture_output=True, text=True, timeout=120, check=False)
    assert "settled" in done.stdout, done.stderr
