"""The command line: `anabranch run`, `anabranch explain`, `anabranch journal`, `anabranch demo`."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from anabranch.errors import AnabranchError

if TYPE_CHECKING:
    from anabranch.planning import Planning
    from anabranch.run import Run


TELL_WAITING_S = 10.0
"""Files that are not complete are named after so long: most are just being written."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; errors are told in a few lines, with a stack trace only if asked for."""
    given = _parser().parse_args(arguments)
    if not given.debug and not logging.root.handlers:
        logging.root.addHandler(logging.NullHandler())  # Py4J logs an interruption at length
    try:
        return int(given.command(given) or 0)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except AnabranchError as error:
        return _tell(error, given.debug)
    except Exception as error:
        return _tell(_cause(error), given.debug)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="anabranch", description="Continuous SQL over several streams on Apache Spark."
    )
    parser.add_argument("--debug", action="store_true", help="show stack traces")
    commands = parser.add_subparsers(required=True, metavar="command")

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
    run.add_argument("--slots", type=int, help="tasks per batch (default: Spark's parallelism)")
    run.add_argument("--files-per-batch", type=int, help="files of each stream in one batch (default: all there are)")
    run.add_argument(
        "--skip", action="append", default=[], metavar="STREAM=FILE",
        help="leave out a file of a stream, by its path or the last parts of it, also one that has changed or gone",
    )  # fmt: skip
    run.add_argument(
        "--drop", action="append", default=[], metavar="QUERY",
        help="a query of the checkpoint that is not to go on: its state is given up",
    )  # fmt: skip
    run.add_argument("--no-share", action="store_true", help="run each query by itself, also those over the same streams")
    _add_budget(run)
    run.add_argument(
        "--adapt", default="data", choices=("data", "aggressive", "memory", "refined-memory", "never"),
        help="when another plan is thought about while a query runs (default: %(default)s)",
    )  # fmt: skip
    run.add_argument("--pause", default="500 milliseconds", help="how long a batch may wait for that (default: %(default)s)")
    run.add_argument(
        "--strategy", choices=("moving-state", "parallel-track", "gradual"), help="always this one (default: the cheapest)"
    )
    run.add_argument("--once", action="store_true", help="process what is there, then end")
    run.set_defaults(command=_run)

    explain = commands.add_parser("explain", help="show the plans of a SQL file without running it")
    explain.add_argument("file")
    explain.add_argument("--slots", type=int, help="tasks per batch (default: the checkpoint's, else this machine's cores)")
    explain.add_argument(
        "--checkpoint", default="checkpoint", help="where queries that ran before keep their state (default: %(default)s)"
    )
    explain.add_argument("--json", action="store_true", help="for programs")
    explain.add_argument("--draw", metavar="plan.svg", help="draw the plan; of several queries each in a file of its own")
    explain.add_argument(
        "--rate", action="append", default=[], metavar="STREAM=ROWS", help="rows per second of a stream, as far as known"
    )
    explain.add_argument(
        "--distinct", action="append", default=[], metavar="KEY=VALUES", help="distinct values of a key, like a.k=1000"
    )
    _add_budget(explain)
    explain.set_defaults(command=_explain)

    calibrate = commands.add_parser("calibrate", help="measure what single operations cost on this machine (seconds)")
    calibrate.set_defaults(command=_calibrate)

    journal = commands.add_parser("journal", help="show what was decided about the queries of a checkpoint, and why")
    journal.add_argument("--checkpoint", default="checkpoint", help="path or URI where state is kept (default: %(default)s)")
    journal.add_argument("--query", help="only this one")
    journal.add_argument("--json", action="store_true", help="for programs: one line of JSON per entry")
    journal.set_defaults(command=_journal)

    demo = commands.add_parser("demo", help="a three-way join over generated streams")
    demo.add_argument("--seconds", type=int, default=32, help="seconds of event time (default: %(default)s)")
    demo.add_argument("--rate", type=int, default=8_000, help="rows per second and stream (default: %(default)s)")
    demo.set_defaults(command=_demo)
    return parser


def _add_budget(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cpu", type=float, help="cores that a query may use")
    parser.add_argument("--memory", help="what its state may take, like 2GiB")
    parser.add_argument("--strict", action="store_true", help="refuse a query that no plan keeps within that")


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        raise AnabranchError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise AnabranchError(f"{path} is not a text file in UTF-8") from None


def _run(given: argparse.Namespace) -> int:
    from anabranch.session import Session
    from anabranch.settings import Adapt, Budget
    from anabranch.spark import sinks
    from anabranch.spark.create import create_session
    from anabranch.sql import parse_script
    from anabranch.storage.location import located

    text, skip = _read(given.file), _skipped(given.skip)
    parse_script(text)  # refuse what is wrong before Spark is started
    checkpoint, output = located(given.checkpoint), located(given.output) if given.output else None
    warm_up_visibly()
    # What goes wrong reaches us as an error, and is told in a few lines: Spark need not log it, too.
    spark = create_session(given.master, {"spark.log.level": "INFO" if given.debug else "OFF"})
    adapt = Adapt(given.adapt, pause=given.pause, strategy=given.strategy)
    session = Session(spark, checkpoint, Budget(given.cpu, given.memory, given.strict), given.slots, adapt=adapt,
                      spark_checkpoint=given.spark_checkpoint, share=not given.no_share)  # fmt: skip

    def sink(query: str) -> sinks.Sink:
        return sinks.parquet(output.below(query)) if output is not None else sinks.console()

    session.script(text, sink, given.files_per_batch, skip)
    trigger = {"availableNow": True} if given.once else {"processingTime": "0 seconds"}
    watch(lambda: session.start(given.drop, **trigger), sys.stderr.isatty())
    return 0


def _explain(given: argparse.Namespace) -> int:
    import json

    from anabranch.cost.facts import Given
    from anabranch.planning import Planning
    from anabranch.settings import Budget
    from anabranch.sql import parse_script
    from anabranch.storage.location import located

    facts = Given(_numbers("--rate", given.rate), {}, _numbers("--distinct", given.distinct))
    budget = Budget(given.cpu, given.memory, given.strict)
    planning = Planning(budget, facts, given.slots, located(given.checkpoint))
    planning.add_script(parse_script(_read(given.file)))
    _require_known("--rate", facts.rates, planning)
    if given.json:
        print(json.dumps([planning.explain_json(name) for name in planning.queries], indent=1))
    else:
        print("\n\n".join(planning.explain(name) for name in planning.queries))
    if given.draw:
        _draw(planning, given.draw)
    return 0


def _require_known(option: str, rates: Iterable[str], planning: Planning) -> None:
    """Refuses a rate of a stream that there is not: with its name mistyped, the plan would be one for assumed rates."""
    blocks = [block for planned in planning.queries.values() for block in planned.forms.written.blocks]
    known = {s.name for s in planning.catalog} | {i.source.name for block in blocks for i in block.inputs}
    for name in rates:
        if name not in known:
            there = ", ".join(sorted(known)) or "none"
            raise AnabranchError(f"{option} {name}: there is no such stream; there are: {there}")


def _draw(planning: Planning, path: str) -> None:
    """Writes a picture of each plan that was priced; of several queries each to a file with its name."""
    root, ending = os.path.splitext(path)
    for name in planning.queries:
        drawn, own = planning.draw(name), path if len(planning.queries) == 1 else f"{root}-{name}{ending}"
        if drawn is None:
            print(f"{name} is not drawn: its plan is pinned, so it was not priced", file=sys.stderr)
            continue
        try:
            with open(own, "w", encoding="utf-8") as file:
                file.write(drawn)
        except OSError as error:
            raise AnabranchError(f"cannot write {own}: {error.strerror}") from None
        print(f"drawn to {own}", file=sys.stderr)


def _skipped(given: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for text in given:
        stream, equals, file = text.partition("=")
        if not (stream and equals and file):
            raise AnabranchError(f"--skip {text}: write it as the name of a stream, = and the path of a file")
        found.setdefault(stream, []).append(file)
    return found


def _numbers(option: str, given: Sequence[str]) -> dict[str, float]:
    found = {}
    for text in given:
        name, _, value = text.partition("=")
        try:
            found[name] = float(value)
        except ValueError:
            raise AnabranchError(f"{option} {text}: write it as a name, = and a number") from None
    return found


def _calibrate(given: argparse.Namespace) -> int:
    from anabranch.cost.units import remember
    from anabranch.drive.calibrate import calibrate

    warm_up_visibly()
    print("measuring …", file=sys.stderr)
    units = calibrate()
    for what, cost in (
        ("a row taken in", units.accept), ("a row into an index", units.insert),
        ("a combined row kept", units.view_insert or units.insert), ("a row looked up", units.lookup),
        ("… for each further run", units.lookup_run), ("a pair that matches", units.join), ("a result", units.result),
        ("a lookup of a batch", units.step), ("a batch", units.batch),
    ):  # fmt: skip
        print(f"{what:<24}{cost * 1e9:12,.1f} ns")
    print(f"{'a row in an index':<24}{units.index_bytes:12.1f} bytes")
    print(f"kept in {remember(units)}", file=sys.stderr)
    return 0


def _journal(given: argparse.Namespace) -> int:
    import msgspec

    from anabranch.session import read_journals
    from anabranch.storage.location import located

    place = located(given.checkpoint)
    journals = read_journals(place)
    if given.query is not None and given.query not in journals:
        raise AnabranchError(f"no query {given.query} in {place}; there are: {', '.join(journals)}")
    for name, entries in journals.items():
        if given.query in (None, name):
            for entry in entries:
                if given.json:
                    print(msgspec.json.encode({"query": name, **msgspec.structs.asdict(entry)}).decode())
                else:
                    print(f"{name}: {entry}")
    return 0


def _demo(given: argparse.Namespace) -> int:
    from anabranch import demo

    return demo.run(given.seconds, given.rate)


def warm_up_visibly() -> None:
    """Compiles the kernels, and says so if it takes a while."""
    from anabranch.drive.warm import warm_up

    began = time.monotonic()
    print("preparing kernels (takes a while on first use) …", end="", file=sys.stderr, flush=True)
    warm_up()
    print(f" {time.monotonic() - began:.0f} s", file=sys.stderr)


def watch(start: Callable[[], Run], live: bool) -> Run:
    """Starts queries and prints their progress until all have ended: a line that is rewritten on a terminal, a line per
    batch elsewhere."""
    shown: dict[str, int] = {}
    waiting: dict[tuple[str, str], tuple[str, float]] = {}
    with _interrupts_kept() as interrupted:
        run = start()
        try:
            ended = False
            while not ended:
                if interrupted.is_set():
                    raise KeyboardInterrupt
                ended = run.await_termination(0.2)
                _show_progress(run, shown, live)
                _show_waiting(run, waiting, 0.0 if ended else TELL_WAITING_S)
        except BaseException:
            run.stop()
            raise
    if live:
        print(file=sys.stderr)
    return run


def _show_progress(run: Run, shown: dict[str, int], live: bool) -> None:
    """Prints the batches that were not shown yet."""
    for name, steps in run.progress.items():
        for step in steps:
            if step.batch > shown.get(name, -1):
                shown[name] = step.batch
                rows, spent = sum(step.rows.values()), sum(step.wall_s[k] for k in ("control", "tasks", "commit"))
                line = (
                    f"{name}: batch {step.batch}, {rows:,} rows in {spent:.2f} s, {step.results:,} results, "
                    f"{sum(step.late_rows.values()):,} late, {sum(step.early_rows.values()):,} early, "
                    f"{step.state_rows:,} rows in state "
                    f"({step.state_bytes / 1e6:.1f} MB), plan {step.plan}"
                    + (f" on the way to {step.target}" if step.target is not None else "")
                    + (f", {sum(w.count for w in step.waiting.values())} files wait" if step.waiting else "")
                )
                print(f"\r{line:<150}" if live else line, end="" if live else "\n", file=sys.stderr, flush=True)


def _show_waiting(run: Run, seen: dict[tuple[str, str], tuple[str, float]], after_s: float) -> None:
    """Prints, once, which files have not been complete for a while. `seen` holds what waits, and since when."""
    now = time.monotonic()
    for name, streams in run.waiting_files.items():
        for stream, waiting in streams.items():
            text, since = seen.get((name, stream), ("", now))
            if text != str(waiting):
                text, since = str(waiting), now
            if now - since >= after_s:
                print(f"\n{name}: {stream}: {text}", file=sys.stderr, flush=True)
                since = float("inf")
            seen[name, stream] = (text, since)


@contextmanager
def _interrupts_kept() -> Iterator[threading.Event]:
    """Ctrl-C only sets a mark; a second one interrupts. PySpark's way, to call Java from within the signal, fails if the
    signal comes while Java is being called, and says so at length."""
    interrupted = threading.Event()
    if threading.current_thread() is not threading.main_thread():  # signals are not ours to handle
        yield interrupted
        return

    def mark(number: int, frame: object) -> None:
        if interrupted.is_set():
            raise KeyboardInterrupt
        interrupted.set()

    before = signal.signal(signal.SIGINT, mark)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)


def _cause(error: BaseException) -> BaseException:
    """The error of ours that Spark wrapped, if it can be told."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, AnabranchError):
            return seen
        seen = seen.__cause__ or seen.__context__
    return error


def _tell(error: BaseException, debug: bool) -> int:
    if debug:
        traceback.print_exception(error)
    else:
        text = str(error).strip() or type(error).__name__
        print(f"anabranch: {text[:2000]}", file=sys.stderr)
        if not isinstance(error, AnabranchError):
            print("(anabranch --debug … shows where)", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
