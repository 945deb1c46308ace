"""What a start does: which pipelines there are to be, by what is declared and by what the checkpoint knows."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from anabranch.adapt.overload import OverloadLoop
from anabranch.balance.together import pipelines_of
from anabranch.control.ledger import COMMIT, CONTROL, DELIVERED, commits_in
from anabranch.control.overload_notes import read_overload
from anabranch.control.pipelines import KnownPipeline, new_name
from anabranch.control.query_texts import text_of
from anabranch.control.sink_notes import read_sink
from anabranch.drive.delivery import PATIENCE_S, set_aside_waiting
from anabranch.drive.limiting import Limiting
from anabranch.drive.restart import Fate, Outcome, Restart
from anabranch.errors import SessionError, known_names
from anabranch.plan.overload import Clock, Overload, Policy
from anabranch.plan.query import Query
from anabranch.session_queries import SessionQueries
from anabranch.spark.members import Ground
from anabranch.spark.pipeline import Pipeline
from anabranch.spark.sinks import from_note
from anabranch.spark.sources import Sources
from anabranch.sql import parse_duration
from anabranch.storage.filesystem import Filesystem
from anabranch.storage.location import Folder, remove_all
from anabranch.storage.record import damaged

TRIGGERS = ("processingTime", "availableNow", "once")
"""The triggers of Spark's that run batches."""


def checked_trigger(trigger: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of a trigger, as Spark takes them."""
    for name in trigger:
        if name not in TRIGGERS:
            raise SessionError(f"start() has no keyword {name}; {known_names(name, ('fresh', *TRIGGERS))}")
    given = {name: value for name, value in trigger.items() if value not in (None, False)}
    if len(given) > 1:
        raise SessionError(f"a session has one trigger: give one of {', '.join(given)}")
    if not given:
        return {"processingTime": "0 seconds"}
    if "processingTime" not in given:
        return given
    return {"processingTime": f"{parse_duration(given['processingTime'], 'processingTime') // 1000} milliseconds"}


def patience_s(trigger: Mapping[str, Any], given_us: int | None = None) -> float:
    """How long a batch waits for its results to arrive: as the session says, else as long as its trigger's interval."""
    if given_us is not None:
        return given_us / 1e6
    interval = trigger.get("processingTime")
    return (parse_duration(str(interval)) / 1e6 if interval else 0.0) or PATIENCE_S


def checkpoint_id(filesystem: Filesystem) -> str:
    """The name of a checkpoint, made when it is first used."""
    try:
        found = filesystem.get("id").to_pybytes().decode("ascii", "replace").strip()
    except FileNotFoundError:
        name = uuid.uuid4().hex
        filesystem.put("id", [f"{name}\n".encode()])
        return name
    if len(found) != 32 or not set(found) <= set("0123456789abcdef"):
        raise damaged("id", f"{found[:40]!r} is no name of a checkpoint")
    return str(found)


def take_over(queries: SessionQueries, restart: Restart) -> None:
    """Declares the queries that the checkpoint runs, and nobody has declared; and tells how the checkpoint differs from what
    is declared."""
    planning, checkpoint = queries.planning, queries.checkpoint
    for name in restart.named(Fate.LEFT_OUT):
        told = f"query {name} was dropped, and stays so; to have it start anew, into an empty sink"
        print(f"anabranch: {told}: start(fresh=[{name!r}]), --fresh {name}", file=sys.stderr)
    for name, outcome in restart.outcomes.items():
        if outcome.fate is Fate.ALTERED and outcome.query is not None:
            overload, sink = planning.overloads.get(name), queries.sinks[name]
            queries.forget(name)
            queries.declare(outcome.query, sink, None, overload)
            told = f"query {name} {outcome.fate.value}: {outcome.query.sql}; to have it as the script has it"
            print(f"anabranch: {told}: anabranch alter {name} …", file=sys.stderr)
        if name in planning.queries or outcome.query is None:
            continue
        note = read_sink(checkpoint, name)
        made = from_note(note, name) if note is not None else None
        if made is None:
            where = f" ({note.place})" if note is not None and note.place else ""
            raise SessionError(
                f"the checkpoint runs {name}, whose sink{where} cannot be made again from what is noted: declare the "
                "query with its sink"
            )
        plan = outcome.note.plan if outcome.note is not None else None
        queries.declare(outcome.query, made, plan, _overload_there(queries, restart, outcome))
        text = f"query {name} {outcome.fate.value}; to have it leave: anabranch drop {name}"
        print(f"anabranch: {text} --checkpoint {checkpoint}", file=sys.stderr)


def _overload_there(queries: SessionQueries, restart: Restart, outcome: Outcome) -> Overload | None:
    """What a query that nobody declares does under overload: what those do that it runs with, else what it did."""
    if (place := outcome.pipeline) is None:
        return None
    others = [name for name in restart.staying(place) if name in queries.planning.queries]
    if others:
        return queries.planning.overload_of(others[0])
    return read_overload(queries.checkpoint.below(place.name))


def pipelines_to_start(
    queries: SessionQueries, ground: Ground, restart: Restart, patience_s: float | None
) -> list[Pipeline]:
    """The pipelines to start. A query that goes on stays where it is; others get pipelines of their own."""
    planning, checkpoint, found, over = queries.planning, queries.checkpoint, list[Pipeline](), list[KnownPipeline]()
    for each in restart.known:
        if not each.is_committed:
            continue
        going = restart.staying(each)
        if not going:
            _require_published(checkpoint, each)
            over.append(each)
            continue
        dropped = {name: queries.leaver(query) for name, query in restart.leavers[each.name].items()}
        drops = {name: outcome.command for name, outcome in restart.outcomes.items() if outcome.command}
        slots = planning.slots or max(len(layout.slots) for layout in each.layouts.values())
        arriving = {n: queries.arriving(query, note) for n, (query, note) in restart.arriving(each).items()}
        overload = _one_policy(queries, [*going, *arriving])
        members = queries.members(going)
        found.append(
            Pipeline(
                ground, each.name, members, slots, each, patience_s, dropped, arriving, overload, drops=drops
            )
        )  # fmt: skip
    new = [planning.queries[name].forms.written for name in restart.named(Fate.NEW, Fate.FRESH)]
    overloads = {query.name: planning.overload_of(query.name) for query in new}
    for workload in pipelines_of(new, {*planning.apart, *restart.named(Fate.FRESH)}, overloads):
        # One that was begun and never came to a commit is begun again where it was.
        digests = {query.name: text_of(query).state_digest for query in workload.queries}
        begun = next((each for each in restart.known if not each.is_committed and each.begun == digests), None)
        name = begun.name if begun is not None else new_name(checkpoint, restart.known)
        members = queries.members({query.name: query for query in workload.queries})
        overload = overloads[workload.queries[0].name]
        found.append(Pipeline(ground, name, members, queries.slots, None, patience_s, overload=overload))
    if not found:
        raise SessionError("there is no query to start: all that are declared were dropped")
    _require_one_reader(ground.sources, found)
    _clear(checkpoint, [each for each in restart.known if each.name not in {pipeline.name for pipeline in found}])
    for each in over:
        _remove(checkpoint.below(each.name))
    return found


def _one_policy(queries: SessionQueries, names: Sequence[str]) -> Overload:
    """What queries that run in one pipeline do under overload."""
    first, found = names[0], queries.planning.overload_of(names[0])
    for name in names[1:]:
        if (other := queries.planning.overload_of(name)) != found:
            raise SessionError(
                f"{first} and {name} run in one pipeline, which has one overload policy: {first} is to {found.text}, "
                f"{name} to {other.text}; give both the same, or have one of them start anew, in a pipeline of its own "
                f"and into an empty sink: --fresh {name}, start(fresh=[{name!r}])"
            )
    return found


def _require_one_reader(sources: Sources, pipelines: Sequence[Pipeline]) -> None:
    """Refuses to keep rows of a stream that several pipelines read: each would keep them."""
    for stream, files in sources.files(sources.given).items():
        readers = [each for each in pipelines if stream in each.workload.streams]
        if files.options.on_error.path and len(readers) > 1:
            shown = " and ".join(", ".join(each.members) for each in readers)
            raise SessionError(
                f"bad rows of {stream} cannot be kept in {files.options.on_error.path}: {shown} read the stream by "
                "themselves, and each would keep them; declare it once more under another name, with a folder of its "
                "own or ON ERROR SKIP, for all but one of them"
            )


def _clear(checkpoint: Folder, known: Sequence[KnownPipeline]) -> None:
    """Deletes pipelines that nobody takes up and that never came to a commit, not even to a torn one."""
    for each in known:
        folder = checkpoint.below(each.name)
        if not each.is_committed and not commits_in(folder).numbers():
            _remove(folder)


def _remove(folder: Folder) -> None:
    """Deletes a pipeline: the commits before the state that they name, and what tells that there were commits before these.
    So whoever dies half-way leaves a pipeline that is whole, or none."""
    for part in (DELIVERED, CONTROL, COMMIT):
        remove_all(folder.below(part))
    remove_all(folder)


def _require_published(checkpoint: Folder, pipeline: KnownPipeline) -> None:
    """Refuses to delete a pipeline while rows that were set aside wait to be published."""
    folder = checkpoint.below(pipeline.name)
    for name, batch in set_aside_waiting(folder, commits_in(folder)).items():
        raise SessionError(
            f"{', '.join(pipeline.layouts)} cannot be dropped: rows of {name.partition('@')[0]} that were set aside in "
            f"batch {batch} wait to be published; let it run until they are"
        )


def limiting_of(
    trigger: Mapping[str, Any], cores: Callable[[], int], clock: Callable[[], float],
    overload: Overload, queries: Mapping[str, Query], slots: int,
) -> Limiting:  # fmt: skip
    """What queries of a pipeline may lose, and who decides about it. Unless a clock was asked for, freshness is told by the
    wall clock where batches come by it. Spark is asked for its `cores` only where somebody decides by them."""
    interval = trigger.get("processingTime")
    if overload.clock is None:
        overload = replace(overload, clock=Clock.EVENT if interval is None else Clock.WALL)
    if overload.policy is Policy.FALL_BEHIND:
        return Limiting(overload)
    interval_s = (parse_duration(interval) / 1e6 if interval is not None else 0) or None
    return Limiting(overload, OverloadLoop(overload, queries, interval_s, slots, min(slots, cores()), clock))
