"""Where a block runs follows the rates of its stream, and does not flutter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from types import MappingProxyType

import pytest

from anabranch.adapt.handover import handover_s
from anabranch.adapt.placing import STAYS_BATCHES, PlacingKnowledge, PlacingLoop
from anabranch.control.loop import Observed, Proposal
from anabranch.control.records import Probed, SourceStatistics, Statistics, StepStatistics
from anabranch.cost.facts import EMPTY, Given
from anabranch.cost.model import CostModel, UnitCosts
from anabranch.cost.units import DEFAULT
from anabranch.drive.local import Steady
from anabranch.drive.transition import transition
from anabranch.migrate.estimate import rebuild_cpu_s, recompute_cpu_s
from anabranch.place.calibrate import FORMAT, Measured, database_costs
from anabranch.place.cost import DatabaseCosts
from anabranch.place.operators import Kind
from anabranch.place.statement_of import placed
from anabranch.plan.actions import PlaceBlock
from anabranch.plan.eager import Forms
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import left_deep, parse
from anabranch.plan.migration import Execution
from anabranch.plan.query import SECOND_US
from anabranch.planning import Planning
from anabranch.sql import parse_script

FOLD = DEFAULT.fold
DUCK = Measured(
    FORMAT, "here", True, 1000 * FOLD,
    {"in": {1: 0.0}, "out": {1: 0.0}, "group": {1: FOLD / 2}, "probe": {1: FOLD}, "join": {1: FOLD}},
)  # fmt: skip
SQL = "SELECT {} x.n FROM (SELECT COUNT(*) AS n FROM s [RANGE 1 SECOND]) x"


def forms(hint: str = "", places: Mapping[str, str] = MappingProxyType({"q.x": "duck"})) -> Forms:
    script = parse_script(f"CREATE STREAM s (k BIGINT, ts TIMESTAMP) TIME ts; CREATE QUERY q AS {SQL.format(hint)};")
    return Forms(placed(script.queries[0].query, places))


def moves(
    found: Forms, rates: Sequence[int], monkeypatch: pytest.MonkeyPatch, units: UnitCosts = DEFAULT
) -> Iterator[tuple[int, str]]:
    """When the block goes where, over batches of a second that bring so many rows."""
    monkeypatch.setattr("anabranch.planning.remembered", lambda name: DUCK)
    planning = Planning(slots=1)
    planning.units = units
    known = PlacingKnowledge(planning.choose_places, units, EMPTY)
    loop, execution = PlacingLoop(Steady(), found, known), Execution(left_deep(found.graphs[None]))
    for batch, rows in enumerate(rates):
        counted = SourceStatistics(rows=rows, stored_rows=rows)
        said = loop.after(execution, Observed(batch, {"s": batch * SECOND_US}, Statistics(sources={"s": counted})))
        if isinstance(said, Proposal):
            after = transition(found, execution, said.action, batch + 1, {})
            assert isinstance(after, Execution)
            assert isinstance(said.action, PlaceBlock)
            assert said.details["c_u"] < said.details["c_u_before"]
            # Whatever there is to fold is folded in the next batch.
            execution = replace(after, folding=(), home=after.home | {each.block for each in after.folding})
            yield batch, said.action.place


def test_a_block_goes_where_its_rates_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = [100_000] * 50 + [10] * 50 + [100_000] * 60
    (first, home), (second, back) = moves(forms(), rates, monkeypatch)
    assert (home, back) == ("engine", "duck")
    assert 50 < first < 80
    assert 100 < second < 140


def test_rates_that_change_all_the_time_move_nothing_often(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = ([100_000] * 12 + [10] * 12) * 12
    found = list(moves(forms(), rates, monkeypatch))
    assert all(later - earlier >= STAYS_BATCHES for (earlier, _), (later, _) in pairwise(found))


def test_a_block_that_began_in_the_engine_goes_if_its_log_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = [10] * 50 + [100_000] * 60 + [10] * 60
    (first, there), (second, back) = moves(forms(places={}), rates, monkeypatch, replace(DEFAULT, accept=FOLD / 100))
    assert (there, back) == ("duck", "engine")
    assert 50 < first < 90
    assert 110 < second < 150
    assert not list(moves(forms(places={}), rates, monkeypatch, replace(DEFAULT, accept=FOLD)))
    kept = forms("/*+ PLACE(x, engine) */", places={})
    assert not list(moves(kept, rates, monkeypatch, replace(DEFAULT, accept=FOLD / 100)))


# Blocks that join.

JOINS = """CREATE STREAM a (k BIGINT, ts TIMESTAMP) TIME ts; CREATE STREAM b (k BIGINT, ts TIMESTAMP) TIME ts;
CREATE QUERY q AS SELECT COUNT(*) AS n FROM a [RANGE 1 SECOND], b [RANGE 1 SECOND] WHERE a.k = b.k;"""
DUCK_JOINS = Measured(
    FORMAT, "here", True, 1000 * FOLD,
    {"in": {1: 0.0}, "out": {1: 0.0}, "group": {1: FOLD / 20}, "probe": {1: FOLD / 20}, "join": {1: FOLD / 20}},
)  # fmt: skip


def joined_moves(
    rates: Sequence[int], monkeypatch: pytest.MonkeyPatch, places: Mapping[str, str], facts: Given = EMPTY,
    meets: bool = True, measured: Measured = DUCK_JOINS, sql: str = JOINS, block: str = "q",
) -> Iterator[tuple[int, str, float]]:  # fmt: skip
    """When the block goes where, and what it hands over then. Each row finds a partner; lookups tell that in the engine."""
    monkeypatch.setattr("anabranch.planning.remembered", lambda name: measured)
    monkeypatch.setattr("anabranch.place.calibrate.remembered", lambda name: measured)
    planning = Planning(slots=1)
    planning.units = replace(DEFAULT, step=0.0, upkeep=0.0, batch=0.0)
    found = Forms(placed(parse_script(sql).queries[0].query, places))
    known = PlacingKnowledge(planning.choose_places, planning.units, facts, database_costs=database_costs)
    loop, execution = PlacingLoop(Steady(), found, known), Execution(left_deep(found.graphs[None]))
    for batch, rows in enumerate(rates):
        may_go = {**places, **{each.block: "duck" for each in execution.woken}}
        is_there = block in may_go and block not in execution.home
        counted = {name: SourceStatistics(rows=rows, stored_rows=rows) for name in "ab"}
        steps = [StepStatistics("a", "b", rows, rows, rows, rows)] if meets and not is_there else []
        shown = Statistics(sources=counted, steps=steps) if block == "q" else Statistics(
            sources=counted, blocks={block: Probed(steps)} if steps else {}
        )  # fmt: skip
        said = loop.after(execution, Observed(batch, dict.fromkeys("ab", batch * SECOND_US), shown))
        if isinstance(said, Proposal):
            after = transition(found, execution, said.action, batch + 1, {})
            assert isinstance(after, Execution)
            assert isinstance(said.action, PlaceBlock)
            execution = replace(after, folding=(), home=after.home | {each.block for each in after.folding})
            yield batch, said.action.place, said.details["cost_cpu_s"]


def test_a_query_that_joins_goes_to_the_database_and_back_as_rates_change(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = [10] * 50 + [100_000] * 60 + [10] * 60
    (first, there, nothing), (second, back, handed) = joined_moves(rates, monkeypatch, {})
    assert (there, back) == ("duck", "engine")
    assert 50 < first < 90
    assert 110 < second < 150
    assert nothing == 0.0
    assert handed > 0.0


BELOW = JOINS.replace("AS SELECT", "AS SELECT x.n FROM (SELECT").replace(";", ") x;").replace("TIME ts) x", "TIME ts")


def test_a_subquery_that_joins_goes_by_what_its_own_lookups_find(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = [10] * 50 + [100_000] * 60 + [10] * 60
    (first, there, _), (second, back, handed) = joined_moves(rates, monkeypatch, {}, sql=BELOW, block="q.x")
    assert (there, back) == ("duck", "engine")
    assert 50 < first < 90
    assert 110 < second < 150, "what was found is remembered while the database does the join"
    assert handed > 0.0
    assert not list(joined_moves(rates, monkeypatch, {}, meets=False, sql=BELOW, block="q.x"))


def test_keys_that_two_blocks_call_alike_are_not_known_by_one_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Facts name keys by aliases: `a.k` of the subquery is not that of the query itself."""
    sql = BELOW.replace("SELECT x.n", "SELECT a.k").replace(") x;", ") x, a [NOW], b [NOW] WHERE a.k = b.k AND a.k = x.n;")
    rates = [10] * 50 + [100_000] * 60
    assert not list(joined_moves(rates, monkeypatch, {}, sql=sql, block="q.x"))


def test_how_many_rows_meet_is_remembered_while_the_database_does_the_join(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without that it would be taken for what it was before somebody looked, and the query go to and fro."""
    given = Given(distinct={"a.k": 10.0, "b.k": 10.0})
    moves = list(joined_moves([10] * 40 + [100_000] * 400, monkeypatch, {}, given))
    assert [place for _, place, _ in moves] == ["duck"]


def test_of_a_query_that_joins_what_nobody_knows_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = [100_000] * 50 + [10] * 100
    assert not list(joined_moves(rates, monkeypatch, {"q": "duck"}))
    given = Given(distinct={"a.k": 1e5, "b.k": 1e5})
    (_, place, _), = joined_moves(rates, monkeypatch, {"q": "duck"}, given)
    assert place == "engine"
    assert not list(joined_moves([10] * 50 + [100_000] * 60, monkeypatch, {}, meets=False))


def test_what_a_join_hands_over_may_keep_it_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    rates, given = [100_000] * 50 + [10] * 100, Given(distinct={"a.k": 1e5, "b.k": 1e5})
    assert [place for _, place, _ in joined_moves(rates, monkeypatch, {"q": "duck"}, given)] == ["engine"]
    monkeypatch.setattr("anabranch.adapt.placing.handover_s", lambda *_: 3600.0)
    assert not list(joined_moves(rates, monkeypatch, {"q": "duck"}, given))


def test_what_is_handed_over_is_priced_as_its_docstring_says() -> None:
    """Windows of 10 s over 1,000 and 2,000 rows/s, and each row of a finds two of b."""
    query = parse_script(JOINS.replace("1 SECOND", "10 SECONDS")).queries[0].query
    graph = JoinGraph(query)
    facts = Given({"a": 1000.0, "b": 2000.0}, distinct={"a.k": 10_000.0, "b.k": 10_000.0})
    units = UnitCosts(insert=1e-6, delete=0.0, join=0.0, fold=1e-7)
    costs = DatabaseCosts(0.01, 0.0, 1e-9, dict.fromkeys(Kind, 1e-08), build_s=1e-7)
    found = handover_s(query, left_deep(graph), facts, units, costs, 20.0)
    asked = 20 * (0.01 + 20_000 * 1e-8) + 10_000 * 1e-7 + 20_000 * 1e-9
    assert found == pytest.approx(asked + 20_000 * 1e-7 + 30_000 * 1e-6)


def test_views_of_a_plan_are_priced_as_a_migration_prices_them() -> None:
    script = JOINS.replace("CREATE QUERY", "CREATE STREAM c (k BIGINT, ts TIMESTAMP) TIME ts; CREATE QUERY")
    script = script.replace("WHERE", ", c [RANGE 1 SECOND] WHERE b.k = c.k AND")
    graph = JoinGraph(parse_script(script).queries[0].query)
    model = CostModel(Given({"a": 100.0, "b": 50.0, "c": 10.0}).graph(graph), DEFAULT)
    flat, pairs = parse("(a b c)", graph), parse("((a b) c)", graph)
    views = recompute_cpu_s(model, graph, flat, pairs)
    assert views > 0
    assert rebuild_cpu_s(model, graph, pairs) == pytest.approx(rebuild_cpu_s(model, graph, flat) + views)


@pytest.mark.parametrize("below", [None, "a"])
def test_a_query_with_groups_below_its_join_stays(monkeypatch: pytest.MonkeyPatch, below: str | None) -> None:
    monkeypatch.setattr("anabranch.planning.remembered", lambda name: DUCK_JOINS)
    given = Given({"a": 1e5, "b": 1e5}, distinct={"a.k": 1e5, "b.k": 1e5})
    found = Forms(parse_script(JOINS).queries[0].query)
    planning = Planning(slots=1)
    loop = PlacingLoop(Steady(), found, PlacingKnowledge(planning.choose_places, DEFAULT, given))
    choice = planning.choose_places(found.written, given, frozenset())
    assert choice is not None
    execution = replace(Execution(left_deep(found.graphs[None])), grouped_input=below)
    assert bool([*loop._moves(choice, execution)]) == (below is None)


def test_a_hint_keeps_a_block_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not list(moves(forms("/*+ PLACE(x, duck) */"), [10] * 100, monkeypatch))


def test_what_is_nearly_as_good_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A statement costs as much as folding a thousand rows: at 1,900 rows a second both take nearly the same."""
    assert not list(moves(forms(), [1_900] * 100, monkeypatch))
