"""What the product decides, beside what one finds who looks at everything that is allowed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain, combinations
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.control.pace import Pace
from anabranch.control.records import BlockFigures
from anabranch.cost.facts import Given
from anabranch.cost.units import DEFAULT
from anabranch.errors import PlanError
from anabranch.place.calibrate import FORMAT, Measured
from anabranch.place.capabilities import DUCKDB
from anabranch.place.choice import choose_places
from anabranch.place.cost import OURS, PAPER, Corrections, Costs, DatabaseCosts, EngineCosts
from anabranch.place.operators import Kind, Operator, Place, Window
from anabranch.place.placement import Decision, Use, exhaustive, rank, use_of
from anabranch.place.search import by_front, next_best
from anabranch.place.tree import engine_costs, joining_blocks, operators_of
from anabranch.planning import Planning
from bench.papers.federation.placements import parsed
from bench.papers.federation.queries import CQ
from tests.place.trees import costs, trees

# Trees with blocks, and so many statements at most.


def allowed(root: Operator, most: int | None) -> Iterator[frozenset[str]]:
    """All placements of a tree in which operators are where they may be, blocks are whole, and there are no more statements
    than that."""
    operators = list(root)
    above = {i.name: each for each in operators for i in each.below}
    for some in chain.from_iterable(combinations(operators, n) for n in range(len(operators) + 1)):
        there = frozenset(each.name for each in some)
        is_there = [(Place.DATABASE if each.name in there else Place.ENGINE) in each.places for each in operators]
        blocks = {each.block: set[bool]() for each in operators if each.block is not None}
        for each in operators:
            if each.block is not None:
                blocks[each.block].add(each.name in there)
        tops = [each for each in some if not (
            each.name in above and above[each.name].name in there and above[each.name].block == each.block
        )]  # fmt: skip
        if all(is_there) and all(len(sides) == 1 for sides in blocks.values()) and (most is None or len(tops) <= most):
            yield there


@settings(deadline=None, max_examples=60)
@given(st.data())
@pytest.mark.parametrize("corrections", [PAPER, OURS])
def test_the_best_and_the_next_best_of_what_is_allowed(corrections: Corrections, data: st.DataObject) -> None:
    root, some = data.draw(trees(most=8, blocks=True)), data.draw(costs(corrections))
    most = data.draw(st.sampled_from([None, 0, 1, 1, 2]))
    found = sorted(allowed(root, most), key=lambda each: rank(use_of(root, each, some), some))
    if not found:
        with pytest.raises(PlanError, match="may not run in one place"):
            by_front(root, some, most)
        with pytest.raises(PlanError, match="may not run in one place"):
            exhaustive(root, some, most)
        return
    decision = by_front(root, some, most)
    other = next_best(root, some, decision, most)
    assert decision.in_database in found
    same(decision, use_of(root, found[0], some), some)
    same(decision, use_of(root, decision.in_database, some), some)
    same(exhaustive(root, some, most), use_of(root, found[0], some), some)
    assert (other is None) == (len(found) == 1)
    if other is not None:
        assert other.in_database in found
        assert other.in_database != decision.in_database
        same(other, use_of(root, found[1], some), some)


def same(one: Decision, other: Use, some: Costs) -> None:
    """Two placements are as good as each other by definition 1; sums are made in different orders."""
    assert rank(one.use, some)[:2] == pytest.approx(rank(other, some)[:2])


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_a_database_in_the_process_of_the_slot_is_chosen_alike_without_the_check_of_feasibility(data: st.DataObject) -> None:
    """One resource: what uses least has the least bottleneck."""
    root, some = data.draw(trees(most=8, blocks=True)), data.draw(costs(OURS))
    some = replace(some, database=replace(some.database, is_embedded=True))
    if [*allowed(root, 1)]:
        unchecked = by_front(root, replace(some, checks_feasibility=False), 1)
        same(by_front(root, some, 1), unchecked.use, some)


DEAR_ENGINE = Costs(
    EngineCosts(dict.fromkeys(Kind, 1e-3)), DatabaseCosts(1e-3, 0.0, 1e-6, dict.fromkeys(Kind, 1e-9)), engine_cores=8.0
)  # fmt: skip
"""Whatever may goes to the database."""


def two_blocks(between: bool = False) -> Operator:
    """Two blocks, one above the other; or with an operator between them that stays in the engine."""
    below = Operator("below", Kind.AGGREGATE, (Window("w", 1000.0, 9000.0),), groups=500.0, block="x")
    here = Operator("between", Kind.SELECT, (below,), places=frozenset({Place.ENGINE}))
    groups = Operator("groups", Kind.AGGREGATE, (here if between else below,), groups=10.0, block="y")
    return Operator("having", Kind.SELECT, (groups,), selectivity=0.5, block="y")


def test_two_blocks_are_two_statements_and_one_where_there_is_room_for_one() -> None:
    root = two_blocks()
    assert by_front(root, DEAR_ENGINE).in_database == {"below", "groups", "having"}
    dear = {"groups", "having"}
    more = replace(DEAR_ENGINE, engine=replace(DEAR_ENGINE.engine, known_u={"below": 0.1, **dict.fromkeys(dear, 1.0)}))
    assert by_front(two_blocks(between=True), more, 1).in_database == dear, "less is gained below"
    more = replace(more, engine=replace(more.engine, known_u={"below": 3.0, **dict.fromkeys(dear, 1.0)}))
    assert by_front(root, more, 1).in_database == {"below"}
    assert by_front(root, DEAR_ENGINE, 0).in_database == frozenset()
    both = use_of(root, frozenset({"below", "groups", "having"}), DEAR_ENGINE)
    alone = [use_of(root, each, DEAR_ENGINE) for each in (frozenset({"below"}), frozenset({"groups", "having"}))]
    assert both.database == pytest.approx(sum(each.database for each in alone)), "each brings its results back"


# Queries as they are written.

BLOCKS = {
    **CQ,
    "one": "SELECT plug, MAX(load) AS m FROM plugs [RANGE 1 MINUTE] WHERE load > 1 GROUP BY plug HAVING COUNT(*) > 2",
    "three": "SELECT x.plug, y.n FROM (SELECT plug, COUNT(*) AS n FROM plugs [RANGE 9 SECONDS] GROUP BY plug) x, "
    "(SELECT a.plug, COUNT(*) AS n FROM plugs [RANGE 2 SECONDS] a, plugs [NOW] b WHERE a.plug = b.plug GROUP BY a.plug "
    "SLIDE 5 SECONDS) y WHERE x.plug = y.plug",
}
SECONDS = st.floats(1e-12, 1e-5)
KNOWN = Given({"plugs": 9.0}, distinct={"plugs.plug": 9.0})


@st.composite
def calibrations(draw: st.DrawFn) -> Measured:
    what = ("in", "out", "group", "probe", "join")
    return Measured(FORMAT, "here", True, draw(st.floats(1e-9, 1e-2)), {each: {1000: draw(SECONDS)} for each in what})


def paces(seen: Mapping[str, float], measured: Measured) -> dict[str, Pace]:
    """Paces of many batches that agree."""
    return {block: Pace(math.log(ratio), 0.0, 32, 0, measured.round_trip_s) for block, ratio in seen.items()}


@settings(deadline=None, max_examples=80)
@given(st.data())
def test_the_placement_of_a_query_is_the_best_of_all_that_run(data: st.DataObject) -> None:
    """Beside what each takes, looked at one by one: nothing, or one block, at the pace of that block, with its log."""
    name = data.draw(st.sampled_from(sorted(BLOCKS)))
    query, rate = parsed(name, BLOCKS[name]), data.draw(st.floats(1.0, 1e6))
    keys = {f"{i.alias}.{key}": 100.0 for block in query.blocks for i in block.inputs for key in ("plug", "household")}
    facts = Given({"plugs": rate}, distinct=keys, passing={name: 0.5})
    measured = data.draw(calibrations())
    units = replace(DEFAULT, accept=data.draw(SECONDS), fold=data.draw(SECONDS))
    root = operators_of(query, facts, DUCKDB)
    free = sorted({each.block for each in root if len(each.places) > 1 and each.block is not None})
    logged = frozenset(data.draw(st.sets(st.sampled_from(free)))) if free else frozenset()
    ran = data.draw(st.sampled_from([None, frozenset[str](), *(frozenset({each}) for each in free)]))
    known = paces({each: data.draw(st.sampled_from([0.1, 1.0, 5.0])) for each in free}, measured)
    join_cpu = {each: data.draw(SECONDS) * rate for each, _ in joining_blocks(query)}
    choice = choose_places(query, facts, units, join_cpu, "duck", DUCKDB, measured, 2.0, ran, logged, known)

    there = measured.costs()
    assert there is not None
    engine = engine_costs(root, units, join_cpu)
    uses = {frozenset[str](): use_of(root, frozenset(), Costs(engine, there, 2.0))}
    for block in free if not logged else sorted(logged):
        names = frozenset(each.name for each in root if each.block == block)
        pace = known[block].beside(there.round_trip_s).factor
        log = 0.0 if block in logged | (ran or frozenset()) else rows_logged(root, block) * units.accept
        uses[names] = use_of(root, names, Costs(engine, there.at_pace(pace), 2.0)) + Use(database=log)
    if len(uses) == 1 and not free:
        assert choice is None
        return
    assert choice is not None
    assert choice.decision is not None
    priced = Costs(engine, there, 2.0)
    order = sorted(uses, key=lambda each: rank(uses[each], priced))
    held = [each for each in uses if ran is not None and {o.block for o in root if o.name in each} - {None} == ran]
    best = held[0] if held else order[0]
    assert rank(choice.decision.use, priced)[:2] == pytest.approx(rank(uses[best], priced)[:2])
    assert choice.in_database in uses
    others = [each for each in order if each != choice.in_database]
    assert (choice.other is None) == (not others)
    if choice.other is not None:
        assert rank(choice.other.use, priced)[:2] == pytest.approx(rank(uses[others[0]], priced)[:2])
        assert choice.other.in_database in others
    assert choice.examined >= len({choice.in_database, *others[:1]})


def rows_logged(root: Operator, block: str) -> float:
    """Rows of streams per second that a block folds, and does not join."""
    aggregates = [each for each in root if each.block == block and each.kind is Kind.AGGREGATE]
    inputs = [each.inputs[0] for each in aggregates]
    of_streams = [i.inputs[0] if isinstance(i, Operator) and isinstance(i.inputs[0], Window) else i for i in inputs]
    shares = [i.selectivity if isinstance(i, Operator) else 1.0 for i in inputs]
    return sum(
        share * each.rate_per_s
        for share, each, i in zip(shares, of_streams, inputs, strict=True)
        if isinstance(each, Window) and (isinstance(i, Window) or i.kind is Kind.SELECT)
    )


def test_no_block_is_next_best_that_is_not_logged_while_one_is() -> None:
    cheap = Measured(FORMAT, "here", True, 1e-9, {each: {1: 0.0} for each in ("in", "out", "group", "probe", "join")})
    query, facts, units = parsed("CQ4", CQ["CQ4"]), KNOWN, replace(DEFAULT, accept=0.0)
    there = frozenset({"CQ4.o"})

    def other(logged: frozenset[str]) -> frozenset[str]:
        choice = choose_places(query, facts, units, {"JOIN": 1.0}, "duck", DUCKDB, cheap, ran=there, logged=logged)
        assert choice is not None
        assert choice.other is not None
        assert choice.in_database == {"AGGREGATE o"}
        return choice.other.in_database

    assert other(frozenset()) == {"AGGREGATE f"}
    assert other(there) == frozenset()


def test_of_placements_that_use_the_same_the_one_is_taken_that_leaves_all_where_it_is() -> None:
    nothing = Measured(FORMAT, "here", True, 0.0, {each: {1: 0.0} for each in ("in", "out", "group", "probe", "join")})
    units = replace(DEFAULT, accept=0.0, fold=0.0, result=0.0, join=0.0)
    query = parsed("CQ4", CQ["CQ4"])
    choice = choose_places(query, KNOWN, units, {"JOIN": 0.0}, "duck", DUCKDB, nothing)
    assert choice is not None
    assert choice.in_database == frozenset()
    assert choice.other is not None
    assert choice.other.in_database
    assert choice.examined == choice.decision.examined + choice.other.examined  # type: ignore[union-attr]


FREE = Measured(FORMAT, "here", True, 0.0, {each: {1: 0.0} for each in ("in", "out", "group", "probe", "join")})
"""Whatever may go there is cheaper there."""
TOLD = {f"{alias}.{key}": 9.0 for alias in "pmfoxt" for key in ("plug",)} | {"plugs.plug": 9.0, "plugs.household": 3.0}


def there(name: str, facts: Given, ran: frozenset[str] | None = None) -> tuple[frozenset[str], frozenset[str] | None]:
    """The blocks that are in a database that takes nothing, and those of the next best placement."""
    query, joins = parsed(name, CQ[name]), dict.fromkeys(("JOIN", "JOIN m"), 1.0)
    choice = choose_places(query, facts, replace(DEFAULT, accept=0.0), joins, "duck", DUCKDB, FREE, ran=ran)
    assert choice is not None
    assert choice.other is None or choice.movable
    return choice.blocks, None if choice.other is None else choice.other.in_database


@pytest.mark.parametrize("name", CQ)
def test_what_nobody_knows_is_not_trusted(name: str) -> None:
    """With no facts no block of CQ1 to CQ6 leaves the engine, however little the database takes."""
    assert there(name, Given()) == (frozenset(), None)
    assert there(name, Given({"plugs": 9.0})) == (frozenset(), None)
    assert there(name, Given({"plugs": 9.0}, distinct=TOLD, passing={name: 0.5}))[0] != frozenset()


def test_a_share_that_nobody_knows_takes_no_block_out_of_the_engine() -> None:
    """The groups of CQ1's subquery are known, and how many values its key has; not how many loads are above 90 %."""
    told = Given({"plugs": 9.0}, distinct=TOLD)
    assert "CQ1" not in there("CQ1", told)[0]
    assert there("CQ1", told)[0] == {"CQ1.m"}
    assert there("CQ1", replace(told, passing={"CQ1": 0.5}))[0] == {"CQ1"}


def test_what_is_measured_is_known() -> None:
    figures = {"CQ1": BlockFigures({"p.plug": 90.0, "m.plug": 90.0}, 9.0), "CQ1.m": BlockFigures(groups=9.0)}
    assert there("CQ1", Given().with_figures(figures))[0] == {"CQ1"}
    assert there("CQ1", Given().with_figures({"CQ1.m": figures["CQ1.m"]}))[0] == {"CQ1.m"}


def test_a_block_of_which_too_little_is_known_stays_in_the_database_too() -> None:
    dear = Measured(FORMAT, "here", True, 1.0, {each: {1: 1.0} for each in ("in", "out", "group", "probe", "join")})
    query, ran = parsed("CQ4", CQ["CQ4"]), frozenset({"CQ4.o"})
    for facts, other in ((Given(), None), (KNOWN, frozenset[str]())):
        choice = choose_places(query, facts, DEFAULT, {"JOIN": 0.0}, "duck", DUCKDB, dear, ran=ran, logged=ran)
        assert choice is not None
        assert choice.blocks == ran
        assert choice.movable == ran
        assert (None if choice.other is None else choice.other.in_database) == other


def test_a_query_with_a_block_of_a_databases_words_and_one_that_a_hint_places() -> None:
    """Both have to be there: two statements, of which one reads what the other gave."""
    inner = "DATABASE duck (SELECT plug, median(load) AS m FROM plugs [RANGE 1 MINUTE] GROUP BY plug) x"
    query = parsed("q", f"SELECT /*+ PLACE(duck) */ MAX(x.m) AS most FROM {inner}")
    with mock.patch("anabranch.planning.remembered", return_value=Measured(
        FORMAT, "here", True, 1e-3, {each: {1: 1e-6} for each in ("in", "out", "group", "probe", "join")}
    )):  # fmt: skip
        choice = Planning(slots=1).choose_places(query, Given({"plugs": 9.0}))
    assert choice is not None
    assert choice.in_database == {"AGGREGATE x", "AGGREGATE"}
    assert choice.decision is not None
    assert choice.other is None
