"""A sink that does something in the middle of some batches."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame

from tests.support.oracle import bag


class Script:
    """A sink that collects results, and does something in the middle of some batches."""

    def __init__(self, actions: dict[int, Any]) -> None:
        self.actions, self.run, self.rows = actions, None, {}

    def __call__(self, frame: DataFrame, batch: int) -> None:
        self.rows[batch] = frame.toArrow()
        if batch in self.actions:
            self.actions.pop(batch)(self.run)

    def bag(self) -> Any:
        return sum((bag(rows) for rows in self.rows.values()), bag(next(iter(self.rows.values())).slice(0, 0)))
