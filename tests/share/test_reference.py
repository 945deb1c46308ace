"""The paper's operators: table 2, lemmas 1 and 2, theorems 1 to 4, and that scheduling changes nothing."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import strategies as st

from anabranch.share.chain import Chain, every_chain
from anabranch.share.reference.joins import Operator, SlicedJoin
from anabranch.share.reference.outlets import PunctuatedUnion, Routed
from anabranch.share.reference.plans import SharedPlan, one_way_chain, pull_up, push_down, sliced, unshared
from anabranch.share.reference.rows import EVERY_PAIR, KeyBand, Meter, Pair, Reference, Row
from anabranch.share.window_queries import OTHER, WindowQuery
from tests.support.scenarios import properties
from tests.support.slices import CONDITIONS, Case, cases, chains, pairs_of, required_rows, rows

# -- table 2 -------------------------------------------------------------------------------------------------------------

A1, A2, A3, A4 = (Row("A", n, time_s) for n, time_s in ((1, 1.0), (2, 2.0), (3, 3.0), (6, 8.0)))
B1, B2 = Row("B", 4, 4.0), Row("B", 5, 5.0)
NAMES = {A1: "a1", A2: "a2", A3: "a3", A4: "a4", B1: "b1", B2: "b2"}
ARRIVALS = {1: A1, 2: A2, 3: A3, 4: B1, 5: B2, 8: A4}


def table_2(windows_s: tuple[float, float]) -> list[tuple[str, str, str, str]]:
    """For each second the state of J1, the queue, the state of J2, newest first as printed, and the results of the step."""
    plan = one_way_chain(windows_s, EVERY_PAIR)
    first, second = plan.joins
    found: list[str] = []

    class Noted(Routed):
        def results(self, male: Row, satisfies: frozenset[str], partners: Sequence[Row]) -> None:
            found.extend(f"{NAMES[a]}{NAMES[male]}" for a in partners)

    for join in plan.joins:
        join.outlet = Noted(plan.meter, (), (), 1)
    lines = []
    for second_number in range(1, 11):
        if second_number in ARRIVALS:
            plan.arrive(ARRIVALS[second_number])
            first.run_once()
        else:
            second.run_once()
        states = [join.states["A"].references for join in (first, second)]
        cells = [" ".join(NAMES[each.row] for each in reversed(held)) for held in (states[0], second.queue, states[1])]
        lines.append((*cells, " ".join(found)))
        found.clear()
    return lines


def test_table_2_under_the_definitions():
    lines = table_2((2.0, 4.0))
    assert [results for *_, results in lines if results] == ["a3b1", "a1b1 a2b1"]
    assert lines[3] == ("a3", "b1 a2 a1", "", "a3b1"), "a2 is 2 s old when b1 comes: no longer in [0, 2)"
    assert lines[8:] == [("a4", "b2 a3", "a2 a1", "a1b1 a2b1"), ("a4", "b2", "a3 a2 a1", "")]


def test_table_2_as_printed_has_longer_windows():
    """The six printed results, and all printed states but those of T = 9 and 10: a3 can only be purged by a b."""
    lines = table_2((2.5, 4.5))
    assert lines == [
        ("a1", "", "", ""),
        ("a2 a1", "", "", ""),
        ("a3 a2 a1", "", "", ""),
        ("a3 a2", "b1 a1", "", "a2b1 a3b1"),
        ("a3", "b2 a2 b1 a1", "", "a3b2"),
        ("a3", "b2 a2 b1", "a1", ""),
        ("a3", "b2 a2", "a1", "a1b1"),
        ("a4 a3", "b2 a2", "a1", ""),
        ("a4 a3", "b2", "a2 a1", ""),
        ("a4 a3", "", "a2 a1", "a1b2 a2b2"),
    ]


# -- lemma 1 -------------------------------------------------------------------------------------------------------------


def watch_lemma_1(plan: SharedPlan, given: Sequence[Row], lineages: dict[Row, int]) -> None:
    """After each purge: a state has exactly the rows that came before, survive to its slice, and are as old as it holds."""

    def check(join: SlicedJoin, male: Row) -> None:
        stream = OTHER[male.stream]
        start_s, end_s = join.spans_s[stream]
        held = [reference.row for reference in join.states[stream].references]
        before = [row for row in given if row.stream == stream and row.number < male.number]
        surviving = [row for row in before if lineages[row] >= join.first_window]
        assert held == [row for row in surviving if start_s <= male.time_s - row.time_s < end_s]

    for join in plan.joins:
        join.after_purge = check


def check_lemma_1(case: Case, data: st.DataObject, order: random.Random) -> None:
    plan = sliced(case.queries, case.condition, data.draw(chains(case.windows_s)))
    ranks = {query.name: case.windows_s.index(query.window_s) + 1 for query in case.queries}
    lineages = {
        row: max((ranks[q.name] for q in case.queries if q.wants(row.stream, row.satisfies)), default=0) for row in case.rows
    }
    watch_lemma_1(plan, case.rows, lineages)
    for row in case.rows:
        plan.arrive(row)
        some_steps(plan, order)
    plan.drain(order.choice)


def some_steps(plan: SharedPlan, order: random.Random) -> None:
    """Runs operators in any order, not until all are done."""
    for _ in range(order.randrange(8)):
        if waiting := [operator for operator in plan.operators if operator.is_waiting]:
            order.choice(waiting).run_once()


ORDER = st.randoms(use_true_random=False)
test_lemma_1, test_lemma_1_long = properties(check_lemma_1, 100, 2_000, case=cases(), data=st.data(), order=ORDER)


# -- theorems 1 and 2 ----------------------------------------------------------------------------------------------------


def check_theorem_1(given: tuple[Row, ...], windows: set[int], condition: KeyBand, order: random.Random) -> None:
    """The slices of a one-way chain give together what A[W_N] ⋉ B gives: pairs whose b came after a, each once."""
    windows_s = [float(window_s) for window_s in sorted(windows)]
    given = tuple(Row(row.stream, row.number, row.time_s, row.key % condition.keys) for row in given)
    plan = one_way_chain(windows_s, condition)
    watch_lemma_1(plan, given, dict.fromkeys(given, len(windows_s)))
    for row in given:
        plan.arrive(row)
        some_steps(plan, order)
    found = plan.finish()
    for n, window_s in enumerate(windows_s, 1):
        every = pairs_of(WindowQuery("w", window_s), condition, given)
        assert Counter(found[f"w{n}"]) == Counter({(a, b): 1 for a, b in every if a.number < b.number})


test_theorem_1, test_theorem_1_long = properties(
    check_theorem_1, 100, 2_000, given=rows(3), windows=st.sets(st.integers(1, 12), min_size=1, max_size=5),
    condition=st.sampled_from(CONDITIONS), order=ORDER,
)  # fmt: skip


def check_theorem_2(
    given: tuple[Row, ...], spans: list[tuple[int, int]], condition: KeyBand, order: random.Random
) -> None:
    """Binary chains, whose slices of A and of B may have different lengths (definition 3)."""
    given = tuple(Row(row.stream, row.number, row.time_s, row.key % condition.keys) for row in given)
    plan, found = SharedPlan(Meter(), {}), Counter[Pair]()

    class Noted(Routed):
        def results(self, male: Row, satisfies: frozenset[str], partners: Sequence[Row]) -> None:
            found.update((male, row) if male.stream == "A" else (row, male) for row in partners)

    start = (0, 0)
    for span in spans:
        end = (start[0] + span[0], start[1] + span[1])
        outlet = Noted(plan.meter, (), (), 1)
        plan.joins.append(
            SlicedJoin(condition, (start[0], end[0]), outlet, plan.meter, 1, (start[1], end[1]))
        )
        start = end
    for join, following in zip(plan.joins, plan.joins[1:], strict=False):
        join.next = following
    for row in given:
        plan.joins[0].queue += [Reference(row, True, 1), Reference(row, False, 1)]
        some_steps(plan, order)
    plan.drain(order.choice)
    window_a_s, window_b_s = start
    assert found == Counter(
        (a, b)
        for a, b in pairs_of(WindowQuery("w", 1e9), condition, given)
        if (b.time_s - a.time_s < window_a_s if a.number < b.number else a.time_s - b.time_s < window_b_s)
    )


test_theorem_2, test_theorem_2_long = properties(
    check_theorem_2, 100, 2_000, given=rows(3), condition=st.sampled_from(CONDITIONS), order=ORDER,
    spans=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), min_size=1, max_size=4),
)  # fmt: skip


# -- every way gives the same results, whatever runs when ----------------------------------------------------------------


def every_plan(case: Case, is_counted: bool = False) -> dict[str, SharedPlan]:
    """All ways, with all chains."""
    found = {f"chain {chain.ends}": sliced(case.queries, case.condition, chain, is_counted)
             for chain in every_chain(case.windows_s)}  # fmt: skip
    for build in (pull_up, push_down, unshared):
        found[build.__name__] = build(case.queries, case.condition, is_counted)
    return found


def check_every_way(case: Case, order: random.Random) -> None:
    """All ways under any schedule: the pairs that the law says, each query's in the order of time, the same order always."""
    for name, plan in every_plan(case).items():
        drained = every_plan(case)[name].run(case.rows)
        for row in case.rows:
            plan.arrive(row)
            some_steps(plan, order)
        plan.drain(order.choice)
        found = plan.finish()
        assert found == drained, name
        for query in case.queries:
            assert Counter(found[query.name]) == pairs_of(query, case.condition, case.rows), (name, query)
            times = [max(a.number, b.number) for a, b in found[query.name]]
            assert times == sorted(times), (name, query)
        assert not any(union.held for union in plan.unions if isinstance(union, PunctuatedUnion))


test_every_way, test_every_way_long = properties(check_every_way, 60, 1_000, case=cases(most=30), order=ORDER)


def check_states_are_disjoint(case: Case, order: random.Random, data: st.DataObject) -> None:
    """A row waits in one place of a chain at most, in a state or in a queue, at any moment of any schedule."""
    plan = sliced(case.queries, case.condition, data.draw(chains(case.windows_s)))
    for row in case.rows:
        plan.arrive(row)
        for _ in range(order.randrange(5)):
            waiting = [operator for operator in plan.operators if operator.is_waiting]
            if waiting:
                order.choice(waiting).run_once()
            places = [held for join in plan.joins for held in (*(s.references for s in join.states.values()), join.queue)]
            females = [reference.row for held in places for reference in held if not reference.is_male]
            assert len(females) == len(set(females))
            stored = sum(len(state) for join in plan.joins for state in join.states.values())
            assert plan.meter.stored_rows == stored


test_disjoint, test_disjoint_long = properties(
    check_states_are_disjoint, 60, 1_000, case=cases(), order=ORDER, data=st.data()
)  # fmt: skip


def check_counted(case: Case) -> None:
    """Plans that count only count the same, and as many results."""
    for (name, literal), counted in zip(every_plan(case).items(), every_plan(case, True).values(), strict=True):
        found = literal.run(case.rows)
        counted.run(case.rows)
        assert counted.meter == literal.meter, name
        if name == "unshared":
            assert [sum(joined.values()) for joined in counted.joined] == [len(found[q.name]) for q in case.queries]


test_counted, test_counted_long = properties(check_counted, 60, 1_000, case=cases())


def check_probing_by_hand(case: Case) -> None:
    """Comparisons of probing are those of nested loops."""
    plan = sliced(case.queries, case.condition)
    compared = 0

    def count(join: SlicedJoin, male: Row) -> None:
        nonlocal compared
        compared += sum(1 for _ in join.states[OTHER[male.stream]].references)

    for join in plan.joins:
        join.after_purge = count
    plan.run(case.rows)
    assert plan.meter.probing == compared
    assert plan.meter.purging == plan.meter.visits


test_probing, test_probing_long = properties(check_probing_by_hand, 30, 400, case=cases())


# -- theorems 3 and 4 ----------------------------------------------------------------------------------------------------


def check_theorem_3(case: Case) -> None:
    """Without selections every chain stores as many rows, at any moment, as the join with the longest window, and has as
    many comparisons of probing."""
    regular = unshared([WindowQuery("regular", case.windows_s[-1])], case.condition)
    plans = [sliced(case.queries, case.condition, chain) for chain in every_chain(case.windows_s)]
    for row in case.rows:
        for plan in (regular, *plans):
            plan.arrive(row)
            plan.drain()
        assert {plan.meter.stored_rows for plan in plans} == {regular.meter.stored_rows}
        assert {plan.meter.probing for plan in plans} == {regular.meter.probing}


test_theorem_3, test_theorem_3_long = properties(check_theorem_3, 60, 1_000, case=cases(selections=False))


def closed(case: Case) -> tuple[Row, ...]:
    """The rows, and at the time of the last one a row of each stream that everybody wants: all states are purged then."""
    now_s = case.rows[-1].time_s if case.rows else 0.0
    wanted = frozenset(name for q in case.queries for name in (q.on_a, q.on_b) if name is not None)
    number = len(case.rows)
    return (*case.rows, Row("A", number, now_s, 0, wanted), Row("B", number + 1, now_s, 0, wanted))


def check_theorem_4(case: Case) -> None:
    """Once rows that all queries want have purged, Mem-Opt stores the rows that some query can still use, and no other
    way or chain stores fewer."""
    given = closed(case)
    stored = {}
    for name, plan in every_plan(case).items():
        plan.run(given)
        stored[name] = plan.meter.stored_rows
    mem_opt = f"chain {tuple(range(1, len(case.windows_s) + 1))}"
    assert stored[mem_opt] == required_rows(case.queries, given, given[-1].time_s)
    assert stored[mem_opt] == min(stored.values()), stored


test_theorem_4, test_theorem_4_long = properties(check_theorem_4, 100, 2_000, case=cases())


def test_theorem_4_holds_only_once_rows_have_purged():
    """A row that fails σ does not reach the second slice, so it does not purge B there; in the one join of pull-up it does.
    Until a row passes σ, Mem-Opt holds rows of B longer. The paper's proof speaks of rows, not of moments."""
    queries = (WindowQuery("q1", 1.0), WindowQuery("q2", 2.0, "x"))
    given = [Row("B", 0, 0.0), Row("A", 1, 1.0), Row("A", 2, 5.0), Row("A", 3, 6.0)]
    plans = [sliced(queries, EVERY_PAIR), pull_up(queries, EVERY_PAIR)]
    for plan in plans:
        plan.run(given)
    assert [len(plan.joins[-1].states["B"]) for plan in plans] == [1, 0]
    for plan in plans:
        plan.run([Row("A", 4, 6.0, 0, frozenset("x"))])
    assert [len(plan.joins[-1].states["B"]) for plan in plans] == [0, 0]


# -- lemma 2 -------------------------------------------------------------------------------------------------------------


def check_lemma_2(case: Case, data: st.DataObject) -> None:
    """What changes, in counted comparisons, when one part of a chain is cut differently does not depend on the rest."""
    last = len(case.windows_s)
    middle = data.draw(st.integers(1, last))
    before, after = case.windows_s[:middle], case.windows_s[middle:]
    firsts = [data.draw(chains(before)).ends for _ in range(2)]
    seconds = [tuple(middle + end for end in data.draw(chains(after)).ends) if after else () for _ in range(2)]

    def compared(ends: tuple[int, ...]) -> int:
        plan = sliced(case.queries, case.condition, Chain(case.windows_s, ends), is_counted=True)
        plan.run(case.rows)
        return plan.meter.comparisons

    changes = {compared(firsts[0] + rest) - compared(firsts[1] + rest) for rest in seconds}
    assert len(changes) == 1


test_lemma_2, test_lemma_2_long = properties(check_lemma_2, 100, 2_000, case=cases(), data=st.data())


# -- single cases --------------------------------------------------------------------------------------------------------


def test_a_row_that_fails_every_selection_is_not_stored():
    queries = (WindowQuery("p", 1.0, "x"), WindowQuery("q", 2.0, "y"))
    plans = [build(queries, EVERY_PAIR) for build in (sliced, push_down, unshared, pull_up)]
    for plan in plans:
        plan.run([Row("A", 0, 0.0)])
    assert [plan.meter.stored_rows for plan in plans] == [0, 0, 0, 1]
    assert [plan.meter.filtering for plan in plans] == [2, 2, 2, 0]


def test_a_row_survives_to_the_last_slice_that_wants_it():
    """Section 6.1: x holds, so the row stays until 2 s and no longer, although q3 has 9 s."""
    queries = (WindowQuery("q1", 1.0), WindowQuery("q2", 2.0, "x"), WindowQuery("q3", 9.0, "y"))
    plan = sliced(queries, EVERY_PAIR)
    plan.run([Row("A", 0, 0.0, 0, frozenset("x")), Row("B", 1, 1.0)])
    assert [len(join.states["A"]) for join in plan.joins] == [0, 1, 0]
    plan.run([Row("B", 2, 2.0)])
    assert [len(join.states["A"]) for join in plan.joins] == [0, 0, 0]


def test_routing_and_selecting_are_counted_by_result():
    """Fig. 13 and 16: three windows in one slice are two comparisons a result; σ is tested where others do without it."""
    queries = (WindowQuery("q1", 1.0), WindowQuery("q2", 2.0, "x"), WindowQuery("q3", 3.0))
    given = [Row("A", 0, 0.0, 0, frozenset("x")), Row("B", 1, 0.5), Row("B", 2, 1.5), Row("B", 3, 2.5)]
    merged = sliced(queries, EVERY_PAIR, Chain((1.0, 2.0, 3.0), (3,)))
    found = merged.run(given)
    assert {name: len(pairs) for name, pairs in found.items()} == {"q1": 1, "q2": 2, "q3": 3}
    assert (merged.meter.routing, merged.meter.selecting) == (6, 2)
    mem_opt = sliced(queries, EVERY_PAIR)
    mem_opt.run(given)
    assert (mem_opt.meter.routing, mem_opt.meter.selecting) == (0, 2)
    assert (mem_opt.meter.merging, merged.meter.merging) == (8, 8), "merging slices leaves unions as they are (section 5.2)"


def test_a_predicate_is_tested_up_to_the_longest_window_that_asks_for_it():
    """In one slice of three windows: results are 0.5, 1.5 and 2.5 s old, and x is wanted up to 2 s."""
    queries = (WindowQuery("q1", 1.0, "x"), WindowQuery("q2", 2.0, "x"), WindowQuery("q3", 3.0))
    given = [Row("A", 0, 0.0), Row("B", 1, 0.5), Row("B", 2, 1.5), Row("B", 3, 2.5)]
    merged = sliced(queries, EVERY_PAIR, Chain((1.0, 2.0, 3.0), (3,)))
    merged.run(given)
    assert merged.meter.selecting == 2


def test_what_push_down_counts():
    """Fig. 4: q1 reads both joins and merges their results; the results of σ's join are routed."""
    queries = (WindowQuery("q1", 1.0), WindowQuery("q2", 2.0, "x"))
    given = [Row("A", 0, 0.0, 0, frozenset("x")), Row("A", 1, 0.0), Row("B", 2, 0.5), Row("B", 3, 1.5)]
    plan = push_down(queries, EVERY_PAIR)
    found = plan.run(given)
    assert {name: len(pairs) for name, pairs in found.items()} == {"q1": 2, "q2": 2}
    meter = plan.meter
    assert (meter.filtering, meter.routing, meter.merging, meter.purging) == (2, 2, 2, 6)
    assert meter.stored_rows == 5, "both rows of B stand in both joins"


def test_a_union_waits_for_the_last_slice():
    """Fig. 12: nothing is handed on before a row has been through all slices that the query reads."""
    plan = sliced((WindowQuery("q1", 1.0), WindowQuery("q2", 2.0)), EVERY_PAIR)
    for row in (Row("A", 0, 0.0), Row("B", 1, 0.5)):
        plan.arrive(row)
    first, second = plan.joins
    while first.is_waiting:
        first.run_once()
    (union,) = plan.unions
    while union.is_waiting:
        union.run_once()
    assert (len(plan.receivers["q1"].pairs), len(plan.receivers["q2"].pairs)) == (1, 0)
    while second.is_waiting:
        second.run_once()
    plan.drain()
    assert len(plan.receivers["q2"].pairs) == 1


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="longer than 0"):
        WindowQuery("q", 0.0)
    with pytest.raises(ValueError, match="no queries"):
        sliced((), EVERY_PAIR)
    with pytest.raises(ValueError, match="the queries have"):
        sliced((WindowQuery("q", 2.0),), EVERY_PAIR, Chain((1.0,), (1,)))
    with pytest.raises(ValueError, match="band"):
        KeyBand(2, 3)
    with pytest.raises(AssertionError, match="not built"):
        SharedPlan(Meter(), {}).arrive(A1)


def first_of(waiting: Sequence[Operator]) -> Operator:
    return waiting[0]


def test_operators_run_as_they_are_chosen():
    plan = sliced((WindowQuery("q1", 1.0), WindowQuery("q2", 2.0)), EVERY_PAIR)
    plan.arrive(Row("A", 0, 0.0))
    plan.arrive(Row("B", 1, 0.5))
    plan.drain(first_of)
    assert not any(operator.is_waiting for operator in plan.operators)
