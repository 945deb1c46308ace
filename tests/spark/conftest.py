"""What tests on Spark leave behind is stopped: they share the Spark of their worker (`spark` in `tests/conftest.py`)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession


@pytest.fixture(autouse=True)
def _no_query_is_left_running() -> Iterator[None]:
    yield
    active = SparkSession.getActiveSession()
    for query in active.streams.active if active is not None else []:
        query.stop()
