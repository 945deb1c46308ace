"""What is asked of queries while they run, at random: other plans, groups and selects elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from hypothesis import strategies as st

from anabranch.control.loop import Proposal
from anabranch.drive.steering import Steering
from anabranch.errors import MigrationError
from anabranch.plan.actions import Action, ChangePlan, MoveGroups, MoveSelects
from anabranch.plan.jtree import joins_of, left_deep
from anabranch.plan.migration import Strategy
from anabranch.plan.selects import raise_selects
from anabranch.run import Run
from tests.support.scenarios import random_plan
from tests.support.workloads import Workload

Change = tuple[int, str, int]
"""Which of the queries that can, what of it, and a number that all else follows from."""

KINDS = ("plan", "plan", "groups", "selects")
CHANGES = st.dictionaries(
    st.integers(1, 9),
    st.lists(st.tuples(st.integers(0, 11), st.sampled_from(KINDS), st.integers(0, 99)), min_size=1, max_size=4),
    min_size=1, max_size=5,
)  # fmt: skip
"""What is asked before some triggers."""


CAN: dict[str, Callable[[Steering], bool]] = {
    "plan": lambda each: len(each.query.inputs) > 2,
    "groups": lambda each: len(each.forms.graphs) > 1,
    "selects": lambda each: len(each.query.inputs) > 1 and any(i.filters for i in each.query.inputs),
}


def asking(changes: list[Change]) -> Callable[[Run], None]:
    """Asks for changes; those that are refused are not made."""

    def ask(run: Run) -> None:
        for which, what, how in changes:
            if able := [query for query in run.queries.values() if CAN[what](query)]:
                steering = able[which % len(able)]
                with suppress(MigrationError):
                    steering.request(Proposal(action_of(steering, what, how), "by the simulation"))

    return ask


def action_of(steering: Steering, what: str, how: int) -> Action:
    """A change of what a query runs, of some kind."""
    strategy, graph = list(Strategy)[how % 3], steering.graph
    if what == "groups":
        forms = steering.forms
        grouped_input = list(forms.graphs)[how % len(forms.graphs)]
        return MoveGroups(grouped_input, left_deep(forms.graphs[grouped_input]), strategy, how)
    plan = random_plan(Workload(how, 2).rng("plan"), graph)
    if what == "selects" and steering.execution.grouped_input is None:
        filtered = [i.alias for i in steering.query.inputs if i.filters]
        above = [(a, " ".join(sorted(j.aliases))) for a in filtered for j in joins_of(steering.plan) if a in j.aliases]
        wanted = dict([above[how % len(above)]] if above and how % 4 else [])
        return MoveSelects(raise_selects(steering.query, wanted), steering.plan, strategy, how)
    return ChangePlan(plan, strategy, how)
