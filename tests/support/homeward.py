"""Blocks that DuckDB runs and that come home while their query runs: what several tests send there and back."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from anabranch.control.loop import Observed, Proposal, Wish
from anabranch.control.pace import Took
from anabranch.control.records import BlockFigures
from anabranch.plan.actions import PlaceBlock
from anabranch.plan.eager import Forms
from anabranch.plan.migration import Execution, Strategy
from anabranch.plan.query import SECOND_US

ALONE = "SELECT /*+ PLACE(x, duck) */ x.k, x.n, x.m FROM (SELECT k, COUNT(*) AS n, COUNT(DISTINCT v) AS m " \
        "FROM s [RANGE 6 SECONDS] WHERE v <> 3 GROUP BY k SLIDE 2 SECONDS) x"  # fmt: skip
JOINED = "SELECT /*+ PLACE(x, duck) */ x.k, x.n FROM (SELECT a.k, COUNT(*) AS n, MAX(b.v) AS m " \
         "FROM s [RANGE 6 SECONDS] a, s [RANGE 4 SECONDS] b WHERE a.k = b.k AND a.v <= b.v GROUP BY a.k) x"  # fmt: skip
ROWS = [
    {"s": pa.table({"k": [b % 2, 1, 2], "v": [b, 1, 2], "ts": pa.array([b * SECOND_US] * 3, pa.timestamp("us"))})}
    for b in range(30)
]


class Homeward:
    """A loop that has a block come home after a batch, and go back after another."""

    def __init__(self, forms: Forms, home: int, back: int) -> None:
        self.home, self.back = home, back

    def after(self, execution: Execution, observed: Observed) -> Proposal | None:
        place = {self.home: "engine", self.back: "duck"}.get(observed.batch)
        if place is None:
            return None
        return Proposal(PlaceBlock("q.x", place, execution.plan, Strategy.GRADUAL), "it is time")

    def granted(self, execution: Execution, wish: Wish) -> Proposal:
        raise AssertionError("nobody asks")

    def took(self, observed: Observed) -> Mapping[str, Took]:
        return {}

    @property
    def figures(self) -> Mapping[str, BlockFigures]:
        return {}
