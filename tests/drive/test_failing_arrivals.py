"""A batch with which a query comes, or is altered, is run again and again: it is given up on nobody's account."""

from __future__ import annotations

import pytest

from anabranch.drive.local import LocalPipeline
from anabranch.drive.steering import MOST_FAILED_RUNS
from anabranch.sql import bind_query
from anabranch.storage.filesystem import MemoryFilesystem
from tests.support.pairs import CATALOG, rows

JOIN = "SELECT a.x, b.x AS y FROM a, b WHERE a.k = b.k{} WINDOW 3 SECONDS"


@pytest.mark.parametrize("name", ["later", "first"])
def test_a_batch_with_a_query_that_has_not_run_yet(name: str) -> None:
    """No commit has what such a query ran before: it goes on with the plan that it came with."""
    pipeline = LocalPipeline([bind_query("first", JOIN.format(""), CATALOG)], MemoryFilesystem())
    pipeline.step(0, rows(0))
    pipeline.add(bind_query(name, JOIN.format(" AND a.x > 2"), CATALOG), history=name == "first")
    began = [pipeline.driver.begin(1) for _ in range(MOST_FAILED_RUNS + 2)]
    assert began[-1].runs == MOST_FAILED_RUNS + 2
    for control in began:
        assert control.queries[name].execution == began[0].queries[name].execution
        assert control.queries[name].since == (0 if name == "first" else 1)
