"""What a start does with a checkpoint, decided before anything is done.

Each query that is declared, or that the checkpoint runs, has one *fate*. A query that has run goes on with its state, also
if it selects something else of it (`anabranch.plan.adoption`). One that the checkpoint does not know is new, and reads its
streams from the beginning. One that is to start *fresh* leaves its state behind, and is new then, in a pipeline of its own.
All else is refused, with the difference and the ways on. `Session.start` does what is decided here, and `anabranch check`
tells it.

Example: the checkpoint runs q over trades and quotes. q is started with `SELECT price` where it had `SELECT price, size`: it
goes on, and stores sizes as before. With `RANGE 2 MINUTES` instead of one it is refused: rows that would count are not there
any more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

import pyarrow as pa

from anabranch.balance.together import restored
from anabranch.control.ledger import commits_in
from anabranch.control.pipelines import KnownPipeline, known_pipelines
from anabranch.control.query_texts import QueryTexts
from anabranch.drive.delivery import first_waiting
from anabranch.drive.queries import Readings, gone_on
from anabranch.errors import AnabranchError, SessionError, did_you_mean
from anabranch.plan.query import Query
from anabranch.plan.workload import Workload
from anabranch.storage.location import Folder


class Fate(Enum):
    """What becomes of a query."""

    GOES_ON = "goes on with its state"
    REWRITTEN = "goes on with its state, and selects something else of it"
    NEW = "is new: it starts from the beginning of its streams"
    FRESH = "starts anew, from the beginning of its streams, in a pipeline of its own"
    DROPPED = "is dropped: its state is given up"
    LEFT_OUT = "was dropped, and stays so"
    MISSING = "is in the checkpoint, and not declared any more"
    REFUSED = "is refused"


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


@dataclass(frozen=True)
class Restart:
    """What a start does."""

    known: tuple[KnownPipeline, ...]
    outcomes: Mapping[str, Outcome]
    problems: tuple[AnabranchError, ...] = ()
    """What is wrong beside single queries."""

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
        going = {name: self.outcomes[name] for name in self.named(Fate.GOES_ON, Fate.REWRITTEN)}
        return {n: o.query for n, o in going.items() if o.pipeline is pipeline and o.query is not None}


def restart_of(
    checkpoint: Folder,
    declared: Mapping[str, Query],
    outflows: Mapping[str, Outflow],
    drop: Collection[str] = (),
    fresh: Collection[str] = (),
    slots: int | None = None,
) -> Restart:
    """What a start does with a checkpoint. `slots` is how many were asked for."""
    known = known_pipelines(checkpoint)
    committed = [each for each in known if each.is_committed]
    places = {name: each for each in committed for name in each.layouts}
    there = {*places, *(name for each in known for name in (*each.ended, *each.begun))}
    decide, found = _Decision(checkpoint, outflows, slots), dict[str, Outcome]()
    for name in [*declared, *(name for name in places if name not in declared)]:
        if name in drop:
            found[name] = Outcome(name, Fate.DROPPED, declared.get(name), places.get(name))
        elif name not in declared:
            found[name] = Outcome(name, Fate.MISSING, None, places[name])
        elif name in fresh:
            found[name] = decide.fresh(declared[name], [each for each in committed if name in (*each.layouts, *each.ended)])
        elif name in places:
            found[name] = decide.known(declared[name], places[name])
        elif left := [each for each in committed if name in each.left_out]:
            found[name] = Outcome(name, Fate.LEFT_OUT, declared[name], left[-1])
        else:
            found[name] = Outcome(name, Fate.NEW, declared[name])
    problems = [*_unknown(drop, fresh, there, places, declared)]
    if missing := [name for name, outcome in found.items() if outcome.fate is Fate.MISSING]:
        named = " ".join(f"--drop {name}" for name in missing)
        problems.append(SessionError(
            f"the checkpoint {checkpoint} runs {', '.join(missing)} too: declare what it runs, or drop it by name: "
            f"start(drop={missing!r}), {named}"
        ))  # fmt: skip
    return Restart(tuple(known), found, (*problems, *decide.left_waiting(committed, found)))


class _Decision:
    """Decides about one query after the other."""

    def __init__(self, checkpoint: Folder, outflows: Mapping[str, Outflow], slots: int | None) -> None:
        self.checkpoint, self.outflows, self.slots = checkpoint, outflows, slots
        self.texts = QueryTexts(checkpoint)

    def known(self, query: Query, pipeline: KnownPipeline) -> Outcome:
        """What becomes of a query that has run."""
        name, own = query.name, pipeline.own(query.name)
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
        return Outcome(name, fate, made, pipeline, before=columns)

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

    def left_waiting(self, pipelines: list[KnownPipeline], found: Mapping[str, Outcome]) -> Iterator[SessionError]:
        """Queries cannot be left behind whose results wait, unless their sinks are known and the pipeline goes on."""
        for each in pipelines:
            going = [n for n in each.layouts if found[n].fate not in (Fate.DROPPED, Fate.FRESH)]
            for name in {**each.ended, **each.layouts}:
                outcome = found.get(name)
                if name in going or (outcome is not None and outcome.fate in (Fate.FRESH, Fate.REFUSED)):
                    continue
                if going and outcome is not None and outcome.query is not None:
                    continue
                if (waiting := self.waiting(each, name)) is None:
                    continue
                if going:
                    yield SessionError(
                        f"results of {name} from batch {waiting[0]} on wait for its sink: declare it with its sink once "
                        f"more, and have it dropped then: start(drop=[{name!r}])"
                    )
                else:
                    yield SessionError(
                        f"{name} cannot be dropped: its results of batch {waiting[0]} wait for its sink; let it run until "
                        "they have arrived"
                    )


def _unknown(
    drop: Collection[str],
    fresh: Collection[str],
    there: Collection[str],
    places: Mapping[str, KnownPipeline],
    declared: Mapping[str, Query],
) -> Iterator[SessionError]:
    """Names that cannot be dropped, or started anew."""
    runs = ", ".join(places) or "none"
    for name in drop:
        if name not in there:
            hint = did_you_mean(name, places)
            told = f"{name} cannot be dropped: the checkpoint runs no such query; it runs {runs}"
            yield SessionError(f"{told}; {hint}" if hint else told)
    for name in fresh:
        if name in drop:
            yield SessionError(f"{name} cannot both be dropped and start anew: name it once")
        elif name not in there and name in declared:
            yield SessionError(
                f"{name} cannot start anew: the checkpoint does not run it, so it is new there; leave out --fresh {name}"
            )
        elif name not in there:
            hint = did_you_mean(name, {*places, *declared})
            told = f"{name} cannot start anew: the checkpoint runs no such query; it runs {runs}"
            yield SessionError(f"{told}; {hint}" if hint else told)
        elif name not in declared:
            yield SessionError(f"{name} cannot start anew: it is not declared; drop it by name: start(drop=[{name!r}])")


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
