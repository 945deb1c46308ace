"""Routes under random plans: every input is bound once, every predicate is decided once and as early as can be."""

from __future__ import annotations

from hypothesis import given, settings

from anabranch.plan.expression import Call, ResultTime, aliases_of, walk
from anabranch.plan.jtree import Join, Leaf, joins_of, left_deep, parse
from anabranch.plan.routes import Index, Probe, indexes, routes, views
from tests.support.queries import column, components, graph, less, planned


def needs(residual, found):
    """The inputs that must have met before a residual predicate can be decided."""
    read = aliases_of(residual)
    on_result = not read or any(isinstance(node, ResultTime) for node in walk(residual))
    return frozenset(found.query.aliases) if on_result else read


def probes_of(route):
    return [probe for stage in route.stages for probe in stage.probes]


@given(planned())
@settings(deadline=None)
def test_a_route_binds_every_input_once(case):
    found, plan = case
    ways = routes(plan, found)
    assert [r.alias for r in ways] == list(found.query.aliases)
    for route in ways:
        bound = [route.alias, *(a for probe in probes_of(route) for a in probe.target)]
        assert sorted(bound) == sorted(found.query.aliases)


@given(planned())
@settings(deadline=None)
def test_a_route_goes_up_the_tree_one_join_a_stage(case):
    found, plan = case
    for route in routes(plan, found):
        above = [j for j in joins_of(plan) if route.alias in j.aliases]
        assert [frozenset(s.joined) for s in route.stages] == [j.aliases for j in above]
        assert [s.is_root for s in route.stages] == [False] * (len(above) - 1) + [True]
        bound = frozenset([route.alias])
        for stage, node in zip(route.stages, above, strict=True):
            assert stage.joined == found.ordered(node.aliases)
            place = next(i for i, child in enumerate(node.inputs) if child.aliases == bound)
            assert [frozenset(p.target) for p in stage.probes] == [node.inputs[j].aliases for j in node.orders[place]]
            bound = node.aliases


@given(planned())
@settings(deadline=None)
def test_residuals_are_decided_once_and_as_early_as_possible(case):
    """On the way of a row each predicate is decided at the first probe after which all it reads is bound, unless the
    state looked up has decided it already, when it was made."""
    found, plan = case
    for route in routes(plan, found):
        bound = frozenset([route.alias])
        for probe in probes_of(route):
            target = frozenset(probe.target)
            ready = [
                r
                for r in found.query.residuals
                if needs(r, found) <= bound | target and not needs(r, found) <= bound and not needs(r, found) <= target
            ]
            assert list(probe.residuals) == ready
            bound |= target
        for residual in dict.fromkeys(found.query.residuals):
            times = sum(list(p.residuals).count(residual) for p in probes_of(route))
            inside = sum(needs(residual, found) <= frozenset(p.target) for p in probes_of(route))
            assert times + inside * found.query.residuals.count(residual) == found.query.residuals.count(residual)


@given(planned())
@settings(deadline=None)
def test_all_routes_into_a_view_leave_the_same_predicates_decided(case):
    found, plan = case
    for route in routes(plan, found):
        decided = set()
        for stage in route.stages:
            for probe in stage.probes:
                decided |= set(probe.residuals)
                decided |= {r for r in found.query.residuals if needs(r, found) <= frozenset(probe.target)}
            assert decided == {r for r in found.query.residuals if needs(r, found) <= frozenset(stage.joined)}


@given(planned())
@settings(deadline=None)
def test_keys_of_a_route_imply_all_equalities(case):
    """What the probes of a route compare, what the rows of each input are filtered by, and what holds in the views that are
    looked up together make all terms of each class equal."""
    found, plan = case
    filters = [
        f.args for a in found.query.aliases for f in found.implied_filters(a) if isinstance(f, Call) and f.op == "eq"
    ]

    def pairs(node, alias):
        """What is equal in rows that came to `node` by the route of `alias`."""
        if isinstance(node, Leaf):
            return []
        route = next(r for r in ways if r.alias == alias)
        inner = [
            (k.bound, k.target)
            for s in route.stages
            if frozenset(s.joined) <= node.aliases
            for p in s.probes
            for k in p.keys
        ]
        for join in joins_of(node):
            if alias not in join.aliases:
                inner += pairs(join, min(join.aliases))
        return inner

    ways = routes(plan, found)
    for route in ways:
        assert components(pairs(plan, route.alias) + filters) == {frozenset(c) for c in found.classes}


@given(planned())
@settings(deadline=None)
def test_states_follow_from_the_routes(case):
    found, plan = case
    ways = routes(plan, found)
    below_root = [j.aliases for j in joins_of(plan)][:-1]
    assert {frozenset(v) for v in views(ways)} == set(below_root)
    assert list(views(ways)) == sorted(set(views(ways)), key=lambda v: (len(v), v))
    needed = indexes(ways)
    assert len(needed) == len(set(needed))
    assert set(needed) == {p.index for r in ways for p in probes_of(r)}
    for index in needed:
        assert len(index.state) == 1 or index.state in views(ways)
        assert all(aliases_of(term) <= set(index.state) for term in index.terms)


def test_an_nary_join_has_no_views_and_a_binary_tree_has_one_less_than_joins():
    found = graph("A B C D", "A.x = B.x, B.x = C.x, C.x = D.x")
    assert views(routes(parse("(A B C D)", found), found)) == ()
    assert views(routes(left_deep(found), found)) == (("A", "B"), ("A", "B", "C"))
    assert views(routes(parse("((A B) (C D))", found), found)) == (("A", "B"), ("C", "D"))


def test_the_route_through_a_view():
    residual = less("B.z", "C.z")
    found = graph("A B C", "A.x = B.x, B.y = C.y", (residual,))
    way = routes(parse("((A B) C)", found), found)
    into_view = Probe(("B",), found.keys_between({"A"}, {"B"}), ())
    to_c = Probe(("C",), found.keys_between({"A", "B"}, {"C"}), (residual,))
    assert [s.probes for s in way[0].stages] == [(into_view,), (to_c,)]
    assert [s.joined for s in way[0].stages] == [("A", "B"), ("A", "B", "C")]
    assert [s.probes for s in way[2].stages] == [
        (Probe(("A", "B"), found.keys_between({"C"}, {"A", "B"}), (residual,)),)
    ]
    assert indexes(way) == (
        Index(("B",), (column("B.x"),)),
        Index(("C",), (column("C.y"),)),
        Index(("A",), (column("A.x"),)),
        Index(("A", "B"), (column("B.y"),)),
    )


def test_products_have_no_keys():
    found = graph("A B")
    assert [p.keys for r in routes(left_deep(found), found) for p in probes_of(r)] == [(), ()]


def test_one_input_has_a_route_without_stages():
    found = graph("A")
    assert [r.stages for r in routes(Leaf("A"), found)] == [()]
    assert indexes(routes(Leaf("A"), found)) == ()


def test_probe_orders_change_the_order_alone():
    found = graph("A B C", "A.x = B.x, A.y = C.y")
    plan = parse("(A B C){A: C B}", found)
    assert isinstance(plan, Join)
    assert [p.target for p in probes_of(routes(plan, found)[0])] == [("C",), ("B",)]
    assert [p.target for p in probes_of(routes(plan, found)[1])] == [("A",), ("C",)]
