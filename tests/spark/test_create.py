"""Sessions of our own."""

import os
import subprocess
import sys

import pytest


@pytest.mark.spark
def test_java_comes_from_a_package_where_the_machine_has_none() -> None:
    """In a process of its own, that finds no Java."""
    script = """
import os
from anabranch.spark import create
create._version = lambda java: 0
spark = create.create_session("local[1]")
print("rows", spark.range(7).count(), os.environ["JAVA_HOME"])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert "rows 7" in done.stdout, done.stderr[-2000:]
    assert "anabranch-" in done.stdout


def in_a_process(script: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "JAVA_TOOL_OPTIONS": "-Danabranch.test=yes"}
    command = [sys.executable, "-c", script]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)


@pytest.mark.spark
def test_spark_starts_without_a_word_and_speaks_then() -> None:
    done = in_a_process("""
import anabranch as ab
session = ab.Session()
err = session.spark._jvm.java.lang.System.err
session.spark.range(3).count()
err.println("a word of the JVM")
print("rows", session.spark.range(7).count())
session.spark.stop()
""")
    assert done.stdout == "rows 7\n"
    assert done.stderr == "a word of the JVM\n"


@pytest.mark.spark
def test_a_spark_that_is_not_to_be_quiet() -> None:
    done = in_a_process("from anabranch.spark.create import create_session; create_session('local[1]', quiet=False)")
    assert "Picked up JAVA_TOOL_OPTIONS" in done.stderr


@pytest.mark.spark
@pytest.mark.parametrize(("master", "why"), [
    ("nowhere", "Master must either be yarn or start with spark, k8s, or local"),
    ("local[many]", "Could not parse Master URL"),
])  # fmt: skip
def test_a_spark_that_does_not_start_says_why(master: str, why: str) -> None:
    done = in_a_process(f"""
from anabranch.spark.create import create_session
from anabranch.errors import SparkStartError
try:
    create_session({master!r})
except SparkStartError as error:
    print(error)
""")
    assert done.stdout.startswith("Spark does not start: ")
    assert why in done.stdout
    assert "\n  at " not in done.stdout
    assert "Picked up" not in done.stdout + done.stderr
