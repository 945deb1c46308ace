"""A sink on Spark that remembers what it was brought, and fails when told to."""

from __future__ import annotations

from collections import defaultdict

from pyspark.sql import DataFrame

from tests.support import oracle
from tests.support.feeding import bag, expected
from tests.support.scenarios import Scenario


class Collector:
    """A sink of at least once: remembers what each batch brought every time. In some batches it fails, "before" it has taken
    the results or "after", at every try until somebody mends it."""

    def __init__(self, scenario: Scenario, fail_in: dict[int, str]) -> None:
        self.scenario, self.fail_in = scenario, dict(fail_in)
        self.brought: dict[int, list[oracle.Bag]] = defaultdict(list)
        self.failed: set[int] = set()

    def __call__(self, results: DataFrame, number: int) -> None:
        fails = self.fail_in.get(number, "")
        self.failed |= {number} if fails else set()
        if fails == "before":
            raise ValueError("the sink is broken")
        self.brought[number].append(bag(results.toArrow(), self.scenario))
        if fails:
            raise ValueError("the sink is broken")

    def mend(self) -> None:
        """What has failed works from now on."""
        for number in self.failed:
            self.fail_in.pop(number, None)

    def assert_right(self) -> None:
        assert all(again == first for first, *others in self.brought.values() for again in others)
        total = sum((bags[-1] for bags in self.brought.values()), oracle.Bag())
        assert not (wrong := oracle.difference(total, expected(self.scenario))), wrong
