"""Queries that come, change and go while a session runs.

A query that is added comes into the pipeline whose queries read all its streams; or some of them, if nobody reads the others
and Spark can count them there too (`anabranch.control.spark_streams`). Where there is none, because it would connect two
pipelines, has no stream in common with any, or runs alone, it gets a pipeline of its own, and reads its streams from the
beginning, as a query that is new at a start. Commands from outside (`anabranch add`, `alter`, `drop`) are files in
the checkpoint (`anabranch.control.commands`), which a thread takes up. What a command brings about is noted with the id of
the command: a driver that died when it had carried a command out, and had not answered yet, is answered for by the next.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from anabranch.control import commands
from anabranch.control.commands import Answer, Command
from anabranch.control.pipelines import ComingNote, known_pipelines, new_name
from anabranch.control.query_texts import text_of
from anabranch.errors import AnabranchError, SessionError
from anabranch.plan.overload import Overload, require_overload
from anabranch.plan.query import Query, Stream
from anabranch.planning import warn_of
from anabranch.share.common_plan import Alone, joined_execution
from anabranch.share.taking_in import Pricing
from anabranch.spark.failures import told
from anabranch.spark.members import Arriving, Ground, Member
from anabranch.spark.pipeline import Pipeline
from anabranch.spark.sinks import Sink, as_sink, console, keeps_results, parquet
from anabranch.sql.types import spell
from anabranch.storage.filesystem import Filesystem
from anabranch.storage.location import Folder

LOOK_EVERY_S = 1.0
"""How often the checkpoint is looked at for commands."""


DONE = {"add": "has come in", "alter": "was altered", "drop": "was dropped"}
"""What is answered to a command that a driver had carried out and could not answer."""


def answer_drops(checkpoint: Folder, dropped: Collection[str]) -> None:
    """Answers the commands by which queries were dropped that a start leaves behind: they came while no run had the
    checkpoint."""
    for name, command in commands.given(checkpoint):
        if command.do == "drop" and command.query in dropped:
            commands.answer(checkpoint, name, Answer(True, f"{command.query} was dropped"))


def query_streams(query: Query) -> dict[str, Stream]:
    """The streams that a query reads."""
    return {source.name: source for source in query.base_sources if isinstance(source, Stream)}


def _warned(query: Query) -> str:
    """What the answer tells of warnings, which the terminal of the run shows, too."""
    return "".join(f"; warning: {text}" for text in warn_of(query))


class Declares(Protocol):
    """What a session does for a query that comes."""

    @property
    def slots(self) -> int:
        """How many tasks a batch of a new pipeline has."""

    def bind(self, name: str, sql: str) -> Query:
        """The query of a text over the sources of the session."""

    @property
    def overload(self) -> Overload:
        """What queries do under overload of which nothing else is said."""

    @property
    def pricing(self) -> Pricing:
        """What costs are worked out from."""

    def declare(self, query: Query, sink: Sink, plan: str | None, overload: Overload | None = None) -> Member:
        """A query as one of the session's, as it is to run."""

    def forget(self, name: str) -> None:
        """Takes a query back."""


class Runs(Protocol):
    """What a run is to those who have its queries come and go."""

    pipelines: list[Pipeline]
    stopped: bool
    changing: threading.RLock
    command_error: Exception | None

    def pipeline(self, name: str) -> Pipeline:
        """The pipeline that a query runs in."""


class Online:
    """Has queries of a run come, change and go, one at a time."""

    def __init__(
        self, session: Declares, run: Runs, ground: Ground, trigger: Mapping[str, Any], patience_s: float | None
    ) -> None:
        self._session, self._run, self._ground, self._trigger = session, run, ground, trigger
        self._patience_s = patience_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="anabranch-commands", daemon=True)

    def watch(self) -> None:
        """Takes up commands from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Takes up no more commands."""
        self._stopped.set()

    def add(
        self,
        name: str,
        sql: str,
        sink: object,
        plan: str | None,
        history: bool,
        overload: Overload | None = None,
        command: str = "",
    ) -> str:
        """Has a query come in. What is told of it. `command` is the one that asked for it, if one did."""
        require_overload(overload)
        made = as_sink(console(query=name) if sink is None else sink, name)
        with self._changes():
            self._require_running()
            self._require_new(name)
            query = self._session.bind(name, sql)
            place, why = self._pipeline_for(query, overload or self._session.overload)
            if place is None and history:
                raise SessionError(f"{name} cannot have history: {why}; add it without")
            new = place.counted.lacking(query_streams(query)) if place is not None else []
            member = self._session.declare(query, made, plan, overload)
            try:
                if place is None:
                    self._start_apart(member, overload or self._session.overload, command)
                    told = f"{name} has a pipeline of its own, from the beginning of its streams: {why}"
                    return told + _warned(query)
                note = ComingNote(name, text_of(query).digest, plan, history, command)
                self._join(place, self._with_others(place, member, plan), note)
            except BaseException:
                self._session.forget(name)
                raise
            are = "is" if len(new) == 1 else "are"
            told = f"; {', '.join(new)} {are} new to its pipeline, and read from the beginning" if new else ""
            return f"{name} comes with the next batch{told}{_warned(query)}"

    def alter(self, name: str, sql: str, command: str = "") -> str:
        """Has a query take the place of the one of its name."""
        with self._changes():
            place = self._run.pipeline(name)
            self._require_running(place)
            query, before = self._session.bind(name, sql), place.members[name]
            if query.output_schema != before.query.output_schema and keeps_results(before.sink):
                columns = ", ".join(f"{field.name} {spell(field.type)}" for field in before.query.output_schema)
                raise SessionError(
                    f"{name} cannot be altered to give other columns: results in its sink ({before.sink}) have {columns}; "
                    "drop it, and add a query of another name with a sink of its own"
                )
            self._session.forget(name)
            try:
                member = self._session.declare(query, before.sink, None, place.overload)
                note = ComingNote(name, text_of(query).digest, None, True, command)
                self._join(place, self._with_others(place, member, None), note)
            except BaseException:
                self._session.forget(name)
                self._session.declare(before.query, before.sink, None, place.overload)
                raise
            return f"{name} is another query from the next batch on{_warned(query)}"

    def drop(self, name: str, command: str = "") -> str:
        """Has a query leave."""
        with self._changes():
            place = self._run.pipeline(name)
            self._require_running(place)
            place.host.runner.drop(name, command)
            return f"{name} leaves with the next batch"

    @contextmanager
    def _changes(self) -> Iterator[None]:
        """Within it nobody else has queries come or go. Those that have gone, or could not come, are out of the way."""
        with self._run.changing:
            for pipeline in self._run.pipelines:
                for name, before in pipeline.take_back().items():
                    self._session.forget(name)
                    if before is not None:
                        self._session.declare(before.query, before.sink, None, pipeline.overload)
                for name in pipeline.take_gone():
                    self._session.forget(name)
            yield

    # -- where a query comes in --------------------------------------------------------------------------------------

    def _require_running(self, pipeline: Pipeline | None = None) -> None:
        """Refuses a change where nobody is there to carry it out."""
        if self._run.stopped or all(each.is_over for each in self._run.pipelines):
            raise SessionError("the run is over: start it again first")
        if pipeline is not None and pipeline.is_over:
            raise SessionError(f"{', '.join(pipeline.members)} ended, and nothing of them runs any more")

    def _require_new(self, name: str) -> None:
        for pipeline in self._run.pipelines:
            if name in pipeline.members or name in pipeline.arriving or not pipeline.host.driver.is_free(name):
                raise SessionError(f"there is, or was, a query {name} already: give this one another name")

    def _pipeline_for(self, query: Query, overload: Overload) -> tuple[Pipeline | None, str]:
        """The pipeline that a query comes into; or None, and why it has one of its own."""
        wanted, read, others = query_streams(query).keys(), dict[str, set[str]](), list[Pipeline]()
        running = {each.name: each for each in self._run.pipelines if not each.is_over}
        for name, pipeline in running.items():
            read[name] = {s for steering in pipeline.host.driver.queries.values() for s in steering.streams}
            if wanted <= read[name] and not pipeline.host.driver.needs_no_exchange:
                if pipeline.overload == overload:
                    return pipeline, ""
                others.append(pipeline)
        if others:
            theirs = f"{', '.join(others[0].members)} {'are' if len(others[0].members) > 1 else 'is'}"
            return None, f"under overload it is to {overload.text}, and {theirs} to {others[0].overload.text}"
        nobody, why = wanted - set().union(*read.values()), ""
        for name, pipeline in running.items():
            if not wanted & read[name] or wanted - read[name] != nobody or pipeline.host.driver.needs_no_exchange:
                continue
            if pipeline.overload != overload:
                why = why or f", and queries that read the others are to {pipeline.overload.text} under overload"
            elif not (fixed := pipeline.why_not_read(sorted(nobody))):
                return pipeline, ""
            else:
                why = why or f", and the streams of the pipeline that reads the others are fixed: {fixed}"
        if nobody:
            return None, f"no query that runs reads {', '.join(sorted(nobody))}{why}"
        return None, "no pipeline has all its streams, or none whose rows cross an exchange; pipelines never merge"

    def _with_others(self, pipeline: Pipeline, member: Member, plan: str | None) -> Member:
        """A query with the plan of those whose join it runs with them, unless it has its own, or runs apart for less."""
        if plan is not None:
            return member
        queries, alone = pipeline.host.driver.queries.values(), Alone(member.execution.plan, self._session.pricing)
        others = [each.running for each in queries if each.name != member.query.name]
        shared = joined_execution(member.query, others, alone)
        return member if shared is None else member.under(shared[1])

    def _join(self, place: Pipeline, member: Member, note: ComingNote) -> None:
        joined = place.join(Arriving(member, note))
        self._run.pipelines[self._run.pipelines.index(place)] = joined.pipeline
        if joined.error is not None:
            raise joined.error

    def _start_apart(self, member: Member, overload: Overload, command: str) -> None:
        ground, query = self._ground, member.query
        name = new_name(ground.checkpoint, known_pipelines(ground.checkpoint))
        made = Pipeline(
            ground, name, {query.name: member}, self._session.slots, None, self._patience_s, overload=overload,
            command=command,
        )  # fmt: skip
        made.start(self._trigger)
        self._run.pipelines.append(made)

    # -- commands ----------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Takes up commands until the run is over."""
        while not self._stopped.wait(LOOK_EVERY_S):
            try:
                self.take_up(self._ground.checkpoint)
            except Exception as error:  # a store that fails for a moment: commands wait
                self._run.command_error = told(error)

    def take_up(self, checkpoint: Filesystem) -> None:
        """Carries out the commands that wait, and answers them."""
        commands.tidy(checkpoint)
        for name, command in commands.given(checkpoint):
            if self._stopped.is_set():
                return
            commands.answer(checkpoint, name, self._answer(name, command))

    def _answer(self, name: str, command: Command) -> Answer:
        if any(pipeline.host.runner.has_carried_out(name) for pipeline in self._run.pipelines):
            return Answer(True, f"{command.query} {DONE[command.do]}")
        ways: dict[str, Callable[[], str]] = {
            "add": lambda: self.add(
                command.query, command.sql, parquet(command.output) if command.output else None, command.plan,
                command.history, command=name,
            ),
            "alter": lambda: self.alter(command.query, command.sql, name),
            "drop": lambda: self.drop(command.query, name),
        }  # fmt: skip
        if command.do not in ways:
            return Answer(False, f"{command.do} is no command: it is one of {', '.join(ways)}")
        try:
            return Answer(True, ways[command.do]())
        except AnabranchError as error:
            return Answer(False, str(error))
        except Exception as error:
            return Answer(False, f"{type(error).__name__}: {told(error)}")
