"""Input paths: what a row of a stream costs all the way to the root, and what it gives there (JAQPOT, section 4.1,
definitions 3 and 4, equations 5 to 8).

    Path^I      `InputPath`                the half-way joins from the stream I to the root
    φ_j^I       `InputPath.rows[j]`        rows that one row of I has become after j half-way joins; φ_0 = 1 (eq. 5)
    X_1^I       leaf rows per second
    X_j^I       X_1 · φ_{j−1}: rows per second at the j-th half-way join (eq. 6 and 7)
    X^I         X_1 · Σ φ_{j−1}: what all of the path takes; here Σ φ_{j−1} · cost_j
    ρ_p         φ_n / Σ φ_{j−1} (eq. 8); here results per unit of cost

What a half-way join finds all goes on to the next one: *producer-consumer match*. Nothing that was paid for is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from anabranch.overload.half_way import HalfWayJoin, Plan


@dataclass(frozen=True)
class InputPath:
    """The half-way joins that the rows of one stream go through."""

    stream: str
    rate_per_s: float
    hops: tuple[HalfWayJoin, ...]
    rows: tuple[float, ...]
    """φ_0 to φ_n."""

    @property
    def cost_per_row(self) -> float:
        """What one row of the stream costs, with all that it becomes."""
        return sum(count * hop.cost_per_row for count, hop in zip(self.rows, self.hops, strict=False))

    @property
    def results_per_row(self) -> float:
        """φ_n."""
        return self.rows[-1]

    @property
    def productivity(self) -> float:
        """ρ_p: results per unit of cost."""
        return self.results_per_row / self.cost_per_row if self.cost_per_row else float("inf")

    @property
    def states(self) -> tuple[str, ...]:
        """The intermediate states that rows of the stream get into, those below first."""
        return tuple(hop.input for hop in self.hops[1:])

    def divide(self, resources: float) -> tuple[float, ...]:
        """X_1 to X_n: rows per second at each half-way join, for a share of the capacity (equation 7)."""
        leaf = resources / self.cost_per_row if self.cost_per_row else 0.0
        return tuple(leaf * count for count in self.rows[:-1])


def input_paths(plan: Plan) -> tuple[InputPath, ...]:
    """A path for each stream, in the order of the plan.

    >>> from anabranch.overload.half_way import Stream, join
    >>> a, b, c = Stream("a", 500, 5000, 0), Stream("b", 700, 500, 0), Stream("c", 300, 1000, 0)
    >>> path = input_paths(Plan(join(join(a, b, 0.001, 200), c, 0.005)))[1]
    >>> path.rows, path.divide(600.0)
    ((1.0, 5.0, 25.0), (100.0, 500.0))
    """
    found = []
    for stream in plan.streams:
        hops, rows, at = [], [1.0], stream.name
        while at != plan.root.name:
            hop = plan.by_input[at]
            hops.append(hop)
            rows.append(rows[-1] * hop.results_per_row)
            at = plan.above[at]
        found.append(InputPath(stream.name, stream.rate_per_s, tuple(hops), tuple(rows)))
    return tuple(found)


def allowances_of(paths: tuple[InputPath, ...], leaf_rows: Mapping[str, float]) -> dict[str, float]:
    """Rows per second at each half-way join, for so many rows of each stream that go all the way."""
    found: dict[str, float] = {}
    for path in paths:
        for hop, count in zip(path.hops, path.rows, strict=False):
            found[hop.input] = found.get(hop.input, 0.0) + leaf_rows.get(path.stream, 0.0) * count
    return found
