"""`anabranch run`: the queries of a SQL file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from anabranch.cli.arguments import add_budget, add_overload, count, length, overload_of, read_file, size, with_queries
from anabranch.cli.waits import saying
from anabranch.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from anabranch.cli.arguments import Commands


def add(commands: Commands) -> None:
    run = commands.add_parser("run", help="run the queries of a SQL file")
    run.add_argument("file", help="CREATE STREAM …; CREATE QUERY … AS SELECT …")
    run.add_argument(
        "--checkpoint", default="checkpoint", help="where state is kept: a path or a URI like s3://… (default: %(default)s)"
    )
    run.add_argument(
        "--output", help="path or URI for results, one parquet folder per query (default: print them)"
    )
    run.add_argument(
        "--spark-checkpoint", help="where Spark's own log goes (default: with the rest if Spark can write there)"
    )
    run.add_argument("--master", default="local[*]", help="Spark master (default: %(default)s)")
    run.add_argument("--slots", type=count, help="tasks per batch (default: Spark's parallelism)")
    run.add_argument("--files-per-batch", type=count, help="files of each stream in one batch (default: all there are)")
    run.add_argument(
        "--skip", action="append", default=[], metavar="STREAM=FILE",
        help="leave out a file of a stream, by its path or the last parts of it, also one that has changed or gone",
    )  # fmt: skip
    run.add_argument(
        "--fresh", action="append", default=[], metavar="QUERY",
        help="a query that starts anew, from the beginning of its streams and into an empty sink: its state is given up",
    )  # fmt: skip
    run.add_argument("--no-share", action="store_true", help="run each query by itself, also those over the same streams")
    add_budget(run)
    add_overload(run)
    run.add_argument(
        "--database-failure", choices=("fail", "engine"), default="fail",
        help="what becomes of a block whose embedded database fails: its query fails, or the engine makes its groups",
    )  # fmt: skip
    run.add_argument(
        "--lookup-failure", choices=("fail", "wait"), default="fail",
        help="what becomes of lookups whose database is gone: their query fails, or its batch waits until it is back",
    )  # fmt: skip
    run.add_argument(
        "--adapt", default="data", choices=("data", "aggressive", "memory", "refined-memory", "never"),
        help="when another plan is thought about while a query runs (default: %(default)s)",
    )  # fmt: skip
    run.add_argument(
        "--pause", type=length, default="500 milliseconds", help="how long a batch may wait for that (default: %(default)s)"
    )
    run.add_argument(
        "--strategy", choices=("moving-state", "parallel-track", "gradual"), help="always this one (default: the cheapest)"
    )
    run.add_argument(
        "--most-staged", type=size, metavar="SIZE", default="1 GiB",
        help="so much of the results of a pipeline may wait for sinks (default: %(default)s)",
    )  # fmt: skip
    run.add_argument(
        "--sink-patience", type=length, metavar="LENGTH",
        help="how long a batch waits for its sinks (default: what --every says, or 1 second)",
    )  # fmt: skip
    run.add_argument(
        "--every", type=length, metavar="LENGTH", help="a batch so often (default: the next when one is over)"
    )
    run.add_argument("--once", action="store_true", help="process what is there, then end")
    run.add_argument("--json", action="store_true", help="for programs: each batch of each query as a line of JSON")
    run.set_defaults(command=command)


def command(given: argparse.Namespace) -> int:
    from anabranch.cli.paths import check_sources
    from anabranch.cli.watch import As, command_again, warm_up_visibly, watch
    from anabranch.place.databases.registry import describe
    from anabranch.session import Session
    from anabranch.settings import Adapt, Budget
    from anabranch.spark import sinks
    from anabranch.spark.create import create_session
    from anabranch.sql import parse_script
    from anabranch.storage.location import check_folder, located

    text, skip, overload = read_file(given.file), _skipped(given.skip), overload_of(given)
    if given.once and given.every:
        raise UsageError("--every and --once: give one of them; with --once batches follow one another")
    # What is wrong is refused before Spark is started.
    script = with_queries(parse_script(text, describe=describe), given.file)
    checkpoint, output = located(given.checkpoint), located(given.output) if given.output else None
    check_folder(checkpoint, "--checkpoint")
    if output is not None:
        check_folder(output, "--output")

    def start_spark() -> SparkSession:
        # What goes wrong reaches us as an error, and is told in a few lines: Spark need not log it, too.
        with saying("starting Spark"):
            level = "INFO" if given.debug else "OFF"
            return create_session(given.master, {"spark.log.level": level}, quiet=not given.debug)

    adapt = Adapt(given.adapt, pause=given.pause, strategy=given.strategy)
    session = Session(start_spark, checkpoint, Budget(given.cpu, given.memory, given.strict), given.slots, adapt=adapt,
                      spark_checkpoint=given.spark_checkpoint, share=not given.no_share, overload=overload,
                      most_staged=given.most_staged, sink_patience=given.sink_patience,
                      database_failure=given.database_failure, lookup_failure=given.lookup_failure)  # fmt: skip

    def sink(query: str) -> sinks.Sink:
        return sinks.parquet(output.below(query)) if output is not None else sinks.console(query=query)

    session.script(text, sink, given.files_per_batch, skip)
    for note in check_sources(script, text):
        print(note, file=sys.stderr)
    warm_up_visibly()
    assert session.spark is not None  # it is started here, where it can be interrupted at once
    trigger = {"availableNow": True} if given.once else {"processingTime": given.every or "0 seconds"}
    show = As.JSON if given.json else As.BLOCKS if sys.stderr.isatty() else As.LINES
    watch(lambda: session.start(given.fresh, **trigger), show, command_again(given.arguments))
    return 0


def _skipped(given: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for text in given:
        stream, equals, file = text.partition("=")
        if not (stream and equals and file):
            raise UsageError(f"--skip {text}: write it as the name of a stream, = and the path of a file")
        found.setdefault(stream, []).append(file)
    return found
