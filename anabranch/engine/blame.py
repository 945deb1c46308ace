"""Whose error it is: one of a query's own expressions or rows ends that query alone, any other fails the task."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from anabranch.errors import NotVisibleError, QueryFailedError, SchemaMismatchError, StateError

NOBODYS = (OSError, MemoryError, StateError, SchemaMismatchError, NotVisibleError, QueryFailedError)
"""Errors of I/O, of memory, of a source or of the store: they are no query's."""


@contextmanager
def errors_of(query: str) -> Iterator[None]:
    """Has errors within a block be those of a query."""
    try:
        yield
    except NOBODYS:
        raise
    except Exception as error:
        raise QueryFailedError(query, error) from error
