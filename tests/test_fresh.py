"""Random cases that no run had before: every property for its share of a minute, from a seed that is printed.

What fails here is a find. Repeat it with the seed that the failure names, mend it, and keep the case: a `Scenario` goes to
`tests/support/regressions.py`, anything else to the `examples` of its `properties(…)`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import FlakyStrategyDefinition

from tests.support.scenarios import PROPERTIES, Property

FRESH_S = 60.0
"""So long fresh cases are drawn, by all properties together."""

ROUND = 10
"""Examples from one seed: few, so that a case that fails is found again soon. The first of each round is the simplest."""

HERE = Path(__file__).parent
for path in sorted(HERE.rglob("test_*.py")):
    if " = properties(" in path.read_text():
        importlib.import_module(".".join(("tests", *path.relative_to(HERE).with_suffix("").parts)))


@pytest.mark.fresh
@pytest.mark.parametrize("checked", PROPERTIES, ids=str)
def test_fresh(checked: Property, request: pytest.FixtureRequest) -> None:
    number = request.config.option.seed
    until = time.monotonic() + FRESH_S / len(PROPERTIES)
    if request.config.option.repeats:
        draw_round(checked, number, request.node.nodeid)
        number += 1
    while time.monotonic() < until:
        draw_round(checked, number, request.node.nodeid, until)
        number += 1


class TimeIsOver(BaseException):
    """Ends a round. To Hypothesis it is no failure; a case that draws as it is checked cannot be let go in its middle."""


def draw_round(checked: Property, number: int, nodeid: str, until: float = float("inf")) -> None:
    """Checks some cases that are drawn from a seed, until the time is over."""
    failed = False

    @functools.wraps(checked.check)
    def check_in_time(**case: Any) -> None:
        nonlocal failed
        if time.monotonic() >= until and not failed:  # a case that fails is made smaller, however long that takes
            raise TimeIsOver
        failed = True
        checked.check(**case)
        failed = False

    drawn = given(**checked.drawn)(check_in_time)
    quiet = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    drawn = seed(number)(settings(max_examples=ROUND, deadline=None, database=None, suppress_health_check=quiet)(drawn))
    try:
        with contextlib.suppress(TimeIsOver):
            drawn()
    except Exception as error:
        if isinstance(error, FlakyStrategyDefinition) and time.monotonic() >= until and not failed:
            return  # a case that draws as it is checked was let go before it drew
        error.add_note(
            f"A fresh case fails; again: .venv/bin/python -m pytest '{nodeid}' --seed {number}\n"
            "Keep it: a Scenario in tests/support/regressions.py, anything else in the examples of its properties(…)."
        )
        raise


def test_fresh_cases_differ_by_seed_and_a_failure_says_how_to_repeat_it() -> None:
    met: list[int] = []

    def keeps(value: int) -> None:
        met.append(value)

    numbers = Property(keeps, {"value": st.integers(0, 2**60)})
    rounds = []
    for number in (7, 8, 7):
        met.clear()
        draw_round(numbers, number, "here")
        rounds.append(tuple(met))
    assert rounds[0] == rounds[2] != rounds[1]

    def fails(value: int) -> None:
        raise AssertionError("wrong")

    with pytest.raises(AssertionError) as caught:
        draw_round(Property(fails, {"value": st.integers()}), 41, "tests/test_fresh.py::test_fresh[x]")
    assert any("test_fresh[x]' --seed 41" in note for note in caught.value.__notes__)
