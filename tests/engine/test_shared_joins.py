"""Queries that run one join together give what each gives alone, batch by batch, and what the oracle says."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.support.kin import kin
from tests.support.scenarios import properties
from tests.support.together import check_sharing

ACTIONS = st.lists(
    st.tuples(
        st.integers(1, 9), st.sampled_from(["plan of all", "plan", "restart", "plan of all", "drop"]),
        st.integers(0, 7), st.integers(0, 99),
    ),
    max_size=5,
)  # fmt: skip

test_shared_joins, test_shared_joins_long = properties(
    check_sharing, 25, 6_000, workload=kin(), slots=st.sampled_from([1, 2, 4]), actions=ACTIONS,
    turns=st.lists(st.integers(0, 1), min_size=1, max_size=5),
)  # fmt: skip
