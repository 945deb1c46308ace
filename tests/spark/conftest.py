"""What tests on Spark leave behind is stopped: they share the Spark of their worker (`spark` in `tests/conftest.py`)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession


@pytest.fixture(autouse=True)
def _batches_wait_for_sinks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch waits for its results to arrive, on a busy machine too: what sinks of tests do, they do in its time. When
    input has ended, a sink that fails is not tried again for long."""
    monkeypatch.setattr("anabranch.session_start.PATIENCE_S", 30.0)
    monkeypatch.setattr("anabranch.drive.delivery.FINISH_S", 0.5)


@pytest.fixture(autouse=True)
def _no_query_is_left_running() -> Iterator[None]:
    yield
    active = SparkSession.getActiveSession()
    for query in active.streams.active if active is not None else []:
        query.stop()
