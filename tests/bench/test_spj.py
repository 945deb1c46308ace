"""Chapter 13 of 002: states between which selects and projects stand, on its figures and on random rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from anabranch.engine.reader import Reader
from anabranch.engine.rebuild import hand_over
from anabranch.engine.store import Store
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import Leaf, Plan, parse
from anabranch.plan.migration import Execution
from anabranch.plan.query import BEGINNING_US
from anabranch.plan.selects import Selects, raise_selects
from anabranch.sql import parse_script
from bench.papers.spj import (
    Joined,
    Node,
    Operations,
    Project,
    Scan,
    Select,
    Tracked,
    bit_maps,
    match,
    move,
    predicates_of,
    streams_of,
)  # fmt: skip
from tests.support.migrating import random_selects

A, B, C = Scan("A"), Scan("B"), Scan("C")
OVER_9 = "B.b1 > 9"
PASSES = {OVER_9: lambda rows: pc.greater(rows["B.b1"], 9), "C.c1 > 5": lambda rows: pc.greater(rows["C.c1"], 5)}


def named(found: dict) -> dict[str, object]:
    return {"".join(sorted(streams)): what for streams, what in found.items()}


def test_a_select_pushed_down_filters_the_state_below_it():
    """Figure 13.2, lower half, and 13.4."""
    above, below = Select(OVER_9, Joined(A, B)), Joined(A, Select(OVER_9, B))
    assert named(match(above, below)) == {"A": Operations(), "B": Operations(filters=(OVER_9,))}
    assert named(match(below, above)) == {"A": Operations(), "B": Operations()}, "pulled up, nothing is to be done"


def test_a_project_pushed_down_projects_and_pulled_up_stuffs():
    """Figure 13.3."""
    above = Project(("A.a2", "B.b1"), Joined(A, B))
    below = Joined(Project(("A.a2",), A), Project(("B.b1",), B))
    assert named(match(above, below)) == {"A": Operations(projects=("A.a2",)), "B": Operations(projects=("B.b1",))}
    assert named(match(below, above)) == {"A": Operations(stuffs=("A.a2",)), "B": Operations(stuffs=("B.b1",))}


OLD = Project(("B.b2", "A.a2", "C.c2"), Select("C.c1 > 5", Joined(Joined(A, B), C)))
NEW = Joined(
    Project(("A.a2",), A), Joined(Project(("B.b2",), B), Project(("C.c2",), Select("C.c1 > 5", C)))
)  # fmt: skip


def test_the_bit_maps_of_figure_13_6():
    predicates = predicates_of(OLD, NEW)
    assert predicates == ("C.c1 > 5", "keep B.b2", "keep A.a2", "keep C.c2")
    assert named(bit_maps(OLD, predicates)) == {"A": "0000", "B": "0000", "AB": "0000", "C": "0000"}
    found = named(bit_maps(NEW, predicates))
    assert found["B"] == "0100", "as in the figure"
    assert found["C"] == "1001"
    assert found["BC"] == "1101", "the bit-wise or of its parts"
    assert found["A"] == "0010"


def test_the_states_of_figure_13_6_and_13_5_match():
    found = named(match(OLD, NEW))
    assert found == {
        "A": Operations(projects=("A.a2",)), "B": Operations(projects=("B.b2",)),
        "C": Operations(filters=("C.c1 > 5",), projects=("C.c2",)),
    }  # fmt: skip
    assert "BC" not in found, "it must be recomputed"


def test_incremental_matching_finds_the_same():
    """Figure 13.5: select and project are pushed down, then the two joins are switched."""
    began = Tracked.of(OLD)
    assert sorted(began.identities.values()) == [1, 2, 3, 4]
    steps: list[Node] = [
        Project(("B.b2", "A.a2", "C.c2"), Joined(Joined(A, B), Select("C.c1 > 5", C))),
        Joined(
            Joined(Project(("A.a2",), A), Project(("B.b2",), B)), Project(("C.c2",), Select("C.c1 > 5", C))
        ),
        NEW,
    ]  # fmt: skip
    tracked = began
    for plan in steps:
        tracked = tracked.rewritten(plan)
    assert tracked.identities[frozenset("BC")] == 5, "the state that the switch makes has a new identity"
    assert tracked.match(began) == match(OLD, NEW)


def test_a_state_that_went_and_came_back_is_recomputed():
    began = Tracked.of(Joined(Joined(A, B), C))
    back = began.rewritten(Joined(A, Joined(B, C))).rewritten(Joined(Joined(A, B), C))
    assert named(back.match(began)).keys() == {"A", "B", "C"}


def test_what_is_taken_back_is_not_done():
    above, below = Project(("A.a2",), Joined(A, B)), Joined(Project(("A.a2",), A), B)
    began = Tracked.of(above)
    there_and_back = began.rewritten(below).rewritten(above)
    assert named(there_and_back.match(began))["A"] == Operations()


def rows_of(stream: str, rng: np.random.Generator) -> pa.Table:
    s = stream.lower()
    return pa.table({f"{stream}.{s}{i}": rng.integers(0, 20, 30) for i in (1, 2)} | {f"{stream}.id": np.arange(30)})


def state_of(node: Node, inputs: dict[str, pa.Table]) -> pa.Table:
    """What a state above a node holds, of one stream."""
    if isinstance(node, Scan):
        return inputs[node.stream]
    if isinstance(node, Select):
        below = state_of(node.input, inputs)
        return below.filter(PASSES[node.predicate](below))
    assert isinstance(node, Project)
    return state_of(node.input, inputs).select(list(node.columns))


@pytest.mark.parametrize("seed", range(5))
def test_states_are_moved_as_the_new_plan_would_have_them(seed):
    rng = np.random.default_rng(seed)
    inputs = {s: rows_of(s, rng) for s in "ABC"}
    assert isinstance(NEW, Joined)
    assert isinstance(NEW.right, Joined)
    found = match(OLD, NEW)
    for node in (NEW.left, NEW.right.left, NEW.right.right):
        wanted = state_of(node, inputs)
        old = inputs[next(iter(streams_of(node)))]
        assert move(old, found[streams_of(node)], PASSES, tuple(wanted.schema.names)) == wanted
    back = match(NEW, OLD)
    for node, stream in ((NEW.left, "A"), (NEW.right.left, "B")):
        stuffed = move(state_of(node, inputs), back[frozenset(stream)], PASSES, tuple(inputs[stream].schema.names))
        assert stuffed.schema.names == inputs[stream].schema.names
        kept = state_of(node, inputs).schema.names
        assert stuffed.select(kept) == inputs[stream].select(kept)
        assert all(stuffed[c].null_count == 30 for c in stuffed.schema.names if c not in kept)


def drawn(plan: Plan, selects: Selects) -> Node:
    """A plan of the engine's as one of the paper's: selects stand at their stream, or right above a join."""
    if isinstance(plan, Leaf):
        node: Node = Scan(plan.alias)
        here = [f for f in QUERY.input(plan.alias).filters if f not in {s.predicate for s in selects}]
    else:
        node = Joined(*(drawn(child, selects) for child in plan.inputs))
        parts = [child.aliases for child in plan.inputs]
        here = [s.predicate for s in selects if s.stands_at(plan.aliases, parts)]
    for predicate in here:
        node = Select(str(predicate), node)
    return node


QUERY = parse_script(
    "".join(f"CREATE STREAM {s} (k BIGINT, x BIGINT, y BIGINT, ts TIMESTAMP) TIME ts;" for s in "abcd")
    + """CREATE QUERY q AS SELECT a.k FROM a, b, c, d WHERE a.k = b.k AND b.k = c.k AND c.k = d.k
         AND a.x > 1 AND a.y > 1 AND b.x > 1 AND d.y > 1 WINDOW 3 SECONDS"""
).queries[0].query
TREES = ("(((a b) c) d)", "((a b) (c d))", "(a (b (c d)))", "((a (b c)) d)")


@pytest.mark.parametrize("seed", range(40))
def test_the_engine_filters_the_states_that_the_bit_maps_say(seed: int):
    """What the engine builds anew, of the states that two plans share, is what the paper would filter."""
    rng, graph = np.random.default_rng(seed), JoinGraph(QUERY)
    trees = [parse(TREES[i], graph) for i in rng.integers(0, len(TREES), 2)]
    places = [raise_selects(QUERY, random_selects(QUERY, 2 * seed + i)) for i in range(2)]
    old, new = (Execution(tree, selects=selects) for tree, selects in zip(trees, places, strict=True))
    before, after, store = Reader("q", "q", graph, old), Reader("q", "q", graph, new), Store()
    store.serve([before])
    spines = list(store.indexes.values())
    store.horizons = {after.name: BEGINNING_US}
    hand_over(store, before, after)
    store.serve([after])
    shared = before.indexes.keys() & after.indexes.keys()
    found = match(drawn(trees[0], places[0]), drawn(trees[1], places[1]))
    for index in shared:
        filtered = bool(found[frozenset(index.state)].filters)
        assert filtered == (store.indexes[after.indexes[index].key] not in spines), index
