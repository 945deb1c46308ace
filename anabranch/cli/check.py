"""`anabranch check`: what a start would do with a SQL file and a checkpoint, without doing it."""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from anabranch.cli.arguments import add_overload, count, overload_of, read_file, with_queries
from anabranch.errors import BAD_INPUT, AnabranchError

if TYPE_CHECKING:
    from anabranch.cli.arguments import Commands
    from anabranch.drive.restart import Outcome, Outflow, Restart
    from anabranch.plan.overload import Overload
    from anabranch.sql import Script
    from anabranch.storage.location import Folder


def add(commands: Commands) -> None:
    check = commands.add_parser("check", help="say what a start of a SQL file would do, without doing it")
    check.add_argument("file")
    check.add_argument("--checkpoint", help="where queries that ran before keep their state (default: the file alone)")
    check.add_argument("--output", help="path or URI for results, one parquet folder per query")
    check.add_argument("--slots", type=count, help="tasks per batch (default: the checkpoint's)")
    check.add_argument("--fresh", action="append", default=[], metavar="QUERY", help="as `anabranch run` is to be given it")
    add_overload(check)
    check.set_defaults(command=command)


def command(given: argparse.Namespace) -> int:
    from anabranch.storage.location import located

    try:
        script, overload = _script(given), overload_of(given)
        _check_overloads(script, overload)
        if given.checkpoint is None:
            print("\n".join(_of_file(script)))
            return 0
        checkpoint, output = located(given.checkpoint), located(given.output) if given.output else None
        return _of_checkpoint(given, script, checkpoint, output, overload)
    except AnabranchError as error:
        print(f"refused: {error}")
        return BAD_INPUT


def _script(given: argparse.Namespace) -> Script:
    """What a file declares: its SQL binds, databases can run the blocks that are placed in them, and there are places where
    its files are, or may come."""
    from anabranch.cli.paths import check_sources
    from anabranch.place.databases.registry import describe
    from anabranch.planning import Planning
    from anabranch.sql import parse_script
    from anabranch.storage.location import located

    text = read_file(given.file)
    planning = Planning(checkpoint=located(given.checkpoint) if given.checkpoint is not None else None)
    script = with_queries(parse_script(text, planning.catalog, describe=describe), given.file)
    for note in check_sources(script, text):
        print(note, file=sys.stderr)
    return replace(script, queries=tuple(replace(each, query=planning.placed(each.query)) for each in script.queries))


def _of_file(script: Script) -> Iterator[str]:
    for bound in script.queries:
        streams = ", ".join(source.name for source in bound.query.base_sources)
        yield f"{bound.query.name} can be started: it reads {streams}"


def _check_overloads(script: Script, overload: Overload) -> None:
    """Refuses policies that queries cannot have."""
    from anabranch.plan.partial import check_overload

    found = {source.name: script.catalog.location(source.name) for source in script.catalog}
    changing = [name for name, at in found.items() if at is not None and at.refresh_us]
    for bound in script.queries:
        check_overload(bound.query, bound.overload or overload, changing)


def _of_checkpoint(
    given: argparse.Namespace, script: Script, checkpoint: Folder, output: Folder | None, overload: Overload
) -> int:
    """Tells of a checkpoint, of each query, and of what is wrong beside single queries."""
    from anabranch.control.lease import in_use_by
    from anabranch.drive.restart import restart_of
    from anabranch.errors import CheckpointBusyError, LocationError
    from anabranch.storage.record import FORMAT_VERSION

    declared = {bound.query.name: bound.query for bound in script.queries}
    outflows = {name: _outflow(output, name) for name in declared}
    try:
        restart = restart_of(checkpoint, script.catalog, declared, outflows, given.fresh, given.slots)
        claim = in_use_by(checkpoint)
    except OSError as error:
        raise LocationError(f"the checkpoint {checkpoint} cannot be used: {error}") from error
    state = f"{_state(restart)}, format version {FORMAT_VERSION}" if restart.known else "empty"
    lines = [f"checkpoint {checkpoint}: {state}"]
    lines += [f"  damaged: {path}; it is passed over, or told when it is needed" for path in _damaged(checkpoint, restart)]
    overloads = {bound.query.name: bound.overload or overload for bound in script.queries}
    lines += [
        _shown(outcome, outflows) + _policy(checkpoint, outcome, overloads) for outcome in restart.outcomes.values()
    ]
    problems = list(restart.problems)
    if claim is not None:
        problems.insert(0, CheckpointBusyError(
            f"the checkpoint is in use by process {claim.process} on {claim.host}: stop that run first, or wait if it has "
            "crashed"
        ))  # fmt: skip
    print("\n".join([*lines, *(f"refused: {error}" for error in problems)]))
    return BAD_INPUT if problems or any(restart.errors()) else 0


def _policy(checkpoint: Folder, outcome: Outcome, overloads: dict[str, Overload]) -> str:
    """How a query differs from what it did under overload in the run before."""
    from anabranch.control.overload_notes import changed_text, read_overload
    from anabranch.drive.restart import STAYING

    own, place = overloads.get(outcome.name), outcome.pipeline
    if own is None or place is None or outcome.fate not in STAYING:
        return ""
    told = changed_text(read_overload(checkpoint.below(place.name)), own)
    return f"\n  {told}" if told else ""


def _outflow(output: Folder | None, query: str) -> Outflow:
    from anabranch.drive.restart import Outflow
    from anabranch.spark.published import held_columns

    if output is None:
        return Outflow()
    folder = output.below(query)
    return Outflow(True, str(folder), lambda: held_columns(folder))


def _state(restart: Restart) -> str:
    queries = sum(len(each.layouts) for each in restart.known)
    pipelines = sum(each.is_committed for each in restart.known)
    return f"{queries} {'query' if queries == 1 else 'queries'} in {pipelines} pipeline{'' if pipelines == 1 else 's'}"


def _damaged(checkpoint: Folder, restart: Restart) -> Iterator[str]:
    from anabranch.control.ledger import commits_in, controls_in

    for each in restart.known:
        folder = checkpoint.below(each.name)
        for ledger in (commits_in(folder), controls_in(folder)):
            yield from (f"{each.name}/{path}" for path in ledger.torn())


def _shown(outcome: Outcome, outflows: dict[str, Outflow]) -> str:
    """What becomes of a query, for people."""
    from anabranch.drive.restart import Fate

    text = f"{outcome.name} {outcome.fate.value}{_come(outcome)}"
    out = outflows.get(outcome.name)
    if outcome.fate is Fate.REWRITTEN and outcome.query is not None:
        text += f"\n  columns {', '.join(outcome.query.output_schema.names)}"
        if outcome.before:
            text += f", instead of {', '.join(outcome.before)}"
            if out is not None and out.takes_files:
                text += f"\n  into {out.place}, which holds no results with other columns"
            else:
                text += "\n  a parquet sink must be another folder than before; other sinks get the new columns"
    text += "".join(f"\n  {told}" for told in outcome.freshness)
    if outcome.fate in (Fate.RUNS_ON, Fate.COMES):
        text += f"\n  to have it leave: anabranch drop {outcome.name}"
    if outcome.coming is not None:
        text += "\n  another query takes its place with the next batch, as was asked for"
    if outcome.fate is Fate.LEFT_OUT:
        text += f"\n  to have it start anew, into an empty sink: --fresh {outcome.name}"
    if outcome.error is not None:
        text += "".join(f"\n  {line}" for line in str(outcome.error).splitlines())
    return text


def _come(outcome: Outcome) -> str:
    """How far a query has come."""
    from anabranch.plan.query import BEGINNING_US

    pipeline = outcome.pipeline
    if pipeline is None or pipeline.commit is None or outcome.name not in pipeline.commit.queries:
        return ""
    watermark_us = pipeline.own(outcome.name).watermark_us
    if watermark_us == BEGINNING_US:
        return f", after batch {pipeline.commit.batch}"
    at = datetime.datetime(1970, 1, 1) + datetime.timedelta(microseconds=watermark_us)
    return f", after batch {pipeline.commit.batch}, watermark {at.isoformat(sep=' ')}"
