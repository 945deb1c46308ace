"""What is asked of a run while its queries run: other plans, to keep a plan, to agree to a change. Results stay exact."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from anabranch.adapt.grouping_loop import GroupingLoop
from anabranch.adapt.loop import FIRST_BATCHES, Knowledge
from anabranch.control.loop import Observed
from anabranch.control.progress import read_progress
from anabranch.cost.units import DEFAULT
from anabranch.errors import MigrationError, PlanError, SessionError
from anabranch.optimize.planner import Bounds
from anabranch.plan.eager import Forms
from anabranch.plan.migration import Execution
from anabranch.run import Run
from anabranch.settings import Adapt
from anabranch.sql import parse_script
from tests.support.faulty import Crash
from tests.support.migrating import a_select_that_moves, check_select_moves
from tests.support.simulation import Simulation
from tests.support.uneven_streams import BATCHES, CREATE, ROWS, SQL, batches

PLANS = ("((a b) c)", "(a (b c))", "(a b c)")


class Deciding(GroupingLoop):
    """The loop that a session gives a query."""

    def __init__(self, forms: Forms) -> None:
        super().__init__(forms, Knowledge(forms.graphs[None], DEFAULT, slots=2, settings=Adapt().settings(Bounds())))


class Granting(Deciding):
    """Grants what is asked for, on what was measured, and proposes nothing by itself."""

    def after(self, execution: Execution, observed: Observed) -> None:
        super().after(execution, observed)


def simulation(
    before: dict[int, Callable[[Run], None]], loop: type[Deciding] = Granting, sql: str = SQL, plan: str = PLANS[0]
) -> Simulation:
    query = parse_script(f"{CREATE} CREATE QUERY q AS {sql}").queries[0].query
    read = {source.name for source in query.base_sources}
    rows = [{name: table for name, table in given.items() if name in read} for given in batches()]
    return Simulation([query], rows, {}, (plan,), to_files=False, before=before, loop=loop)


def finished(case: Simulation) -> Run:
    """The run that came to the end of the input; what has arrived is what should."""
    run = case.live()
    assert case.found() == case.expected()
    case.verify()
    return run


def events(run: Run) -> list[str]:
    return [entry.event for entry in run.journal["q"]]


def dies(run: Run) -> None:
    raise Crash("the driver dies")


@pytest.mark.parametrize("strategy", ["moving-state", "parallel-track", "gradual", None])
def test_a_plan_is_changed_by_request(strategy: str | None) -> None:
    case = simulation({
        2: lambda run: run.migrate("q", PLANS[1], strategy, pause="20 milliseconds"),
        8: lambda run: run.migrate("q", PLANS[0], strategy),
    })  # fmt: skip
    run = finished(case)
    assert events(run).count("migrating") == 2
    assert events(run).count("migrated") == 2
    assert run.plans["q"] == PLANS[0]
    told = next(e for e in run.journal["q"] if e.event == "migrating")
    assert {"moving-state", "parallel-track", "gradual"} == set(told.details["estimates"])
    if strategy is not None:
        assert told.details["strategy"] == strategy
    if strategy == "parallel-track":
        on_the_way = [commit for commit, _ in case.steps if commit.queries["q"].execution.migration is not None]
        assert 4 <= len(on_the_way) <= 12, "two migrations of a window each"
        shown = [step.target for step in read_progress(case.checkpoint)["q"] if step.target is not None]  # type: ignore[arg-type]
        assert [*dict.fromkeys(shown)] == [PLANS[1], PLANS[0]], "where the query is on its way to"


def test_a_migration_is_interrupted_and_cancelled() -> None:
    run = finished(simulation({
        2: lambda run: run.migrate("q", PLANS[1], "parallel-track"),
        4: lambda run: run.migrate("q", PLANS[2], "gradual"),
        7: lambda run: run.migrate("q", PLANS[1], "parallel-track"),
        8: lambda run: run.migrate("q", PLANS[2]),
    }))  # fmt: skip
    assert "cancelled" in events(run)
    assert run.plans["q"] == PLANS[2]


@pytest.mark.parametrize("strategy", ["parallel-track", "gradual"])
def test_a_migration_survives_a_driver(strategy: str) -> None:
    case = simulation({3: lambda run: run.migrate("q", PLANS[1], strategy, pause="1 microsecond"), 5: dies})
    with pytest.raises(Crash):
        case.live()
    assert case.steps[-1][0].queries["q"].execution.migration is not None
    run = finished(case)
    assert "migrated" in events(run)
    assert run.plans["q"] == PLANS[1]


def test_what_cannot_be_asked_for() -> None:
    def ask(run: Run) -> None:
        with pytest.raises(SessionError, match="no query nothing runs; running are: q"):
            run.migrate("nothing", PLANS[0])
        with pytest.raises(PlanError, match="lacks c"):
            run.migrate("q", "(a b)")
        with pytest.raises(SessionError, match="'slowly' is not a strategy"):
            run.migrate("q", PLANS[0], "slowly")
        with pytest.raises(MigrationError, match=r"\[UNBOUNDED\] never do: take moving-state or gradual"):
            run.migrate("q", PLANS[1], "parallel-track")

    run = finished(simulation({2: ask}, sql=SQL.replace("[RANGE 4 SECONDS], b", "[UNBOUNDED], b")))
    assert "migrating" not in events(run)
    with pytest.raises(SessionError, match="'often' is not a timing"):
        Adapt("often")


# What the loop decides


def test_a_query_is_planned_again_while_it_runs() -> None:
    run = finished(simulation({}, Deciding))
    review = next(e for e in run.journal["q"] if e.event in ("migrating", "kept"))
    assert review.batch == FIRST_BATCHES
    assert review.details["rates"]["a"] == pytest.approx(ROWS["a"], rel=0.2)
    assert review.event == "migrating", review.text
    assert "migrated" in events(run)
    assert run.plans["q"] != PLANS[0]


def test_a_change_waits_for_approval() -> None:
    agreed: list[bool] = []

    def has_to_be_asked(run: Run) -> None:
        run.queries["q"].needs_approval = True

    case = simulation({0: has_to_be_asked, BATCHES - 2: lambda run: agreed.append(run.approve("q"))}, Deciding)
    run = finished(case)
    assert agreed == [True]
    assert events(run).index("proposed") < events(run).index("migrating")
    assert {plans["q"] for _, plans in case.steps[: BATCHES - 2]} == {PLANS[0]}
    assert run.plans["q"] != PLANS[0]
    assert run.approve("q") is False


def test_a_pinned_query_stays_until_it_is_unpinned() -> None:
    case = simulation({0: lambda run: run.pin("q"), BATCHES // 2: lambda run: run.unpin("q")}, Deciding)
    run = finished(case)
    changed = next(e for e in run.journal["q"] if e.event == "migrating")
    assert changed.batch >= BATCHES // 2
    assert {plans["q"] for _, plans in case.steps[: BATCHES // 2]} == {PLANS[0]}


# Groups and selects


GROUPED = """SELECT a.{key}, COUNT(*) AS n, MAX(b.l) AS m FROM a [RANGE 3 SECONDS], b [RANGE 2 SECONDS]
             WHERE a.k = b.k AND a.v < 900 GROUP BY a.{key}"""


@pytest.mark.parametrize("key", ["l", "k"])
def test_groups_go_below_a_join_and_above_it_again(key: str) -> None:
    """Groups by the key that rows are spread by, and by another, of which slots have parts; a driver dies on the way."""
    case = simulation({
        3: lambda run: run.migrate("q", "(a b)", "moving-state", groups_below="b"),
        6: lambda run: run.migrate("q", "(b a)", "parallel-track", groups_below=""),
        7: dies,
        10: lambda run: run.migrate("q", "(a b)", "parallel-track", groups_below="b"),
    }, sql=GROUPED.format(key=key), plan="(a b)")  # fmt: skip
    assert case.spread["q"].groups_span_slots == (key == "l")
    with pytest.raises(Crash):
        case.live()
    run = finished(case)
    assert events(run).count("migrating") == 3
    assert events(run).count("migrated") >= 2
    assert "b grouped first" in run.plans["q"]
    with pytest.raises(MigrationError, match="cannot be grouped before they are joined"):
        run.migrate("q", "(a b)", groups_below="c")
    with pytest.raises(MigrationError, match="one after the other"):
        run.migrate("q", "(a b)", groups_below="", selects_above={})
    with pytest.raises(MigrationError, match="have groups above the join before a select goes there"):
        run.migrate("q", "(a b)", selects_above={"a": "a b"})


@pytest.mark.parametrize("strategy", ["moving-state", "parallel-track"])
def test_a_select_goes_above_a_join_and_down_again(strategy: str) -> None:
    scenario = a_select_that_moves()

    def up(run: Run) -> None:
        run.migrate("q", "(a b)", strategy, selects_above={"a": "a b"})
        with pytest.raises(MigrationError, match=r"b.x names no predicate of one input; there are: \(a.x < 5\)"):
            run.migrate("q", "(a b)", selects_above={"b.x": "a b"})

    case = Simulation(
        [scenario.query], scenario.arrow_batches, {}, scenario.plans, to_files=False, loop=Granting,
        before={3: up, 7: lambda run: run.migrate("q", "(a b)", strategy, selects_above={})},
    )  # fmt: skip
    run = finished(case)
    check_select_moves(scenario, strategy, [(commit, plans["q"]) for commit, plans in case.steps])
    assert events(run).count("migrating") == events(run).count("migrated") == 2
