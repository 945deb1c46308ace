"""A Spark that starts without a word, and says what is wrong if it does not start.

Java and Spark print some ten lines on standard error while they start: options that they were given, modules, the name of
the machine, profiles of logging. All of it comes before the settings of a session count. So the JVM is started with a pipe
for its standard error, and a thread of ours reads it. Until the session is there, lines are kept; those that tell of an
error are shown then, and all are if there is no session. After that every line is passed on: what Spark logs, and what
Python workers print, comes this way.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import uuid
from collections.abc import Iterator
from contextlib import nullcontext

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway

from anabranch.errors import SparkStartError
from anabranch.spark.failures import in_a_line
from anabranch.spark.interrupts import interrupts_kept

LONGEST_WAIT_S = 5.0
"""So long the end of what was printed at start is waited for; it is in the pipe already."""

MOST_SHOWN = 20
"""Lines of what was printed before a start failed."""

STDERR = 2
"""Where the JVM would write by itself."""

_ERROR = re.compile(r"\b(?:ERROR|FATAL)\b|^Error\b|^Exception in thread|^Caused by:")

_USUAL = re.compile(
    r"^at [\w.$/<>]+\(|Picked up \w*JAVA_|WARNING: (?:Using incubator modules|package )|Using Spark's default log4j profile|"
    r"Setting .*log level|To adjust logging level|WARN (?:Utils: (?:Your hostname|Set SPARK_LOCAL_IP)|NativeCodeLoader)"
)
"""What explains no failure: lines that are always printed, and the stacks of Java."""


@contextlib.contextmanager
def quietly(conf: SparkConf, quiet: bool) -> Iterator[None]:
    """Within the block Spark is started with some settings; an error of it is told in a few lines."""
    printed = Printed() if quiet and SparkContext._gateway is None else None
    try:
        if SparkContext._gateway is None:
            _launch(conf, printed)
        yield
    except Exception as error:
        lines = printed.after_failure() if printed is not None else []
        shown = "".join(f"\n  {line}" for line in lines[-MOST_SHOWN:])
        raise SparkStartError(f"Spark does not start: {in_a_line(error)}{shown}") from error
    if printed is not None:
        printed.pass_on()


def _launch(conf: SparkConf, printed: Printed | None) -> None:
    """Starts the JVM. Who interrupts that is heard when it has started: then it ends with this process."""
    with interrupts_kept() as interrupted, printed.followed() if printed is not None else nullcontext() as end:
        gateway = launch_gateway(conf, {} if end is None else {"stderr": end})  # type: ignore[no-untyped-call]
        SparkContext._ensure_initialized(gateway=gateway)
    if interrupted.is_set():
        raise KeyboardInterrupt


class Printed:
    """What a JVM prints."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._last = uuid.uuid4().hex
        self._is_started = threading.Event()
        self._reader = threading.Thread(target=self._read, name="anabranch-jvm-stderr", daemon=True)

    @contextlib.contextmanager
    def followed(self) -> Iterator[int]:
        """The end of a pipe for a process that is started in the block; what it writes is read from now on."""
        self._pipe, end = os.pipe()
        self._reader.start()
        try:
            yield end
        finally:
            os.close(end)

    def _read(self) -> None:
        with open(self._pipe, "rb") as pipe:
            for line in pipe:
                text = line.decode("utf-8", "replace").strip()
                if self._is_started.is_set():
                    os.write(STDERR, line)
                elif text == self._last:
                    self._is_started.set()
                else:
                    self._lines.append(text)

    def after_failure(self) -> list[str]:
        """What was printed and may explain why there is no session."""
        if SparkContext._gateway is None:
            self._reader.join(LONGEST_WAIT_S)  # the process has ended, and so does what it printed
        return self._unusual()

    def _unusual(self) -> list[str]:
        return [line for line in self._lines if line and not _USUAL.search(line)]

    def pass_on(self) -> None:
        """Shows the errors among what was printed so far, and everything from now on."""
        assert SparkContext._jvm is not None, "Spark has started"
        SparkContext._jvm.java.lang.System.err.println(self._last)
        self._is_started.wait(LONGEST_WAIT_S)
        for line in filter(_ERROR.search, self._unusual()):
            os.write(STDERR, f"{line}\n".encode())
