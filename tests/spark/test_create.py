"""Sessions of our own. Spark is started in processes of their own here, in which there is none."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from pyspark import SparkConf
from pyspark.sql import SparkSession

from anabranch.spark import create, quiet

STARTS = """
import os
import sys
import anabranch as ab
import pyarrow as pa
from anabranch.spark import create

def looked_at(batches):
    import gc
    import pyspark
    for _ in batches:
        pass
    of_zip, is_loaded = ".zip" in pyspark.__file__, "anabranch.spark.task" in sys.modules
    yield pa.RecordBatch.from_pydict({"zip": [of_zip], "loaded": [is_loaded], "frozen": [gc.get_freeze_count()]})

create._version = lambda java: 0
session = ab.Session()
err = session.spark._jvm.java.lang.System.err
session.spark.range(3).count()
err.println("a word of the JVM")
print("rows", session.spark.range(7).count(), os.environ["JAVA_HOME"])
workers = session.spark.range(2, numPartitions=2).mapInArrow(looked_at, "zip boolean, loaded boolean, frozen long").collect()
print("workers", [(row.zip, row.loaded, row.frozen > 50_000) for row in workers])
session.spark.stop()
"""

FAILS = """
from anabranch.errors import SparkStartError
from anabranch.spark.create import create_session

for master in ("nowhere", "local[many]"):
    try:
        create_session(master)
    except SparkStartError as error:
        print(f"{master}: {error}")
"""


def in_a_process(script: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "JAVA_TOOL_OPTIONS": "-Danabranch.test=yes"}
    command = [sys.executable, "-c", script]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)


@pytest.mark.spark
def test_spark_starts_without_a_word_and_speaks_then() -> None:
    """Java comes from a package, where the machine has none. Workers take pyspark from where it is installed, and begin with
    our code: it is there, and no matter of the collector of garbage, before any task of ours has run."""
    done = in_a_process(STARTS)
    rows, workers = done.stdout.splitlines() or ["", ""]
    assert rows.startswith("rows 7 "), done.stderr[-2000:]
    assert "anabranch-" in rows
    assert workers == "workers [(False, True, True), (False, True, True)]"
    assert done.stderr == "a word of the JVM\n"


@pytest.mark.spark
def test_a_spark_that_does_not_start_says_why() -> None:
    """Also if a JVM is there already."""
    done = in_a_process(FAILS)
    nowhere, many = done.stdout.partition("local[many]: ")[::2]
    assert nowhere.startswith("nowhere: Spark does not start: ")
    assert "Master must either be yarn or start with spark, k8s, or local" in nowhere
    assert many.startswith("Spark does not start: ")
    assert "Could not parse Master URL" in many
    assert "\n  at " not in done.stdout
    assert "Picked up" not in done.stdout + done.stderr


@pytest.mark.parametrize("is_quiet", [True, False])
def test_a_spark_that_is_not_to_be_quiet_is_left_to_itself(monkeypatch: pytest.MonkeyPatch, is_quiet: bool) -> None:
    """Only a quiet one has a pipe for what its JVM prints."""
    launched: list[dict[str, int]] = []

    def launch(conf: SparkConf, process: dict[str, int]) -> object:
        launched.append(process)
        raise OSError("there is no Java")

    monkeypatch.setattr(quiet.SparkContext, "_gateway", None)
    monkeypatch.setattr(quiet, "launch_gateway", launch)
    with contextlib.suppress(quiet.SparkStartError), quiet.quietly(SparkConf(loadDefaults=False), is_quiet):
        pass
    assert ["stderr" in process for process in launched] == [is_quiet]


@pytest.mark.parametrize("is_quiet", [True, False])
def test_whether_spark_is_quiet_is_passed_on(monkeypatch: pytest.MonkeyPatch, is_quiet: bool) -> None:
    given: list[bool] = []

    @contextlib.contextmanager
    def noted(conf: SparkConf, is_quiet: bool) -> Iterator[None]:
        given.append(is_quiet)
        raise InterruptedError
        yield

    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    monkeypatch.setattr(create, "quietly", noted)
    with pytest.raises(InterruptedError):
        create.create_session("local[1]", quiet=is_quiet)
    assert given == [is_quiet]
