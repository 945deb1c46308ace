"""Queries that come, go and change while others run give what the oracle says of their stay."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.support.coming import check_coming
from tests.support.kin import kin
from tests.support.scenarios import properties
from tests.support.workloads import Workload, workloads

WHAT = ["add", "add", "history", "leave", "alter", "plan of all", "plan", "restart", "cut"]
ACTIONS = st.lists(
    st.tuples(st.integers(1, 9), st.sampled_from(WHAT), st.integers(0, 11), st.integers(0, 99)), min_size=1, max_size=9
)
TURNS = st.lists(st.integers(0, 1), min_size=1, max_size=5)

SPREAD_BY_WHAT_NOBODY_READS = {
    "workload": Workload(204, 3, 6), "slots": 4, "count": 2, "actions": [(1, "alter", 1, 0)], "turns": [0],
}  # fmt: skip
"""A query that joins by j is altered, and nobody reads j any more: the rows of the other one are still spread by it."""

test_kin_that_comes, test_kin_that_comes_long = properties(
    check_coming, 40, 2_000, workload=kin(), slots=st.sampled_from([1, 2, 4]), count=st.integers(1, 4), actions=ACTIONS,
    turns=TURNS,
)  # fmt: skip

test_anybody_who_comes, test_anybody_who_comes_long = properties(
    check_coming, 25, 1_000, [SPREAD_BY_WHAT_NOBODY_READS], workload=workloads(), slots=st.sampled_from([1, 4]),
    count=st.integers(1, 4), actions=ACTIONS, turns=TURNS,
)  # fmt: skip
