"""RESULT_TIME in a condition is decided on whole results, whatever else the condition reads."""

from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import parse
from anabranch.plan.routes import routes
from anabranch.sql import parse_script

SCRIPT = """
CREATE STREAM s (k BIGINT, ts TIMESTAMP) TIME ts;
CREATE QUERY q AS SELECT a.k FROM s a, s b, s c
WHERE a.k = b.k AND b.k = c.k AND RESULT_TIME > a.ts WINDOW 1 SECOND
"""


def test_a_condition_on_the_result_time_is_a_residual_of_the_root() -> None:
    query = parse_script(SCRIPT).queries[0].query
    assert [str(r) for r in query.residuals] == ["(RESULT_TIME > a.ts)"]
    assert all(not i.filters for i in query.inputs)
    graph = JoinGraph(query)
    for route in routes(parse("((a b) c)", graph), graph):
        probes = [(stage.is_root, probe) for stage in route.stages for probe in stage.probes]
        assert [bool(p.residuals) for _, p in probes] == [False] * (len(probes) - 1) + [True]
        assert probes[-1][0]
