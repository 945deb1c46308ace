"""Conditions on times that windows defeat: told iff there are times that fulfil them and that a window keeps apart."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st

from anabranch.plan.defeated import Defeated, defeated
from anabranch.plan.expression import Call, Expr, Literal
from anabranch.plan.query import UNBOUNDED, Query, Window, range_window
from anabranch.sql import parse_script
from tests.support.queries import BOOL, TIME, column, query
from tests.support.scenarios import properties

ALIASES = "ABC"
COMPARE = {"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal}


@dataclass(frozen=True)
class Comparison:
    """`left.ts + left_us <op> right.ts + right_us`, or its negation."""

    op: str
    left: int
    left_us: int
    right: int
    right_us: int
    is_negated: bool = False

    @property
    def expr(self) -> Expr:
        compared = Call(BOOL, self.op, (shifted(self.left, self.left_us), shifted(self.right, self.right_us)))
        return Call(BOOL, "not", (compared,)) if self.is_negated else compared

    def holds(self, times: list[np.ndarray]) -> np.ndarray:
        found = COMPARE[self.op](times[self.left] + self.left_us, times[self.right] + self.right_us)
        return ~found if self.is_negated else found


def shifted(place: int, by_us: int) -> Expr:
    """A time with a constant added, or taken off if the constant is negative."""
    length = Literal(pa.duration("us"), timedelta(microseconds=abs(by_us)))
    return Call(TIME, "add" if by_us >= 0 else "sub", (column(f"{ALIASES[place]}.ts"), length))


SHIFTS = st.integers(-3, 3)
PLACES = st.integers(0, 2)
ORDERS = st.sampled_from(["lt", "le", "gt", "ge"])
COMPARISONS = st.builds(Comparison, ORDERS, PLACES, SHIFTS, PLACES, SHIFTS, st.booleans()) | st.builds(
    Comparison, st.just("eq"), PLACES, SHIFTS, PLACES, SHIFTS
)
WINDOWS = st.lists(st.integers(1, 9).map(range_window) | st.just(UNBOUNDED), min_size=3, max_size=3)


def check_windows_are_told_iff_they_lose_rows(windows: list[Window], comparisons: list[Comparison]) -> None:
    """All times of three rows are tried, up to twice what the constants add up to: what is further apart has no bound."""
    comparisons = [c for c in comparisons if c.left != c.right]
    built = query(
        " ".join(ALIASES), residuals=tuple(c.expr for c in comparisons), windows=dict(zip(ALIASES, windows, strict=True))
    )
    most_us = sum(abs(c.left_us) + abs(c.right_us) + 1 for c in comparisons)
    times = list(np.meshgrid(*[np.arange(2 * most_us + 2, dtype=np.int16)] * 3, indexing="ij"))
    fulfilled = np.logical_and.reduce([np.ones(times[0].shape, bool), *(c.holds(times) for c in comparisons)])
    expected = {}
    for place, window in enumerate(windows):
        apart = [int((times[x] - times[place])[fulfilled].max(initial=-1)) for x in range(3) if x != place]
        bounded = max((us for us in apart if us <= most_us), default=-1)
        if window.length_us <= bounded:
            expected[ALIASES[place]] = bounded
    assert {d.earlier: d.apart_us for d in defeated(built)} == expected


test_windows_are_told_iff_they_lose_rows, test_windows_are_told_iff_they_lose_rows_long = properties(
    check_windows_are_told_iff_they_lose_rows, 150, 4_000, windows=WINDOWS, comparisons=st.lists(COMPARISONS, max_size=4)
)

SOURCES = """
CREATE STREAM orders (k BIGINT, at TIMESTAMP) TIME at;
CREATE STREAM paid (k BIGINT, ts TIMESTAMP, t TIMESTAMP) TIME ts;
"""


def bound(text: str) -> Query:
    return parse_script(f"{SOURCES} CREATE QUERY q AS {text}").queries[0].query


def told(where: str, windows: str = "1 MINUTE, 1 MINUTE") -> list[Defeated]:
    of_orders, of_paid = windows.split(", ")
    source = f"orders [RANGE {of_orders}] o, paid [RANGE {of_paid}]"
    return defeated(bound(f"SELECT o.k FROM {source} WHERE o.k = paid.k AND {where}"))


def test_what_is_said() -> None:
    (found,) = told("paid.ts BETWEEN o.at AND o.at + INTERVAL 5 MINUTES")
    assert str(found) == (
        "the condition lets rows of paid be up to 5 minutes later than rows of o, which are valid for 1 minute "
        "(orders [RANGE 1 MINUTE] o): rows that are 1 minute or more apart are never joined. "
        "To join all that the condition allows, write orders [RANGE 301 SECONDS] o"
    )
    (found,) = told("paid.ts >= o.at AND paid.ts < o.at + INTERVAL 5 MINUTES")
    assert "be nearly 5 minutes later" in str(found)
    assert str(found).endswith("write orders [RANGE 5 MINUTES] o")


@pytest.mark.parametrize(
    ("where", "windows", "earlier"),
    [
        ("paid.ts BETWEEN o.at AND o.at + INTERVAL 5 MINUTES", "301 SECONDS, 1 MINUTE", []),
        ("paid.ts BETWEEN o.at AND o.at + INTERVAL 5 MINUTES", "5 MINUTES, 1 MINUTE", ["o"]),
        ("paid.ts >= o.at AND paid.ts < o.at + INTERVAL 5 MINUTES", "5 MINUTES, 1 MINUTE", []),
        ("o.at BETWEEN paid.ts - INTERVAL 5 MINUTES AND paid.ts + INTERVAL 5 MINUTES", "1 MINUTE, 1 MINUTE", ["o", "paid"]),
        ("paid.ts - INTERVAL 2 MINUTES <= o.at + INTERVAL 3 MINUTES", "1 MINUTE, 1 MINUTE", ["o"]),
        ("NOT paid.ts > o.at + INTERVAL 5 MINUTES", "1 MINUTE, 1 MINUTE", ["o"]),
        ("paid.ts > o.at", "1 MINUTE, 1 MINUTE", []),
        ("paid.ts = o.at", "1 MINUTE, 1 MINUTE", []),
        ("paid.ts = o.at + INTERVAL 1 HOUR", "1 MINUTE, 1 MINUTE", ["o"]),
        ("paid.t BETWEEN o.at AND o.at + INTERVAL 5 MINUTES", "1 MINUTE, 1 MINUTE", []),
        ("(paid.ts <= o.at + INTERVAL 5 MINUTES OR o.k = 1)", "1 MINUTE, 1 MINUTE", []),
        ("paid.ts <= o.at + INTERVAL 5 MINUTES AND paid.ts > o.at + INTERVAL 6 MINUTES", "1 MINUTE, 1 MINUTE", []),
    ],
)
def test_which_windows_are_told(where: str, windows: str, earlier: list[str]) -> None:
    assert [d.earlier for d in told(where, windows)] == earlier


def test_a_chain_of_conditions() -> None:
    """Each pair of neighbours fits its window, and the ends do not."""
    steps = "b.ts BETWEEN a.ts AND a.ts + INTERVAL 40 SECONDS AND c.ts BETWEEN b.ts AND b.ts + INTERVAL 40 SECONDS"
    (found,) = defeated(bound(f"SELECT a.k FROM paid a, paid b, paid c WHERE {steps} WINDOW 1 MINUTE"))
    assert (found.earlier, found.later, found.apart_us) == ("a", "c", 80_000_000)


def test_subqueries() -> None:
    inner = "SELECT o.k, COUNT(*) AS n, RESULT_TIME AS t FROM orders o, paid p WHERE p.ts <= o.at + INTERVAL 1 HOUR"
    found = defeated(
        bound(f"SELECT x.n FROM ({inner} GROUP BY o.k WINDOW 1 MINUTE) x, paid [RANGE 1 MINUTE] y "
              "WHERE x.k = y.k AND y.ts <= x.t + INTERVAL 10 SECONDS")
    )  # fmt: skip
    assert [(d.query, d.earlier) for d in found] == [("q.x", "o"), ("q", "x")]
