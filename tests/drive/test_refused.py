"""A query that could come when it was asked for, and cannot any more when its batch begins: its name is free again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from anabranch.control.journal import journals_in
from anabranch.control.pipelines import COMING, ComingNote
from anabranch.control.query_texts import FOLDER as TEXTS
from anabranch.control.query_texts import text_of
from anabranch.control.sink_notes import SinkNote, read_sink, write_sink
from anabranch.drive.coming import Coming
from anabranch.run import Run
from anabranch.spark.members import Arriving
from anabranch.spark.pipeline import Pipeline
from tests.support.growing import JOIN, OTHER, Growing, query_of
from tests.support.workloads import Workload

DRAWN = Workload(35, 0, batches=30)


def pipeline_of(case: Growing, run: Run) -> Pipeline:
    """A pipeline as it is on Spark, over the driver of a simulation."""
    ground: Any = SimpleNamespace(checkpoint=case.checkpoint)
    members: Any = {name: SimpleNamespace(query=each.query) for name, each in run.queries.items()}
    made = Pipeline(ground, "pipeline-0", members, 2)
    host, pushdown = run.pipelines[0].host, SimpleNamespace(remove_reader=lambda name: None)
    made.host = SimpleNamespace(driver=host.driver, runner=host.runner, delivery=host.delivery, pushdown=pushdown)  # type: ignore[assignment]
    made._tidy = lambda work: None  # type: ignore[assignment]
    return made


def test_a_query_that_cannot_come_any_more() -> None:
    """late asks for the history that q0 keeps. In the same batch q0 is altered, and keeps less. late is refused when the
    batch begins, and so is a change of q1, which goes on as it was."""
    first = [query_of(DRAWN, "q0", JOIN), query_of(DRAWN, "q1", OTHER)]
    case = Growing(first, [DRAWN.batch(n) for n in range(DRAWN.batches)], {}, slots=2)
    made: list[Pipeline] = []

    def ask(run: Run) -> None:
        host, pipeline = run.pipelines[0].host, pipeline_of(case, run)
        made.append(pipeline)
        asked = [query_of(DRAWN, "q0", OTHER + " AND p.x > 1"), query_of(DRAWN, "late", JOIN), query_of(DRAWN, "q1", JOIN)]
        for query in asked:
            case.versions[text_of(query).digest] = query
            running = {name: (each.query, each.distribution) for name, each in host.driver.queries.items()}
            coming = Coming(case.joining(query, running), True)
            host.delivery.add(query.name, case.outlets[query.name])
            write_sink(case.checkpoint, query.name, SinkNote("function"))  # type: ignore[arg-type]
            note = ComingNote(query.name, text_of(query).digest, None, True)
            host.runner.add(coming, note)
            arriving: Any = Arriving(SimpleNamespace(query=query), note)  # type: ignore[arg-type]
            pipeline._joined[query.name] = arriving, pipeline.members.get(query.name)
            pipeline.members = {**pipeline.members, query.name: arriving.member}

    def look(run: Run) -> None:
        (pipeline,), driver = made, run.pipelines[0].host.driver
        assert driver.queries.keys() == {"q0", "q1"}
        assert not driver.is_free("q0")
        assert driver.is_free("late")
        assert {name: None if each is None else each.query.name for name, each in pipeline.take_back().items()} == {
            "late": None, "q1": "q1"
        }  # fmt: skip
        assert pipeline.members.keys() == {"q0", "q1"}
        assert all(pipeline.members[name].query is driver.queries[name].query for name in ("q0", "q1"))
        assert pipeline.take_back() == {}
        assert pipeline._joined == {}
        assert "late" not in run.pipelines[0].host.delivery.lines
        assert "q1" in run.pipelines[0].host.delivery.lines
        assert read_sink(case.checkpoint, "late") is None  # type: ignore[arg-type]
        assert not case.checkpoint.list(COMING)

    case.before = {2: ask, 3: look, 4: case.asking(query_of(DRAWN, "late", OTHER), False)}
    case.check()
    assert case.found()["late"], "another query of that name has come"
    assert "refused" in [entry.event for entry in journals_in(case.checkpoint)["late"].entries()]  # type: ignore[arg-type]
    refused = {text_of(query_of(DRAWN, name, JOIN)).digest for name in ("late", "q1")}
    assert not refused & {*case.checkpoint.list(TEXTS)}, "nobody names the texts of what was refused"
