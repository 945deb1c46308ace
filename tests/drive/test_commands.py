"""Commands that a driver has carried out, and died before it could answer: the next one answers for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from anabranch.control.commands import ANSWERS, COMMANDS, REFUSED, Command, answer_to, give
from anabranch.control.pipelines import COMING, DROPPED, ComingNote
from anabranch.control.query_texts import text_of
from anabranch.cost.facts import EMPTY
from anabranch.cost.units import unit_costs
from anabranch.drive.coming import Coming
from anabranch.errors import SessionError
from anabranch.online import Online
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import left_deep
from anabranch.plan.migration import Execution
from anabranch.plan.overload import Overload
from anabranch.plan.query import Query
from anabranch.run import Run
from anabranch.share.taking_in import Pricing
from anabranch.spark.pipeline import Joined
from anabranch.storage.record import seal
from tests.support.cases import Part
from tests.support.faulty import Fault
from tests.support.growing import JOIN, OTHER, Growing, query_of
from tests.support.simulation import Below
from tests.support.workloads import Workload

DRAWN = Workload(35, 0, batches=6)


@dataclass
class Asked(Growing):
    """A simulation whose runs take up commands before each trigger, as a run on Spark does between batches."""

    names: dict[int, str] = field(default_factory=dict)
    """The ids of the commands, by the triggers before which they are given."""

    def gives(self, trigger: int, command: Command) -> None:
        """Has a command be given before a trigger, once, and taken up before that trigger and those after it."""

        def ask(run: Run) -> None:
            if trigger not in self.names:
                self.names[trigger] = give(Below(self.world.inner, "checkpoint"), command)  # type: ignore[arg-type]
            self.take_up(run)

        self.before[trigger] = ask

    def started(self, holder: Any) -> Any:
        driver, runner, tasks = super().started(holder)
        # What was given and not answered is taken up by the driver that comes.
        place = SimpleNamespace(host=SimpleNamespace(driver=driver, delivery=runner.delivery, runner=runner))
        self.take_up(SimpleNamespace(pipelines=[place], queries=driver.queries))
        return driver, runner, tasks

    def take_up(self, run: Any) -> None:
        online_of(self, run).take_up(self.checkpoint)  # type: ignore[arg-type]


def online_of(case: Asked, run: Any) -> Online:
    """The very class that takes up commands on Spark, over the driver of a simulation."""
    host = run.pipelines[0].host
    place = SimpleNamespace(host=host, name="pipeline-0", arriving={}, is_over=False, overload=Overload())
    place.counted = SimpleNamespace(lacking=lambda streams: [])
    place.take_back, place.take_gone = dict, list

    def join(arriving: Any) -> Joined:
        query, note = arriving.member.query, arriving.note
        case.versions[note.text] = query
        running = {name: (each.query, each.distribution) for name, each in host.driver.queries.items()}
        coming = Coming(case.joining(query, running), note.history, note.command)
        host.delivery.add(query.name, case.outlets[query.name])
        host.runner.add(coming, note)
        return Joined(place)  # type: ignore[arg-type]

    def pipeline(name: str) -> Any:
        if name not in host.driver.queries:
            raise SessionError(f"no query {name} runs")
        return place

    def member(query: Query, *_: Any) -> Any:
        sink = SimpleNamespace(staging=lambda: None)
        execution = Execution(left_deep(JoinGraph(query)))
        return SimpleNamespace(query=query, sink=sink, execution=execution, under=lambda execution: member(query))

    place.join, place.members = join, {n: member(q.query) for n, q in host.driver.queries.items()}
    runs = SimpleNamespace(pipelines=[place], stopped=False, changing=threading.RLock(), pipeline=pipeline)
    session = SimpleNamespace(
        slots=2, overload=Overload(), declare=member, forget=lambda name: None, pricing=Pricing(EMPTY, unit_costs()),
        bind=lambda name, sql: query_of(DRAWN, name, sql),
    )  # fmt: skip
    return Online(session, runs, None, {}, None)  # type: ignore[arg-type]


def asked(faults: dict[int, Fault] | None = None) -> Asked:
    """A query is added, altered and dropped by commands."""
    batches = [DRAWN.batch(number) for number in range(DRAWN.batches)]
    case = Asked([query_of(DRAWN, "q0", JOIN)], batches, {}, slots=2, faults=faults or {})
    case.gives(1, Command("add", "later", OTHER))
    case.gives(3, Command("alter", "later", f"{OTHER} AND p.x > 1"))
    case.gives(5, Command("drop", "later"))
    for query in (query_of(DRAWN, "later", sql) for sql in (OTHER, f"{OTHER} AND p.x > 1")):
        case.asking(query, False)
    return case


def check(case: Asked, what: str) -> dict[int, str]:
    """All commands are answered as done; what is told, by the triggers before which they were given."""
    case.check(what)
    assert case.names.keys() == {1, 3, 5}
    assert not case.checkpoint.list(COMMANDS)
    told = {}
    for trigger, name in case.names.items():
        found = answer_to(case.checkpoint, name)  # type: ignore[arg-type]
        assert found is not None, f"{what}: no answer to {trigger}"
        assert found.is_done, f"{what}: {found.text}"
        told[trigger] = found.text
    texts = [control.queries["later"].text for control in case.begun.values() if "later" in control.queries]
    assert len(set(texts)) == 2, f"{what}: it came, and was altered"
    assert "later" not in case.steps[-1][0].queries, f"{what}: it was dropped"
    return told


def test_commands_are_carried_out() -> None:
    assert check(asked(), "calm") == {
        1: "later comes with the next batch",
        3: "later is another query from the next batch on",
        5: "later leaves with the next batch",
    }


def test_a_driver_dies_between_a_command_and_its_answer(part: Part) -> None:
    """At any put from the first command on: each is answered as what it was, done once."""
    calm = asked()
    calm.run()
    puts = calm.world.puts
    first = next(n for n, path in enumerate(puts) if path.startswith(f"checkpoint/{COMING}/"))
    records = [n for n in range(first - 1, len(puts)) if puts[n].split("/")[1] not in ("state", "staged", "progress")]
    for ordinal in part.of(records):
        for kind in ("tear", "crash_after") if puts[ordinal].split("/")[1] in MEANT else ("tear",):
            check(asked({ordinal: Fault(kind)}), f"{kind} {ordinal}, {puts[ordinal]}")  # type: ignore[arg-type]


def test_the_next_driver_answers() -> None:
    """A driver dies when it has noted what a command asks for, before it can answer."""
    calm = asked()
    calm.run()
    noted = [n for n, path in enumerate(calm.world.puts) if path.split("/")[1] in (COMING, DROPPED)]
    told = [check(asked({ordinal: Fault("crash_after")}), "") for ordinal in noted]
    assert [each[trigger] for each, trigger in zip(told, (1, 3, 5), strict=True)] == [
        "later has come in", "later was altered", "later was dropped"
    ]  # fmt: skip


MEANT = (COMING, DROPPED, ANSWERS, "control", "commit")
"""Where a driver puts what a command brings about."""


def test_a_command_is_known_to_be_carried_out_from_when_it_is_noted() -> None:
    """Before its batch, in it and after it; and a query that left by one command had come by another."""
    later, told = query_of(DRAWN, "later", OTHER), dict[int, tuple[bool, bool]]()
    batches = [DRAWN.batch(number) for number in range(DRAWN.batches)]
    case = Growing([query_of(DRAWN, "q0", JOIN)], batches, {}, slots=2, release_every=2)
    case.versions[text_of(later).digest] = later

    def come(run: Run) -> None:
        host = run.pipelines[0].host
        running = {name: (each.query, each.distribution) for name, each in host.driver.queries.items()}
        note = ComingNote("later", text_of(later).digest, command="comes")
        coming = Coming(case.joining(later, running), command="comes")
        host.delivery.add("later", case.outlets["later"])
        host.runner.add(coming, note)

    def look(trigger: int, asks: Callable[[Run], None] = lambda run: None) -> None:
        def ask(run: Run) -> None:
            asks(run)
            runner = run.pipelines[0].host.runner
            told[trigger] = runner.has_carried_out("comes"), runner.has_carried_out("goes")

        case.before[trigger] = ask

    look(0)
    look(1, come)
    look(2)
    look(3, lambda run: run.pipelines[0].host.runner.drop("later", "goes"))
    for trigger in range(4, DRAWN.batches):
        look(trigger)
    case.check()
    assert told == {
        0: (False, False), 1: (True, False), 2: (True, False), 3: (True, True),
        **dict.fromkeys(range(4, DRAWN.batches), (False, True)),
    }  # fmt: skip


def test_another_command_is_refused() -> None:
    """That a query is there does not mean that it was asked for by this command."""
    case, seen = asked(), list[Any]()

    def ask(run: Run) -> None:
        disk = Below(case.world.inner, "checkpoint")
        given = [give(disk, command) for command in (Command("add", "later", OTHER), Command("drop", "gone"))]  # type: ignore[arg-type]
        case.take_up(run)
        seen.extend(answer_to(disk, name) for name in given)  # type: ignore[arg-type]

    case.before[2] = ask
    check(case, "")
    assert [each.is_done for each in seen] == [False, False]
    assert seen[0].text == "there is, or was, a query later already: give this one another name"


def test_what_is_refused_is_refused_alone() -> None:
    """The last query stays, torn and foreign files are set aside and told; a good command among them is carried out."""
    batches = [DRAWN.batch(number) for number in range(DRAWN.batches)]
    case, told = Asked([query_of(DRAWN, "q0", JOIN)], batches, {}, slots=2), dict[str, str]()
    case.asking(query_of(DRAWN, "later", OTHER), False)

    def ask(run: Run) -> None:
        disk = Below(case.world.inner, "checkpoint")
        whole = disk.get(f"{COMMANDS}/{give(disk, Command('drop', 'q0'))}").to_pybytes()  # type: ignore[arg-type]
        files = {
            "torn": whole[:-5], "flipped": whole.replace(b"drop", b"drap"), "empty": b"", "foreign": b"rubbish",
            "other": seal("command", b'{"do": 3}'), "answer": seal("answer", b'{"do": "drop", "query": "q0"}'),
        }  # fmt: skip
        for name, content in files.items():
            disk.put(f"{COMMANDS}/{name}", [content])
        asked = [give(disk, each) for each in (Command("pause", "q0"), Command("add", "later", OTHER))]  # type: ignore[arg-type]
        case.take_up(run)
        assert not disk.list(COMMANDS)
        assert set(disk.list(REFUSED)) == files.keys()
        for name in disk.list(ANSWERS):
            answer = answer_to(disk, name)  # type: ignore[arg-type]
            assert answer is not None
            assert answer.is_done == (name == asked[1])
            told[answer.text] = name
            if name in files:
                assert answer.text.startswith(f"commands/{name} is no command, and was set aside in refused/")

    case.before[2] = ask
    case.check()
    assert {"q0 is the last query of its pipeline: stop the run instead", "later comes with the next batch"} <= told.keys()
    assert "pause is no command: it is one of add, alter, drop" in told
    assert any("later" in control.queries for control in case.begun.values()), "the good one came"
