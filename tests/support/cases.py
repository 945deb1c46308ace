"""Which random cases a run takes.

| run | cases |
|---|---|
| `make test` | the fixed ones: always the same; then fresh ones for a minute (`tests/test_fresh.py`) |
| `make quick` | the first few of the fixed ones, some of what a test goes through by itself, some cases of dear tests |
| `make test-long` | the long ones: many times as many, drawn from a seed |
| `make test-long PART=3/12` | the third of twelve parts of the long ones; all parts together are all of them |

Tests need not know of it: how many examples Hypothesis draws, and which seeds of a parametrized test are run, is decided
when they are collected (`tests/conftest.py`). A test that goes through seeds, or through every put of a run, by itself takes
its part from the fixture `part`. A parametrized test that is dear is marked `few(n)`: of its cases `make quick` takes n.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import hypothesis
from hypothesis import settings

Case = TypeVar("Case")

QUICK_EXAMPLES = 2
"""So many examples of a Hypothesis test `make quick` takes."""

QUICK_SEEDS = 1
"""And so many seeds of a test that is parametrized by them."""

QUICK_PARTS = 20
"""And one of so many parts of what a test goes through by itself."""


@dataclass(frozen=True)
class Part:
    """The `number`-th of `count` parts, from 1."""

    number: int = 1
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> Part:
        """
        >>> Part.parse("3/12")
        Part(number=3, count=12)
        """
        found = re.fullmatch(r"(\d+)/(\d+)", text)
        if found is None or not 1 <= int(found[1]) <= int(found[2]):
            raise ValueError(f"{text!r} is not a part: write 3/12 for the third of twelve")
        return cls(int(found[1]), int(found[2]))

    def of(self, cases: Sequence[Case]) -> Sequence[Case]:
        """Every `count`-th of some cases.

        >>> [list(Part(number, 3).of(range(5))) for number in (1, 2, 3)]
        [[0, 3], [1, 4], [2]]
        """
        return cases[self.number - 1 :: self.count]

    def share(self, total: int) -> int:
        """How many of `total` cases that are drawn are in this part.

        >>> [Part(number, 12).share(500) for number in range(1, 13)]
        [41, 42, 42, 41, 42, 42, 41, 42, 42, 41, 42, 42]
        """
        return total * self.number // self.count - total * (self.number - 1) // self.count


def draw(test: Any, examples: int, seed: int | None = None) -> None:
    """Has a Hypothesis test draw so many examples: from a seed, or as it does by itself.

    Hypothesis refuses to decorate a test with settings twice, so its attribute is set as its own plugin for pytest does.
    """
    if seed is not None:
        hypothesis.seed(seed)(test)
    test._hypothesis_internal_use_settings = settings(test._hypothesis_internal_use_settings, max_examples=examples)


def examples_of(test: Any) -> int:
    """How many examples a Hypothesis test draws."""
    return int(test._hypothesis_internal_use_settings.max_examples)


def seed_of(seed: int, *names: object) -> int:
    """A seed for one test, or for one part of it."""
    return zlib.crc32(repr((seed, *names)).encode())
