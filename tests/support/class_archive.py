"""Classes of Spark's as the JVM has them in memory: `python -m tests.support.class_archive <file>` writes them to a file.

A JVM that is given the file (`-XX:SharedArchiveFile`) takes from it what it would else read from jars and verify, and has
started a Spark with much less CPU. The tests start some thirty. A Java that the file does not fit passes it over.
"""

from __future__ import annotations

import os
import sys
import tempfile

ARCHIVE = os.path.join(sys.prefix, "spark-classes.jsa")
"""Where `make` has it written: beside the packages that it is made of."""

SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Java compiles once, and quickly: tests run everything a few times, and better code would cost more than it saves."""


def use_archive() -> None:
    """Has the JVMs that this process and its children start be short-lived ones, and use the archive, if there is one."""
    archive = f" -XX:SharedArchiveFile={ARCHIVE} -Xlog:disable" if os.path.exists(ARCHIVE) else ""
    os.environ["JAVA_TOOL_OPTIONS"] = SHORT_LIVED + archive


def write(path: str) -> None:
    """Runs a query over frames and files, so that all classes are there that tests use."""
    from anabranch.spark import sinks
    from anabranch.spark.create import create_session
    from tests.support.feeding import Feed
    from tests.support.fixed_scenarios import many_batches

    unfinished = f"{path}.tmp"
    options = {"spark.driver.extraJavaOptions": f"{SHORT_LIVED} -XX:ArchiveClassesAtExit={unfinished} -Xlog:disable"}
    spark = create_session("local[2]", options)
    with tempfile.TemporaryDirectory() as folder:
        feed = Feed(many_batches(2), folder, "mixed")
        feed.write(range(2))
        feed.run(spark, sinks.memory())
    java = spark.sparkContext._gateway.proc
    spark.stop()
    java.stdin.close()
    java.wait()
    os.rename(unfinished, path)


if __name__ == "__main__":
    write(sys.argv[1])
