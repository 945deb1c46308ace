"""One SparkSession for all tests of this room.

Every test here belongs to the xdist group `spark`: with `--dist loadgroup` one worker runs them all, and Spark starts once.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from anabranch.spark.create import create_session


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = create_session("local[2]")
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def _no_query_is_left_running() -> Iterator[None]:
    yield
    active = SparkSession.getActiveSession()
    for query in active.streams.active if active is not None else []:
        query.stop()
