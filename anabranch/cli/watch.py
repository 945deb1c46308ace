"""A run, shown while it runs: blocks that are rewritten in place on a terminal, a line for each batch elsewhere."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live

from anabranch.cli.waits import saying
from anabranch.show.journal import last_decision
from anabranch.show.progress import block, json_line, logfmt, logfmt_line
from anabranch.spark.interrupts import interrupts_kept

if TYPE_CHECKING:
    from anabranch.run import Run

LONG_WAIT_S = 2.0
"""Whoever waits for longer is told what for."""
OLD_RECORD_S = 10.0
"""Before the first batch of a run, files that are not complete are named after so long: which these are was recorded by the
run before, and the reader may not have looked again."""
LOOK_S = 0.2
"""How often a run is looked at."""
ONLY_ONCE = ("--fresh",)
"""Options of `anabranch run` that are for one start: a run that goes on does without them."""


class As(Enum):
    """How a run is shown."""

    BLOCKS = "blocks"
    LINES = "lines"
    JSON = "json"


def warm_up_visibly() -> None:
    """Compiles the kernels, and says so if it takes a while."""
    from anabranch.drive.warm import warm_up

    with saying("compiling kernels, once for this version on this machine"):
        warm_up()


def watch(start: Callable[[], Run], show: As, again: str = "") -> Run:
    """Starts queries and shows their progress until all have ended. `again` is the command that goes on with them, told when
    they are interrupted."""
    with interrupts_kept() as interrupted:
        with saying("starting the queries"):
            run = start()
        shown = _Blocks(run) if show is As.BLOCKS else _Lines(run, show is As.JSON)
        with shown:
            try:
                ended = False
                while not ended:
                    if interrupted.is_set():
                        raise KeyboardInterrupt(_stopped(run, again))
                    ended = run.await_termination(LOOK_S)
                    shown.look(ended)
            except BaseException:
                run.stop()
                raise
    return run


def _stopped(run: Run, again: str) -> str:
    """What is told when a run is interrupted."""
    batches = [steps[-1].batch for steps in run.progress.values() if steps]
    after = f" after batch {max(batches)}" if batches else ""
    way = f" Go on with:\n  {again}" if again else ""
    return f"stopped{after}; what was committed stays, and nothing is lost.{way}"


def command_again(arguments: Sequence[str]) -> str:
    """The command that goes on with a run, for a shell.

    >>> command_again(["run", "my file.sql", "--fresh", "old", "--checkpoint", "state"])
    "anabranch run 'my file.sql' --checkpoint state"
    """
    kept, skips = [], False
    for argument in arguments:
        if not skips and not argument.startswith(tuple(f"{option}=" for option in ONLY_ONCE)) and argument not in ONLY_ONCE:
            kept.append(argument)
        skips = not skips and argument in ONLY_ONCE
    return shlex.join(["anabranch", *kept])


class _Waits:
    """What each query waits for, told when it has for long."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._since: dict[tuple[str, str], float] = {}

    def long(self, is_last: bool = False) -> dict[str, list[str]]:
        """By query what it has waited for long; or at the last look, for any time."""
        now, found = time.monotonic(), dict[str, list[str]]()
        waits = self._waits()
        self._since = {each: self._since.get(each, now) for each in waits}
        for (name, text), after_s in waits.items():
            if is_last or now - self._since[name, text] >= after_s:
                found.setdefault(name, []).append(text)
        return found

    def _waits(self) -> dict[tuple[str, str], float]:
        """What each query waits for, and after how long that is told."""
        run, found = self._run, dict[tuple[str, str], float]()
        for name, streams in run.waiting_files.items():
            for stream, files in streams.items():
                found[name, f"{stream}: {files}"] = LONG_WAIT_S if run.progress[name] else OLD_RECORD_S
        failing = run.failing
        for name, error in failing.items():
            first_line = (str(error).splitlines() or [""])[0][:200]
            found[name, f"its sink fails, and is tried again: {type(error).__name__}: {first_line}"] = LONG_WAIT_S
        for name, count in run.undelivered.items():
            if count and name not in failing:
                found[name, "its sink takes long"] = LONG_WAIT_S
        for name, said in run.waits_for.items():
            found[name, f"a database is gone, and the batch is tried again: {said[:200]}"] = LONG_WAIT_S
        return found


class _Blocks:
    """A block for each query, rewritten in place."""

    def __init__(self, run: Run) -> None:
        self._run, self._waits = run, _Waits(run)
        self._console = Console(stderr=True)
        self._live = Live(console=self._console, auto_refresh=False, redirect_stdout=True, redirect_stderr=True)

    def __enter__(self) -> None:
        self._live.start()

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def look(self, is_last: bool) -> None:
        run, waits, made = self._run, self._waits.long(), []
        for name, steps in run.progress.items():
            decision, names = "", steps[-1].names if steps else {}
            if name in run.queries:
                decision = last_decision(list(run.queries[name].journal.recent), names)
            ended = run.failures[name].reason if name in run.failures else ""
            made.append(block(name, steps, decision, "; ".join(waits.get(name, [])), ended, self._console.width))
        self._live.update(Group(*made), refresh=True)


class _Lines:
    """A line for each batch of each query, on standard error; JSON on standard output."""

    def __init__(self, run: Run, as_json: bool) -> None:
        self._run, self._as_json, self._waits = run, as_json, _Waits(run)
        self._shown: dict[str, int] = {}
        self._told: set[tuple[str, str]] = set()

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...

    def look(self, is_last: bool) -> None:
        for name, steps in self._run.progress.items():
            for step in steps:
                if step.batch > self._shown.get(name, -1):
                    self._shown[name] = step.batch
                    if self._as_json:
                        print(json_line(name, step), flush=True)
                    else:
                        print(logfmt_line(name, step), file=sys.stderr, flush=True)
        waits = {(name, text) for name, texts in self._waits.long(is_last).items() for text in texts}
        for name, text in sorted(waits - self._told):
            print(logfmt({"query": name, "waits": text}), file=sys.stderr, flush=True)
        self._told = waits
