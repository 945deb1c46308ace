"""Where to group: by what is known."""

import pytest

from anabranch.cost.facts import EMPTY, Given
from anabranch.cost.streams import Basis
from anabranch.cost.units import DEFAULT
from anabranch.errors import NoQualifiedPlanError
from anabranch.optimize.group_placement import choose_groups, priced_forms
from anabranch.optimize.planner import Bounds
from anabranch.plan.eager import Forms
from anabranch.sql import parse_script

STREAMS = """CREATE STREAM a (k BIGINT, x DOUBLE, ts TIMESTAMP) TIME ts;
             CREATE STREAM b (k BIGINT, g BIGINT, ts TIMESTAMP) TIME ts;
             CREATE TABLE t (k BIGINT, name STRING);"""


def query_of(select):
    return parse_script(f"{STREAMS} CREATE QUERY q AS {select}").queries[0].query


JOIN = "SELECT b.g, SUM(a.x) AS s FROM a [RANGE 60 SECONDS], b [RANGE 60 SECONDS] WHERE a.k = b.k GROUP BY b.g"


@pytest.mark.parametrize(
    ("rates", "distinct", "grouped_input"),
    [
        ({"a": 10_000.0, "b": 10.0}, {"a.k": 50.0, "b.k": 50.0}, "a"),
        ({"a": 10.0, "b": 10_000.0}, {"a.k": 100_000.0, "b.k": 100_000.0}, None),
        ({}, {}, None),
    ],
)
def test_rows_are_grouped_first_where_groups_are_few(rates, distinct, grouped_input):
    chosen = choose_groups(Forms(query_of(JOIN)), Given(rates, {}, distinct), DEFAULT, Bounds())
    assert chosen.grouped_input == grouped_input
    assert chosen.query in {g.query for g in Forms(query_of(JOIN)).graphs.values()}


def test_a_foreign_key_is_grouped_before_its_key_is_looked_up():
    """Many rows for each row of a table: they are summed up, then the sums look up the table."""
    query = query_of("SELECT t.name, SUM(a.x) AS s FROM a [RANGE 60 SECONDS], t WHERE a.k = t.k GROUP BY t.name")
    facts = Given({"a": 50_000.0}, {"t": 100.0}, {"a.k": 100.0, "t.k": 100.0})
    assert choose_groups(Forms(query), facts, DEFAULT, Bounds()).grouped_input == "a"


def test_a_budget_comes_before_less_cpu():
    """Groups below need less CPU here, but more memory than there is; strictly, no plan at all is refused."""
    facts = Given({"a": 10_000.0, "b": 10.0}, {}, {"a.k": 50.0, "b.k": 50.0})
    free = choose_groups(Forms(query_of(JOIN)), facts, DEFAULT, Bounds())
    assert free.grouped_input == "a"
    above = Forms(query_of(JOIN))
    with pytest.raises(NoQualifiedPlanError):
        choose_groups(above, facts, DEFAULT, Bounds(memory=1.0), strict=True)
    assert not choose_groups(above, facts, DEFAULT, Bounds(memory=1.0)).decision.is_qualified


def test_what_is_not_grouped_stays():
    query = query_of("SELECT a.x FROM a [NOW], b [NOW] WHERE a.k = b.k")
    chosen = choose_groups(Forms(query), EMPTY, DEFAULT, Bounds())
    assert (chosen.query, chosen.grouped_input) == (query, None)


def test_estimated_groups_are_not_taken_for_given():
    """How many groups there are below a join is worked out: as long as nobody gives the keys, it is assumed."""
    forms = Forms(query_of(JOIN))
    found = priced_forms(forms, Given({"a": 10.0, "b": 10.0}), DEFAULT, Bounds())
    (below,) = [each.decision.model.graph for each in found if each.grouped_input == "a"]
    assert [facts.basis for facts in below.streams] == [Basis.ASSUMED, Basis.GIVEN]
    assert [key.basis for key in below.classes] == [Basis.ASSUMED]
