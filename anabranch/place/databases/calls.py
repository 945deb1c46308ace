"""A call of a server, in a thread of its own, so that whoever asked waits no longer than the call may take.

A call has its connection to itself. One that is in time gives it back. One that is not is *left*: nobody waits for it, the
server is told to cancel it, and when its statement comes back after all, it makes no other, and closes its connection. So no
call ever meets statements of another one on its connection. A call that fails closes its connection, too: it may be in the
middle of a transaction, or of an answer.

A connection, and what comes of it, is that of a driver by Python's database protocol (PEP 249), with `adbc_cancel`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

T = TypeVar("T")

CANCEL_S = 1.0
"""How long whoever leaves a call waits for its end: the server may be out of reach. So often it is told again."""


class LeftError(Exception):
    """Nobody waits for the call any more."""


class Call:
    """A call under way, on a connection that another call has given back, or on a new one."""

    def __init__(self, name: str, connect: Callable[[], Any], connection: Any = None) -> None:
        self._name, self._connect, self._connection = name, connect, connection
        self._cursor: Any = None
        """That of the statement under way."""
        self._using = threading.Lock()
        """Held while a cursor is made, cancelled or closed: a driver bears no two of these at once."""
        self._ending = threading.Lock()
        """Held while it is settled whether the call is in time."""
        self._is_left, self._is_over = False, threading.Event()

    def result(self, ask: Callable[[Call], T], timeout_s: float) -> tuple[T, Any]:
        """What the call gives, and the connection, which is free again; LeftError, if it takes too long."""
        found: list[T] = []
        failed: list[BaseException] = []

        def run() -> None:
            try:
                if self._connection is None:
                    self._connection = self._connect()
                found.append(ask(self))
            except BaseException as error:
                failed.append(error)
                self._close()
            with self._ending:
                self._is_over.set()
            if self._is_left:
                self._close()

        thread = threading.Thread(target=run, name=f"database {self._name}", daemon=True)
        try:
            thread.start()
            self._is_over.wait(timeout_s)
        finally:
            with self._ending:
                self._is_left = not self._is_over.is_set()
            if thread.ident is None:  # there is no thread for it
                self._close()
            elif self._is_left:  # it took too long, or whoever asked is interrupted
                self._cancel()
        if self._is_left:
            raise LeftError
        if failed:
            raise failed[0]
        return found[0], self._connection

    @contextmanager
    def statement(self) -> Iterator[Any]:
        """A cursor for one statement."""
        with self._using:
            if self._is_left:
                raise LeftError
            self._cursor = cursor = self._connection.cursor()
        try:
            yield cursor
        finally:
            with self._using, suppress(Exception):
                self._cursor = None
                cursor.close()

    def _cancel(self) -> None:
        """Has the server end the statement under way: again and again, for it may not have begun when it is first told."""

        def cancel() -> None:
            while not self._is_over.is_set():
                with self._using, suppress(Exception):
                    if self._cursor is not None:
                        self._cursor.adbc_cancel()
                self._is_over.wait(CANCEL_S)

        thread = threading.Thread(target=cancel, name=f"database {self._name} cancel", daemon=True)
        thread.start()
        thread.join(CANCEL_S)

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with self._using, suppress(Exception):
                connection.close()
