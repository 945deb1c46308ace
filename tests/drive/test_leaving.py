"""A query that fails by itself, or whose sink fails for too long, leaves its pipeline; the others go on as if it had not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st

from anabranch.control.ledger import commits_in
from anabranch.drive.delivery import LEAST_BYTES
from anabranch.engine import aggregation, arrival, lineage, lookup, results, shares
from anabranch.errors import QueryError, SinkError
from anabranch.run import Run
from anabranch.sql import parse_script
from tests.support import oracle
from tests.support.cases import Part
from tests.support.chains import Chains, chains
from tests.support.faulty import Fault
from tests.support.kin import kin
from tests.support.scenarios import properties
from tests.support.simulation import Broken, Simulation, left_of
from tests.support.workloads import Workload, workloads

WORKLOAD = Workload(59, 3, batches=6)
"""Three queries, each of which has results in every batch."""


def simulation(workload: Workload = WORKLOAD, **settings: Any) -> Simulation:
    batches = [workload.batch(number) for number in range(workload.batches)]
    return Simulation(workload.queries, batches, {"t": workload.table}, **{"slots": 2, **settings})


def check(case: Simulation, breaks: dict[str, int]) -> None:
    """What has arrived: all of the queries that stayed; of the others what they gave before they broke, as they do alone."""
    found, expected = case.run(), case.expected()
    case.verify()
    ended = left_of(case.checkpoint)
    for query in case.queries:
        name = query.name
        if name not in ended:
            assert not (wrong := oracle.difference(found[name], expected[name])), f"{name}: {wrong}"
            continue
        assert ended[name].batch >= breaks[name]
        assert not (wrong := oracle.difference(found[name], alone(case, name, ended[name].batch))), f"{name}: {wrong}"
    assert len(ended) < len(case.queries)


def alone(case: Simulation, name: str, until: int) -> oracle.Bag:
    """What a query gives by itself in the batches before one."""
    (query,) = [query for query in case.queries if query.name == name]
    return case.alone(query, until)


def test_a_query_that_cannot_be_computed_leaves() -> None:
    case = simulation(breaks={"q1": 3})
    check(case, {"q1": 3})
    latest = commits_in(case.checkpoint).latest()  # type: ignore[arg-type]
    assert latest is not None
    assert latest[1].ended["q1"].reason == "ArithmeticError: it cannot be computed"
    assert latest[1].queries.keys() == {"q0", "q2"}


JOIN = "FROM a, b WHERE a.k = b.k"
ALL = "FROM a, b, c WHERE a.k = b.k AND b.k = c.k"
OTHERS = {
    "filtered": f"SELECT a.x, b.x AS y {JOIN} AND a.x > 2 WINDOW 4 SECONDS",
    "plain": f"SELECT b.x {JOIN} WINDOW 2 SECONDS",
    "third": f"SELECT a.x, c.x AS y {ALL} WINDOW 2 SECONDS",
}
FAILING = {
    "a filter": f"SELECT a.x {JOIN} AND a.x + 77 > 0", "what it selects": f"SELECT a.x + 77 AS z {JOIN}",
    "a predicate over both": f"SELECT a.x {JOIN} AND a.x + 77 > b.x",
    "what it adds up": f"SELECT a.k, SUM(a.x + 77) AS n {JOIN}", "of its groups": f"SELECT a.k, SUM(a.x) + 77 AS n {JOIN}",
    "a filter of the third": f"SELECT a.x {ALL} AND c.x + 77 > 0",
    "a predicate over the third": f"SELECT a.x {ALL} AND c.x + 77 > a.x",
}  # fmt: skip


@pytest.mark.parametrize("window_s", [3, 9], ids=["", "leads"])
@pytest.mark.parametrize("what", FAILING)
def test_a_member_of_a_shared_join_fails_by_an_expression_of_its_own(
    what: str, window_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the third batch on an expression fails that one member alone has. It ends with that batch; the others, also those
    that select the same columns of the same piece, go on as if it had not been there."""
    armed = list[bool]()

    def failing(evaluate: Callable[..., Any]) -> Callable[..., Any]:
        def evaluated(given: Any, *others: Any) -> Any:
            if armed and "77" in " ".join(str(expr) for expr in (given if isinstance(given, tuple) else [given])):
                raise ArithmeticError("it cannot be computed")
            return evaluate(given, *others)

        return evaluated

    for module, name in product((aggregation, arrival, lineage, lookup, results, shares), ("evaluate", "predicate_mask")):
        if hasattr(module, name):
            monkeypatch.setattr(module, name, failing(getattr(module, name)))
    tail = " GROUP BY a.k" if "SUM" in FAILING[what] else ""
    selects = {**OTHERS, "bad": f"{FAILING[what]} WINDOW {window_s} SECONDS{tail}"}
    script = "".join(f"CREATE STREAM {s} (k BIGINT, x BIGINT, ts TIMESTAMP) TIME ts;" for s in "abc")
    script += "".join(f"CREATE QUERY {name} AS {select};" for name, select in selects.items())
    queries, batches = [declared.query for declared in parse_script(script).queries], []
    for number in range(6):
        rng, at_us = np.random.default_rng(number), np.arange(8) * 100_000 + number * 1_000_000
        batches.append({
            s: pa.table({"k": rng.integers(0, 3, 8), "x": rng.integers(0, 9, 8), "ts": pa.array(at_us, pa.timestamp("us"))})
            for s in "abc"
        })  # fmt: skip
    case = Simulation(queries, batches, {}, slots=2, before={3: lambda run: armed.append(True)})
    found = case.run()
    armed.clear()
    ended, expected = left_of(case.checkpoint), case.expected()
    assert [*ended] == ["bad"]
    assert (ended["bad"].batch, ended["bad"].reason) == (3, "ArithmeticError: it cannot be computed")
    for query in queries:
        wanted = alone(case, "bad", 3) if query.name == "bad" else expected[query.name]
        assert wanted
        assert not (wrong := oracle.difference(found[query.name], wanted)), f"{query.name}: {wrong}"


def test_if_all_queries_fail_the_pipeline_does() -> None:
    case = simulation(breaks={"q0": 2, "q1": 2, "q2": 3})
    with pytest.raises(QueryError, match="ArithmeticError: it cannot be computed"):
        case.live()
    latest = commits_in(case.checkpoint).latest()  # type: ignore[arg-type]
    assert latest is not None
    assert latest[1].queries, "the last one has not left: its batch can run again"


def begun(puts: Sequence[str], batch: int) -> int:
    """The put with which a batch begins."""
    return next(n for n, path in enumerate(puts) if path.startswith(f"checkpoint/control/{batch:020d}"))


def test_a_driver_dies_while_a_query_leaves(part: Part) -> None:
    """At each put of the batch in which it does."""
    calm = simulation(breaks={"q1": 3})
    deaths = calm.deaths("lose", "tear", "crash_after")
    first, last = begun(calm.world.puts, 3), begun(calm.world.puts, 4)
    for left in part.of([each for each in deaths if first <= each.ordinal <= last]):
        case = simulation(breaks={"q1": 3})
        case.go_on(left)
        check(case, {"q1": 3})


def check_leaving(workload: Workload, slots: int, breaks: dict[str, int], faults: dict[int, Fault]) -> None:
    some = {name: at for name, at in breaks.items() if name != "q0"}
    check(simulation(workload, slots=slots, breaks=some, faults=faults), some)


KINDS = st.sampled_from(["lose", "tear", "crash_after"]).map(lambda kind: Fault(kind))  # type: ignore[arg-type]

test_leaving, test_leaving_long = properties(
    check_leaving, 15, 800, workload=st.one_of(workloads(5), kin(5)), slots=st.sampled_from([1, 2, 3]),
    breaks=st.dictionaries(st.sampled_from(["q1", "q2", "q3"]), st.integers(0, 6), min_size=1),
    faults=st.dictionaries(st.integers(0, 120), KINDS, max_size=3),
)  # fmt: skip

HALF_OF_THE_SLOTS = {"workload": Chains(4, 2, 5, 6), "slots": 4, "breaks": {"q1": 2}, "faults": {}}
"""When q1 has left nobody has a cell in every second slot."""

test_the_whole_of_a_chain_leaves, test_the_whole_of_a_chain_leaves_long = properties(
    check_leaving, 6, 400, [HALF_OF_THE_SLOTS], workload=chains(), slots=st.sampled_from([4, 6]),
    breaks=st.fixed_dictionaries({"q1": st.integers(0, 3)}, optional={"q2": st.integers(0, 3), "q3": st.integers(0, 3)}),
    faults=st.dictionaries(st.integers(0, 160), KINDS, max_size=3),
)  # fmt: skip


# A query that is dropped while it runs.


def dropping(name: str) -> Callable[[Run], None]:
    def drop(run: Run) -> None:
        if name in run.queries:
            run.pipelines[0].host.runner.drop(name)

    return drop


def check_dropped(workload: Workload, slots: int, drops: dict[str, int], faults: dict[int, Fault]) -> None:
    """Some queries are dropped before some triggers, while a driver may die at any put: others stay exact, and these give
    what they gave before."""
    asked: dict[int, list[str]] = {}
    for name, at in drops.items():
        asked.setdefault(at, []).append(name)

    def all_of(names: list[str]) -> Callable[[Run], None]:
        return lambda run: [dropping(name)(run) for name in names] and None

    before = {at: all_of(names) for at, names in asked.items()}
    case = simulation(workload, slots=slots, before=before, faults=faults)
    check(case, dict.fromkeys(drops, 1))
    there, left = {query.name for query in case.queries}, left_of(case.checkpoint)
    assert left.keys() == {name for name in drops if name in there}
    assert all(each.reason == "by request" for each in left.values())


test_dropped, test_dropped_long = properties(
    check_dropped, 15, 800, workload=st.one_of(workloads(5), kin(5), chains()), slots=st.sampled_from([1, 2, 3, 4]),
    drops=st.dictionaries(st.sampled_from(["q1", "q2", "q3"]), st.integers(1, 2), min_size=1),
    faults=st.dictionaries(st.integers(40, 160), KINDS, max_size=2),
)  # fmt: skip


def test_a_driver_dies_while_a_query_is_dropped(part: Part) -> None:
    """At each put from the request on to the end of the next batch."""
    calm = simulation(before={3: dropping("q1")})
    deaths, expected = calm.deaths("lose", "tear", "crash_after"), calm.expected()
    first, last = begun(calm.world.puts, 3), begun(calm.world.puts, 4)
    assert calm.world.puts[first - 1] == "checkpoint/dropped/q1"
    for left in part.of([each for each in deaths if first - 1 <= each.ordinal <= last]):
        case = simulation(before={3: dropping("q1")})
        case.go_on(left)
        found = case.run()
        for name in ("q0", "q2"):
            assert not (wrong := oracle.difference(found[name], expected[name])), f"{left} {name}: {wrong}"


def test_a_query_whose_sink_fails_for_too_long_may_leave() -> None:
    """q1 goes to a function that is broken. Two batches may wait; in the next one q1 is not computed any more."""
    case = simulation(leaves=["q1"], most_bytes=2 * LEAST_BYTES)
    case.function.fails = Broken()
    case.live()
    latest = commits_in(case.checkpoint).latest()  # type: ignore[arg-type]
    assert latest is not None
    left = latest[1].ended["q1"]
    assert "fails" in left.reason
    found, expected = case.found(), case.expected()
    for name in ("q0", "q2"):
        assert not (wrong := oracle.difference(found[name], expected[name])), f"{name}: {wrong}"
    assert not found["q1"]
    case.function.fails = {}
    case.live()
    assert not (wrong := oracle.difference(case.found()["q1"], alone(case, "q1", left.batch))), wrong


def test_rows_that_are_there_for_a_query_that_has_left() -> None:
    """Rows of b are spread in one way for q2 and in another for q4, whose groups span slots. When q2 has left, rows that
    came for its sake are still in the logs, and go on coming: they are none of q4's."""
    breaks = {"q1": 0, "q2": 1}
    check(simulation(Workload(9472, 5, batches=12), breaks=breaks), breaks)


def last_bytes(case: Simulation, name: str) -> int:
    """With this bound the results of a query are too many with the last of them, if all wait."""
    case.run()
    batches = [commit.batch for commit, _ in case.steps if commit.queries[name].slots]
    assert batches[-1] == case.steps[-1][0].batch, "it has results in the last batch"
    return (len(batches) - 1) * LEAST_BYTES


LAST = {
    "without an exchange": lambda **given: simulation(Workload(6, 1, batches=4, rows=6), to_files=False, **given),
    "in the closing step": lambda **given: simulation(Workload(1, 3, batches=4), **given),
}


@pytest.mark.parametrize("case", LAST)
def test_a_query_that_would_leave_with_a_batch_that_does_not_come(case: str) -> None:
    """The bound is reached in the last batch: the run ends with the error of the sink, and the query goes on at the next
    start."""
    made = LAST[case]
    calm = made()
    name = calm.function.query.name
    failing = made(leaves=[name], most_bytes=last_bytes(calm, name))
    failing.function.fails = Broken()
    with pytest.raises(SinkError, match=f"the sink of query {name} .* has failed"):
        failing.live()
    assert not left_of(failing.checkpoint)
    failing.function.fails = {}
    failing.live()
    found = failing.found()
    for query, wanted in failing.expected().items():
        assert not (wrong := oracle.difference(found[query], wanted)), f"{query}: {wrong}"
