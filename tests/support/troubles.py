"""What goes wrong in a simulation, drawn at random: puts, sinks, pauses; and which plans are asked for."""

from __future__ import annotations

from hypothesis import strategies as st

from anabranch.plan.migration import Strategy
from tests.support.faulty import Fault

KINDS = st.sampled_from(["lose", "tear", "crash_after"]).map(lambda kind: Fault(kind))  # type: ignore[arg-type]
FAULTS = st.dictionaries(st.integers(0, 120), KINDS, max_size=6)
ASKS = st.dictionaries(st.integers(0, 8), st.tuples(st.integers(0, 3), st.sampled_from(list(Strategy))), max_size=4)
PAUSES = st.frozensets(st.integers(0, 8), max_size=4)
FAILS = st.dictionaries(
    st.integers(0, 9), st.sampled_from(["before", "after", "fails before", "fails after"]), max_size=3
)
