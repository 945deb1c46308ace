"""Queries that come, go and change while others run give what the oracle says of their stay."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import strategies as st

from anabranch.drive.local import LocalPipeline
from anabranch.plan.migration import Strategy
from anabranch.sql import parse_script
from anabranch.storage.filesystem import MemoryFilesystem
from tests.support import oracle
from tests.support.coming import check_coming
from tests.support.kin import Kin, kin
from tests.support.losing import may_lose
from tests.support.scenarios import properties
from tests.support.workloads import Workload, workloads

WHAT = ["add", "add", "history", "leave", "alter", "plan of all", "plan", "restart", "cut"]
ACTIONS = st.lists(
    st.tuples(st.integers(1, 9), st.sampled_from(WHAT), st.integers(0, 11), st.integers(0, 99)), min_size=1, max_size=9
)
TURNS = st.lists(st.integers(0, 1), min_size=1, max_size=5)

SPREAD_BY_WHAT_NOBODY_READS = {
    "workload": Workload(204, 3, 6), "slots": 4, "count": 2, "actions": [(1, "alter", 1, 0)], "turns": [0],
}  # fmt: skip
"""A query that joins by j is altered, and nobody reads j any more: the rows of the other one are still spread by it."""

WHAT_ALL_ASKED_OF_ONE_INPUT = {
    "workload": Kin(6603, 3, 6), "slots": 1, "count": 2, "actions": [(1, "add", 2, 0)], "turns": [0],
}  # fmt: skip
"""A stream stands in FROM twice, and all ask something of one of the two, until a query comes that does not: the log has
rows that did not pass it, for the sake of the other."""

test_kin_that_comes, test_kin_that_comes_long = properties(
    check_coming, 40, 2_000, [WHAT_ALL_ASKED_OF_ONE_INPUT], workload=kin(), slots=st.sampled_from([1, 2, 4]),
    count=st.integers(1, 4), actions=ACTIONS, turns=TURNS,
)  # fmt: skip

test_anybody_who_comes, test_anybody_who_comes_long = properties(
    check_coming, 25, 1_000, [SPREAD_BY_WHAT_NOBODY_READS], workload=workloads(), slots=st.sampled_from([1, 4]),
    count=st.integers(1, 4), actions=ACTIONS, turns=TURNS,
)  # fmt: skip

OTHER_STREAMS = {
    "workload": Workload(1363, 3, 6), "slots": 1, "count": 2, "actions": [(3, "alter", 0, 1)], "turns": [0],
}  # fmt: skip
"""A query over one stream is altered to join two others, as a query does whose watermark is far behind that of the one."""

ONLY_THE_CELL_TELLS = [
    {"workload": Workload(6, 4, 6), "slots": 2, "count": 3, "actions": [(1, what, 1, 0)], "turns": [0]}
    for what in ("alter", "leave")
]
"""Rows of b are spread by k for the sake of two queries, of which one reads k, and by j for a third. The one that does
leaves, or is altered: for the other it must still be told by k which rows are in a slot for its sake."""

OFTEN_ALTER = st.sampled_from(["alter", "alter", "restart", "leave"])
ALTERS = st.lists(
    st.tuples(st.integers(1, 6), OFTEN_ALTER, st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=4
)

test_who_is_altered, test_who_is_altered_long = properties(
    check_coming, 10, 1_000, [OTHER_STREAMS, *ONLY_THE_CELL_TELLS], workload=workloads(4), slots=st.sampled_from([1, 2]),
    count=st.integers(2, 4), actions=ALTERS, turns=TURNS,
)  # fmt: skip


CREATE = "".join(f"CREATE STREAM {s} (k BIGINT, x BIGINT, ts TIMESTAMP) TIME ts;" for s in "abc")
PAIRS = "SELECT a.x, b.x AS y FROM a, b WHERE a.k = b.k WINDOW 6 SECONDS"
SUMS = "SELECT a.k, SUM(b.x) AS y, COUNT(*) AS n FROM a, b WHERE a.k = b.k WINDOW 5 SECONDS GROUP BY a.k"


def rows(second: int) -> pa.Table:
    ts = pa.array([second * 1_000_000 + n for n in range(4)], pa.timestamp("us"))
    return pa.table({"k": [0, 1, 0, 1], "x": pa.array([(3 * second + 2 * n) % 7 for n in range(4)]), "ts": ts})


def test_rows_that_came_before_a_query_are_not_among_its_groups() -> None:
    """They are stored for another one. When groups go below the join, stored rows become groups: only the query's own do."""
    stays, comes = (
        declared.query for declared in parse_script(f"{CREATE} CREATE QUERY p AS {PAIRS}; CREATE QUERY q AS {SUMS};").queries
    )
    batches = [dict.fromkeys("ab", rows(number)) for number in range(9)]
    pipeline, found = LocalPipeline([stays], MemoryFilesystem()), Counter[Any]()
    for number, batch in enumerate([*batches, {}]):
        if number == 3:
            pipeline.add(comes)
        if number == 5:
            pipeline.change("q", "(a b)", groups_below="b")
        steps = pipeline.step(number, batch)
        found += oracle.bag(steps["q"].results) if "q" in steps else Counter()
    wanted = oracle.expected_of_stay(comes, batches, {}, 3, 3)
    assert not (wrong := oracle.difference(found, wanted)), wrong


def test_a_view_lacks_what_who_comes_with_history_wants() -> None:
    """Rows are kept for the sake of a query with a plan of its own. The two whose join the new one runs with them want other
    combinations of a and b, so that their view of them is no use to it."""
    join = "SELECT a.x, b.x AS y, c.x AS z FROM a, b, c WHERE a.k = b.k AND b.k = c.k{} WINDOW {} SECONDS"
    asked = {"p": ("", 5), "q": (" AND b.x > 3", 9), "r": (" AND b.x > 4", 9), "s": (" AND b.x < 4", 5)}
    script = "".join(f"CREATE QUERY {name} AS {join.format(*each)};" for name, each in asked.items())
    *first, comes = (declared.query for declared in parse_script(CREATE + script).queries)
    plans = {"p": "(a (b c))", "q": "((a b) c)", "r": "((a b) c)"}
    pipeline, found = LocalPipeline(first, MemoryFilesystem(), plans), Counter[Any]()
    batches = [dict.fromkeys("abc", rows(number)) for number in range(7)]
    for number, batch in enumerate([*batches, {}]):
        if number == 4:
            pipeline.add(comes, history=True)
        steps = pipeline.step(number, batch)
        found += oracle.bag(steps["s"].results) if "s" in steps else Counter()
    wanted = oracle.expected_of_stay(comes, batches, {}, 4, 0)
    assert not (wrong := oracle.difference(found, wanted)), wrong


CHAIN = "SELECT a.x, b.x AS y, c.x AS z FROM a, b, c WHERE a.k = b.k AND b.x = c.x WINDOW {} SECONDS"


@pytest.mark.parametrize(
    ("comes", "goes"),
    [("SELECT b.x, c.k FROM b, c WHERE b.x = c.x WINDOW 2 SECONDS", ["p"]), (CHAIN.format(30), ["p", "q"])],
)
def test_an_index_that_a_later_query_has_enough_of_is_completed_for_who_goes_over_to_it(comes: str, goes: list[str]) -> None:
    """Rows of b are looked up by x for a query that came in batch 3, of later batches only; or they are to be for both, and
    the later one is done first. Of the plan that the first one goes over to, the view of b and c has old rows, too."""
    script = f"CREATE QUERY p AS {CHAIN.format(40)}; CREATE QUERY q AS {comes};"
    first, later = (declared.query for declared in parse_script(CREATE + script).queries)
    batches = [dict.fromkeys("abc", rows(number)) for number in range(30)]
    alone = may_lose()  # under such a policy nobody shares a join
    pipeline = LocalPipeline([first], MemoryFilesystem(), {"p": "((a b) c)"}, limiting=alone)
    found = Counter[Any]()
    for number, batch in enumerate(batches):
        if number == 3:
            pipeline.add(later, plan="(b c)" if len(goes) == 1 else "((a b) c)")
        if number == 5:
            for name in goes:
                pipeline.change(name, "(a (b c))", Strategy.GRADUAL)
        found += oracle.bag(pipeline.step(number, batch)["p"].results)
        pipeline.verify()
    wanted = oracle.expected_of_stay(first, batches, {}, 0, 0, False)
    assert not (wrong := oracle.difference(found, wanted)), wrong
