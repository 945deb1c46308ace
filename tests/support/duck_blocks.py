"""Blocks that DuckDB may run: which they are, a loop that moves them, and what happens meanwhile, drawn at random."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from hypothesis import strategies as st

from anabranch.control.loop import Observed, Proposal, Wish
from anabranch.control.pace import Took
from anabranch.control.records import BlockFigures
from anabranch.place.capabilities import DUCKDB
from anabranch.place.wishes import why_not_in
from anabranch.plan.actions import PlaceBlock
from anabranch.plan.eager import Forms
from anabranch.plan.migration import Execution, Strategy
from anabranch.plan.query import Query
from tests.support.faulty import Fault

KINDS = st.sampled_from(["lose", "tear", "crash_after"]).map(lambda kind: Fault(kind))  # type: ignore[arg-type]
FAULTS = st.dictionaries(st.integers(0, 80), KINDS, max_size=4)
FAILS = st.dictionaries(
    st.integers(0, 9), st.sampled_from(["before", "after", "fails before", "fails after"]), max_size=2
)


def able(query: Query) -> list[str]:
    """The blocks of a query that DuckDB may run."""
    found = [block.name for block in query.blocks if block.grouping is not None or block is query]
    query = replace(query, place="duck")
    return [name for name in found if not why_not_in(query, name, DUCKDB)]


SEEDS, SLOTS = st.integers(0, 100), st.sampled_from([1, 2, 3])
STOPS, TURNS = st.lists(st.integers(0, 8), max_size=2), st.lists(st.integers(0, 2), min_size=1, max_size=5)


def way(number: int) -> Strategy:
    """How blocks come home that are asked to before a batch: piece by piece, or at once."""
    return Strategy.MOVING_STATE if number % 3 == 0 else Strategy.GRADUAL


class Mover:
    """A loop that has a block go where it is not, after some batches: one that DuckDB may run, or else one that is to begin
    in the engine."""

    def __init__(self, forms: Forms, batches: Collection[int]) -> None:
        self.query, self.batches = forms.written, batches
        self.blocks = list(forms.written.places) or able(forms.written)

    def after(self, execution: Execution, observed: Observed) -> Proposal | None:
        if observed.batch not in self.batches or not self.blocks:
            return None
        name = self.blocks[0]
        is_there = name not in execution.home and (name in self.query.places or execution.woken_as(name) is not None)
        is_there = is_there and execution.folding_of(name) is None
        action = PlaceBlock(name, "engine" if is_there else "duck", execution.plan, way(observed.batch))
        return Proposal(action, "it is time")

    def granted(self, execution: Execution, wish: Wish) -> Proposal:
        raise AssertionError("nobody asks")

    def took(self, observed: Observed) -> Mapping[str, Took]:
        return {}

    @property
    def figures(self) -> Mapping[str, BlockFigures]:
        return {}
