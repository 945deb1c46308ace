"""Queries that run a join together go where their lead goes."""

from __future__ import annotations

import pyarrow as pa

from anabranch.control.loop import Observed, Proposal, Remark
from anabranch.drive.local import LocalPipeline, Steady
from anabranch.drive.steering import Steering
from anabranch.plan.actions import Action, ChangePlan, MoveGroups
from anabranch.plan.jtree import parse
from anabranch.plan.migration import Execution, Strategy
from anabranch.sql import parse_script
from anabranch.storage.filesystem import MemoryFilesystem

SCRIPT = "".join(f"CREATE STREAM {s} (k BIGINT, x BIGINT, ts TIMESTAMP) TIME ts;" for s in "abc") + """
    CREATE QUERY small AS SELECT n.x FROM c AS l, b AS m, a AS n WHERE l.k = m.k AND m.k = n.k WINDOW 1 SECOND;
    CREATE QUERY large AS SELECT a.x, b.k FROM a, b, c WHERE a.k = b.k AND b.k = c.k WINDOW 3 SECONDS;
    CREATE QUERY pinned AS SELECT b.x FROM a, b, c WHERE a.k = b.k AND b.k = c.k WINDOW 2 SECONDS;
"""
PLANS = {"small": "((n m) l)", "large": "((a b) c)", "pinned": "((a b) c)"}


class Asked(Steady):
    """Proposes an action after some batch, and remembers for which batches it was asked."""

    def __init__(self, action: Action | None = None, at: int = -1) -> None:
        self.action, self.at, self.seen = action, at, list[int]()

    def after(self, execution: Execution, observed: Observed) -> Proposal | Remark | None:
        self.seen.append(observed.batch)
        return Proposal(self.action, "it is better") if self.action is not None and observed.batch == self.at else None


class Company:
    """Three queries with one join, and a loop for each; the second has the largest windows."""

    def __init__(self, strategy: Strategy = Strategy.MOVING_STATE) -> None:
        queries = [declared.query for declared in parse_script(SCRIPT).queries]
        self.pipeline = LocalPipeline(queries, MemoryFilesystem(), PLANS)
        for name in ("small", "large"):
            self[name].is_pinned = False
        target = parse("(a (b c))", self["large"].graph)
        self.loops = {"small": Asked(), "large": Asked(ChangePlan(target, strategy), 2), "pinned": Asked()}
        for name, loop in self.loops.items():
            self[name].loop = loop

    def __getitem__(self, name: str) -> Steering:
        return self.pipeline.driver.queries[name]

    def run(self, first: int, last: int) -> None:
        for number in range(first, last):
            ts = pa.array([number * 1_000_000 + n for n in range(9)], pa.timestamp("us"))
            rows = pa.table({"k": pa.array(range(9)), "x": pa.array(range(9)), "ts": ts})
            self.pipeline.step(number, dict.fromkeys("abc", rows))

    @property
    def plans(self) -> dict[str, str]:
        return {name: str(query.plan) for name, query in self.pipeline.driver.queries.items()}

    @property
    def sharing(self) -> set[str]:
        slot = self.pipeline.slot()
        assert slot is not None
        return set(slot.sharing)


def test_the_lead_is_asked_and_the_others_go_with_it() -> None:
    company = Company()
    company.run(0, 3)
    assert company.sharing == {"small", "large", "pinned"}
    company.run(3, 5)
    assert company.sharing == {"small", "large"}, "a pinned plan stays, and its query runs by itself"
    assert company.loops["large"].seen == [0, 1, 2, 3, 4]
    assert not company.loops["small"].seen
    (told,) = [entry for entry in company["small"].journal.entries() if entry.event == "migrating"]
    assert "large leads the join of both" in told.text


def test_all_are_on_the_way_together() -> None:
    company = Company(Strategy.PARALLEL_TRACK)
    company.run(0, 5)
    assert company["small"].execution.migration is not None
    assert company.sharing == {"small", "large"}
    company.run(5, 12)
    assert company["small"].execution.is_settled
    assert company["large"].execution.is_settled
    assert company.sharing == {"small", "large"}


def test_what_needs_approval_is_approved_for_all() -> None:
    company = Company()
    company["large"].needs_approval = True
    company.run(0, 4)
    assert company.sharing == {"small", "large", "pinned"}
    assert company["large"].approve()
    company.run(4, 6)
    assert company.sharing == {"small", "large"}


def test_a_query_that_is_asked_to_go_elsewhere_goes_alone_and_decides_for_itself() -> None:
    company = Company()
    company.loops["large"].action = None
    company.run(0, 2)
    company.pipeline.change("small", "(n m l)")
    company.run(2, 4)
    assert company.sharing == {"large", "pinned"}
    assert company.loops["small"].seen == [2, 3]
    company.pipeline.change("small", PLANS["small"])
    company.run(4, 6)
    assert company.sharing == {"small", "large", "pinned"}


def test_groups_of_a_shared_join_stay_where_they_are() -> None:
    company = Company()
    plan = company["large"].plan
    company.loops["large"].action = MoveGroups("a", plan, Strategy.MOVING_STATE)
    company.run(0, 4)
    assert company.sharing == {"small", "large", "pinned"}
    (told,) = [entry for entry in company["large"].journal.entries() if entry.event == "kept"]
    assert "the join is shared with pinned, small" in told.text


def test_another_leads_when_the_lead_has_left() -> None:
    company = Company()
    company.run(0, 2)
    disk = company.pipeline.filesystem
    queries = [query.query for name, query in company.pipeline.driver.queries.items() if name != "large"]
    company.pipeline = LocalPipeline(queries, disk, dropped=["large"])
    for name, loop in company.loops.items():
        if name != "large":
            company[name].loop = loop
    company.run(2, 4)
    assert company.sharing == {"small", "pinned"}
    assert company.loops["pinned"].seen == [2, 3]
