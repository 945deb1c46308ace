"""Random operators and costs."""

from __future__ import annotations

from itertools import count

from hypothesis import strategies as st

from anabranch.place.cost import Corrections, Costs, DatabaseCosts, EngineCosts
from anabranch.place.operators import ANYWHERE, Kind, Operator, Place, Window

places = st.sampled_from([*[ANYWHERE] * 8, frozenset({Place.ENGINE}), frozenset({Place.DATABASE})])
"""Some operators have no choice."""


@st.composite
def trees(draw: st.DrawFn, most: int = 11, blocks: bool = False) -> Operator:
    """Any tree of up to so many operators; if that is asked, some of them in blocks, which may run in the same places."""
    number, left = count(1), [draw(st.integers(2, most))]
    allowed = dict[str | None, frozenset[Place]]()

    def window() -> Window:
        rate = draw(st.floats(1.0, 1000.0))
        return Window(
            f"w{next(number)}", rate, rate * draw(st.floats(1.0, 300.0)), draw(st.sampled_from([0.2, 1.0, 5.0]))
        )

    def node(above: str | None = None) -> Operator | Window:
        if left[0] <= 0:
            return window()
        left[0] -= 1
        kind = draw(st.sampled_from(list(Kind)))
        name, f = f"o{next(number)}", draw(st.floats(0.001, 1.0))
        block = draw(st.sampled_from([None, above, above, f"b{name}"])) if blocks else None
        inputs = (node(block), node(block)) if kind is Kind.JOIN else (node(block),)
        f = f / 1000.0 if kind is Kind.JOIN else f
        groups = draw(st.floats(1.0, 500.0)) if kind is Kind.AGGREGATE else 0.0
        may = draw(places) if block is None else allowed.setdefault(block, draw(places))
        return Operator(name, kind, inputs, 1.0 if kind is Kind.AGGREGATE else f, groups, may, block)

    found = node()
    assert isinstance(found, Operator)
    return found


seconds = st.floats(1e-7, 1e-3)


@st.composite
def costs(draw: st.DrawFn, corrections: Corrections) -> Costs:
    engine = EngineCosts({kind: draw(seconds) for kind in Kind})
    per_row_s = {kind: draw(st.floats(1e-9, 1e-5)) for kind in Kind}
    database = DatabaseCosts(
        draw(st.floats(1e-5, 0.2)), draw(seconds), draw(seconds), per_row_s, is_embedded=draw(st.booleans())
    )  # fmt: skip
    return Costs(engine, database, draw(st.floats(0.5, 4.0)), draw(st.floats(0.5, 4.0)), corrections)
