"""Sessions of our own."""

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
