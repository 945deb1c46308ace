"""Ends what takes too long: one thread for all that a process waits for.

A timer for each statement would start a thread for each, which small statements would notice. The thread here sleeps
until the first of what is under way might be over. Mostly that is left long before, and nobody wakes the thread for it: it
finds out when its time has come. It ends before the process does: an interpreter that takes DuckDB apart while a thread
refers to it says so in a page of text.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from math import inf
from time import monotonic

LONGEST_WAIT_S = 1.0
"""So long the end of a process waits for its thread, which may be about to end a statement."""


class Deadlines:
    """What is under way, and when it is to be over.

    >>> deadlines, ended = Deadlines(), threading.Event()
    >>> with deadlines.within(0.001, ended.set):
    ...     ended.wait(60)
    True
    """

    def __init__(self) -> None:
        self._begin()
        if hasattr(os, "register_at_fork"):  # a copy of the process has no thread
            os.register_at_fork(after_in_child=self._begin)
        atexit.register(self._end)

    def _begin(self) -> None:
        self._changed, self._numbers = threading.Condition(), count()
        self._pending: dict[int, tuple[float, Callable[[], None]]] = {}
        self._wakes_s: float | None = None
        """When the thread looks again; None: there is no thread."""
        self._thread: threading.Thread | None = None
        self._is_over = False

    def _end(self) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(LONGEST_WAIT_S)

    @contextmanager
    def within(self, seconds: float, end: Callable[[], None]) -> Iterator[None]:
        """Calls `end` if the block takes longer, once, and not when it is left."""
        number, over_s = next(self._numbers), monotonic() + seconds
        with self._changed:
            if self._wakes_s is None:
                thread = threading.Thread(target=self._watch, name="anabranch-deadlines", daemon=True)
                thread.start()
                self._thread, self._wakes_s = thread, over_s
            elif over_s < self._wakes_s:
                self._changed.notify()
            self._pending[number] = over_s, end
        try:
            yield
        finally:
            with self._changed:
                self._pending.pop(number, None)

    def _watch(self) -> None:
        while True:
            with self._changed:
                if self._is_over:
                    return
                now_s = monotonic()
                for number, (over_s, end) in [*self._pending.items()]:
                    if over_s <= now_s:
                        del self._pending[number]
                        with suppress(Exception):  # others are to be ended, too
                            end()
                self._wakes_s = min((over_s for over_s, _ in self._pending.values()), default=inf)
                self._changed.wait(None if self._wakes_s == inf else self._wakes_s - now_s)


DEADLINES = Deadlines()
"""Those of this process."""
