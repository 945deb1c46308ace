"""What a start does with a checkpoint, decided before anything is done.

Each query that is declared, or that the checkpoint runs, has one *fate*. A query that has run goes on with its state, also
if it selects something else of it (`anabranch.plan.adoption`). One that the checkpoint does not know is new, and reads its
streams from the beginning. One that is to start *fresh* leaves its state behind, and is new then, in a pipeline of its own.
All else is refused, with the difference and the ways on. `Session.start` does what is decided here, and `anabranch check`
tells it.

Which queries run is what the checkpoint says. One that was added while others ran, or that the script has no longer, runs
on, and one that was dropped stays so although the script has it; each such difference is told.

Example: the checkpoint runs q over trades and quotes. q is started with `SELECT price` where it had `SELECT price, size`: it
goes on, and stores sizes as before. With `RANGE 2 MINUTES` instead of one it is refused: rows that would count are not there
any more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

import pyarrow as pa

from anabranch.balance.together import restored
from anabranch.control.commands import given
from anabranch.control.ledger import DELIVERED, commits_in, controls_in, deliveries_in
from anabranch.control.pipelines import ComingNote, KnownPipeline, known_pipelines
from anabranch.control.query_texts import QueryTexts, text_of
from anabranch.control.resume import REMEDY, standing_of
from anabranch.control.sink_notes import read_sink
from anabranch.drive.delivery import first_waiting
from anabranch.drive.queries import Readings, bound, gone_on
from anabranch.errors import AnabranchError, SessionError, StateError, did_you_mean
from anabranch.place.statement_of import placed
from anabranch.plan.lengths import length_text
from anabranch.plan.query import Query
from anabranch.plan.workload import Workload
from anabranch.sql import Catalog, bind_query
from anabranch.storage.location import Folder


class Fate(Enum):
    """What becomes of a query."""

    GOES_ON = "goes on with its state"
    REWRITTEN = "goes on with its state, and selects something else of it"
    NEW = "is new: it starts from the beginning of its streams"
    FRESH = "starts anew, from the beginning of its streams, in a pipeline of its own"
    RUNS_ON = "is not declared, and runs on"
    ALTERED = "was altered while it ran, and goes on so"
    COMES = "was about to come in, and does so with the next batch"
    DROPPED = "is dropped, as was asked for: its state is given up"
    LEFT_OUT = "was dropped, and stays so"
    REFUSED = "is refused"


STAYING = (Fate.GOES_ON, Fate.REWRITTEN, Fate.RUNS_ON, Fate.ALTERED)
"""What becomes of queries that go on where they are."""


@dataclass(frozen=True)
class Outflow:
    """Where the results of a query are to go."""

    takes_files: bool = False
    """Whether it takes files that tasks have written, as a folder of parquet files does: all have the same columns."""
    place: str = ""
    held: Callable[[], pa.Schema | None] = lambda: None
    """The columns of the results that it holds; None if it holds none, or cannot tell."""


@dataclass(frozen=True)
class Outcome:
    """What becomes of a query, and why."""

    name: str
    fate: Fate
    query: Query | None = None
    """As it goes on, or begins."""
    pipeline: KnownPipeline | None = None
    """Where it has run."""
    error: AnabranchError | None = None
    """Why it is refused."""
    before: tuple[str, ...] = ()
    """The columns that its results had, if they have others now."""
    note: ComingNote | None = None
    """What was asked for, of a query that was about to come in."""
    coming: Query | None = None
    """The query that is to take its place."""
    freshness: tuple[str, ...] = ()
    """How its freshness differs from what it was."""
    command: str = ""
    """The command by which it is dropped."""


@dataclass(frozen=True)
class Restart:
    """What a start does."""

    known: tuple[KnownPipeline, ...]
    outcomes: Mapping[str, Outcome]
    problems: tuple[AnabranchError, ...] = ()
    """What is wrong beside single queries."""
    leavers: Mapping[str, Mapping[str, Query]] = field(default_factory=dict)
    """By pipeline the queries that have left it, or do now, and of which results wait for their sinks: as they ran."""

    def require(self) -> None:
        """Raises the first thing that is wrong."""
        for error in self.errors():
            raise error

    def errors(self) -> Iterator[AnabranchError]:
        yield from self.problems
        yield from (outcome.error for outcome in self.outcomes.values() if outcome.error is not None)

    def named(self, *fates: Fate) -> list[str]:
        """The queries of some fates."""
        return [name for name, outcome in self.outcomes.items() if outcome.fate in fates]

    def staying(self, pipeline: KnownPipeline) -> dict[str, Query]:
        """The queries that go on in a pipeline."""
        going = {name: self.outcomes[name] for name in self.named(*STAYING)}
        return {n: o.query for n, o in going.items() if o.pipeline is pipeline and o.query is not None}

    def arriving(self, pipeline: KnownPipeline) -> dict[str, tuple[Query, ComingNote]]:
        """The queries that are to come into a pipeline, or to take the place of one of it."""
        found = {}
        for name, each in self.outcomes.items():
            if each.pipeline is pipeline and each.note is not None and (query := each.coming or each.query) is not None:
                found[name] = query, each.note
        return found


def restart_of(
    checkpoint: Folder,
    catalog: Catalog,
    declared: Mapping[str, Query],
    outflows: Mapping[str, Outflow],
    fresh: Collection[str] = (),
    slots: int | None = None,
) -> Restart:
    """What a start does with a checkpoint. `slots` is how many were asked for. Queries that nobody declares are those of the
    checkpoint's texts, over the sources of the catalog. Who is to be dropped was asked for while no run had the
    checkpoint."""
    known = known_pipelines(checkpoint)
    committed = [each for each in known if each.is_committed]
    places = {name: each for each in committed for name in each.layouts}
    comes = {name: each for each in committed for name in each.coming}
    asked = {command.query: name for name, command in given(checkpoint) if command.do == "drop"}
    dropped = {name: command for name, command in asked.items() if name in places}
    there = {*places, *(name for each in known for name in (*each.ended, *each.left, *each.begun))}
    decide, found = _Decision(checkpoint, catalog, outflows, slots), dict[str, Outcome]()
    for name in dict.fromkeys((*declared, *places, *comes)):
        if name in dropped:
            found[name] = Outcome(name, Fate.DROPPED, declared.get(name), places[name], command=dropped[name])
        elif name in fresh and name in declared:
            found[name] = decide.fresh(declared[name], [each for each in committed if name in (*each.layouts, *each.ended)])
        elif name in comes:
            found[name] = decide.coming(name, comes[name], places.get(name))
        elif name not in declared:
            found[name] = decide.undeclared(name, places[name])
        elif name in places:
            found[name] = decide.known(declared[name], places[name])
        elif left := [each for each in committed if name in each.left_out]:
            found[name] = Outcome(name, Fate.LEFT_OUT, declared[name], left[-1])
        else:
            found[name] = Outcome(name, Fate.NEW, declared[name])
    problems: list[AnabranchError] = [*_lost(checkpoint, known), *_unknown(fresh, there, places, declared)]
    leavers = dict[str, dict[str, Query]]()
    for each in committed:
        try:
            leavers[each.name] = decide.leavers(each, found)
        except AnabranchError as error:
            problems.append(error)
    return Restart(tuple(known), found, tuple(problems), leavers)


def _lost(checkpoint: Folder, known: Collection[KnownPipeline]) -> Iterator[StateError]:
    """Pipelines whose commits are gone: their queries would start from the beginning, and all results come a second time."""
    for each in known:
        if each.is_committed:
            continue
        folder = checkpoint.below(each.name)
        try:
            standing_of(commits_in(folder), controls_in(folder))
        except StateError as error:
            yield StateError(f"{each.name}: {error}")
            continue
        if arrived := [query for query in folder.folders(DELIVERED) if deliveries_in(folder, query).numbers()]:
            yield StateError(
                f"{each.name}: results of {', '.join(arrived)} have arrived ({DELIVERED}/{arrived[0]}), but there is no "
                f"whole commit: {REMEDY}"
            )


class _Decision:
    """Decides about one query after the other."""

    def __init__(
        self, checkpoint: Folder, catalog: Catalog, outflows: Mapping[str, Outflow], slots: int | None
    ) -> None:
        self.checkpoint, self.catalog, self.outflows, self.slots = checkpoint, catalog, outflows, slots
        self.texts = QueryTexts(checkpoint)

    def undeclared(self, name: str, pipeline: KnownPipeline) -> Outcome:
        """What becomes of a query that has run, and is not declared."""
        try:
            query = self._written(name, pipeline.own(name).text)
        except AnabranchError as error:
            return Outcome(name, Fate.REFUSED, None, pipeline, error)
        found = self.known(query, pipeline)
        return replace(found, fate=Fate.RUNS_ON) if found.fate is Fate.GOES_ON else found

    def coming(self, name: str, pipeline: KnownPipeline, place: KnownPipeline | None) -> Outcome:
        """What becomes of a query that was about to come in, or to take the place of the one of its name."""
        note = pipeline.coming[name]
        try:
            query = self._written(name, note.text)
        except AnabranchError as error:
            return Outcome(name, Fate.REFUSED, None, pipeline, error)
        if place is None:
            return Outcome(name, Fate.COMES, query, pipeline, note=note)
        return replace(self.undeclared(name, place), note=note, coming=query)

    def _written(self, name: str, digest: str) -> Query:
        """The query of a text, over the sources that there are now."""
        text = self.texts.read(digest)
        if lacking := [s.name for s in text.sources if self.catalog.source(s.name) is None]:
            raise SessionError(f"the checkpoint runs {name} over {', '.join(lacking)}: declare what it reads")
        return placed(bind_query(name, text.sql, self.catalog), text.places, text.database_failure)

    def known(self, query: Query, pipeline: KnownPipeline) -> Outcome:
        """What becomes of a query that has run."""
        name, own = query.name, pipeline.own(query.name)
        if own.declared and own.declared == text_of(query).sql_digest and own.text != text_of(query).digest:
            return replace(self.undeclared(name, pipeline), fate=Fate.ALTERED)
        try:
            made = gone_on(query, own, self.texts)
            if self.slots is not None:
                restored(Workload((made,)), {name: own.layout}, self.slots)
            before = Readings(made, self.texts)(own.text) if self.texts.read(own.text).sql else made
            self._require_taken(made, before, pipeline)
        except AnabranchError as error:
            return Outcome(name, Fate.REFUSED, query, pipeline, error)
        fate = Fate.GOES_ON if _results(before) == _results(made) else Fate.REWRITTEN
        columns = () if _alike(before.output_schema, made.output_schema) else tuple(before.output_schema.names)
        return Outcome(name, fate, made, pipeline, before=columns, freshness=_freshness(before, made))

    def _require_taken(self, query: Query, before: Query, pipeline: KnownPipeline) -> None:
        """Refuses a sink whose results have other columns, and results that wait with other columns than a folder gets."""
        out = self.outflows.get(query.name, Outflow())
        held = out.held() if out.takes_files else None
        if held is not None and not _alike(held, query.output_schema):
            raise SessionError(
                f"results of {query.name} have the columns {_names(query.output_schema)}, and {out.place} holds results "
                f"with {_names(held)}: write to another folder, or move that one away"
            )
        waiting = self.waiting(pipeline, query.name)
        if waiting is None or _alike(before.output_schema, query.output_schema):
            return
        batch, has_own_files = waiting
        if out.takes_files or has_own_files:
            raise SessionError(
                f"results of {query.name} from batch {batch} on wait, with the columns {_names(before.output_schema)}: "
                "start the query as it was once more, until they have arrived, then with other columns"
            )

    def fresh(self, query: Query, pipelines: list[KnownPipeline]) -> Outcome:
        """What becomes of a query that is to start anew."""
        name, out = query.name, self.outflows.get(query.name, Outflow())
        last = pipelines[-1] if pipelines else None
        for each in pipelines:
            if (waiting := self.waiting(each, name)) is not None:
                problem = f"{name} cannot start anew: its results of batch {waiting[0]} wait for its sink; "
                error = SessionError(f"{problem}let it run as it was until they have arrived")
                return Outcome(name, Fate.REFUSED, query, each, error)
        if out.held() is not None:
            problem = f"{name} cannot start anew: {out.place} holds results of it; "
            return Outcome(name, Fate.REFUSED, query, last, SessionError(f"{problem}name an empty sink, or move them away"))
        return Outcome(name, Fate.FRESH, query, last)

    def waiting(self, pipeline: KnownPipeline, name: str) -> tuple[int, bool] | None:
        """The first batch whose results of a query wait for its sink, and whether they are in files of its own."""
        folder = self.checkpoint.below(pipeline.name)
        commits = commits_in(folder)
        batch = first_waiting(folder, commits, name)
        return None if batch is None else (batch, commits.read(batch).queries[name].has_own_files)

    def leavers(self, pipeline: KnownPipeline, found: Mapping[str, Outcome]) -> dict[str, Query]:
        """The queries that a pipeline goes on without, and of which results wait. Their sinks must be known, and some query
        must go on, so that there is somebody to deliver."""
        going = [n for n in pipeline.layouts if found[n].fate not in (Fate.DROPPED, Fate.FRESH)]
        leavers = dict[str, Query]()
        for name in {**pipeline.ended, **pipeline.layouts}:
            outcome = found.get(name)
            if name in going or (outcome is not None and outcome.fate in (Fate.FRESH, Fate.REFUSED)):
                continue
            if (waiting := self.waiting(pipeline, name)) is None:
                continue
            batch = waiting[0]
            if not going:
                raise SessionError(
                    f"{name} cannot be dropped: its results of batch {batch} wait for its sink; let it run until they have "
                    "arrived"
                )
            note = read_sink(self.checkpoint, name)
            if name not in self.outflows and (note is None or not note.is_enough):
                where = f" ({note.place})" if note is not None and note.place else ""
                raise SessionError(
                    f"{name} has left, and results of it from batch {batch} on wait for its sink{where}, which cannot be "
                    "made again from what is noted: declare it with its sink once more"
                )
            own = commits_in(self.checkpoint.below(pipeline.name)).read(batch).queries[name]
            leavers[name] = bound(self.texts.read(own.text), self.texts)
        return leavers


def _unknown(
    fresh: Collection[str],
    there: Collection[str],
    places: Mapping[str, KnownPipeline],
    declared: Mapping[str, Query],
) -> Iterator[SessionError]:
    """Names that cannot be started anew."""
    runs = ", ".join(places) or "none"
    for name in fresh:
        if name not in there and name in declared:
            yield SessionError(
                f"{name} cannot start anew: the checkpoint does not run it, so it is new there; leave out --fresh {name}"
            )
        elif name not in there:
            hint = did_you_mean(name, {*places, *declared})
            told = f"{name} cannot start anew: the checkpoint runs no such query; it runs {runs}"
            yield SessionError(f"{told}; {hint}" if hint else told)
        elif name not in declared:
            yield SessionError(f"{name} cannot start anew: it is not declared; to have it leave: anabranch drop {name}")


def _freshness(before: Query, now: Query) -> tuple[str, ...]:
    """How the freshness of inputs has changed. State does not depend on it but for rows that nobody wanted any more."""
    told, found = {i.alias: i.freshness_us for i in before.inputs}, []
    for i in now.inputs:
        old_us = told.get(i.alias)
        if i.freshness_us != old_us:
            text = f"freshness of {i.alias}: {_length(i.freshness_us)} instead of {_length(old_us)}"
            is_longer = old_us is not None and (i.freshness_us is None or i.freshness_us > old_us)
            found.append(f"{text}; rows that were too old so far are not there" if is_longer else text)
    return tuple(found)


def _length(us: int | None) -> str:
    return "any" if us is None else length_text(us)


def _results(query: Query) -> object:
    """What is made of state."""
    return query.select, query.grouping


def _alike(one: pa.Schema, other: pa.Schema) -> bool:
    """Whether two schemas have the same columns; files name a zone of timestamps that queries do not."""
    return [(f.name, _plain(f.type)) for f in one] == [(f.name, _plain(f.type)) for f in other]


def _plain(type: pa.DataType) -> pa.DataType:
    return pa.timestamp(type.unit) if pa.types.is_timestamp(type) else type


def _names(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
