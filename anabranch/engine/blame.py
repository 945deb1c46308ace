"""Whose error it is: one of a query's own expressions or rows ends that query alone, any other fails the task."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from anabranch.errors import AnabranchError, QueryFailedError, SchemaMismatchError, StateError

NOBODYS = (OSError, MemoryError, StateError, SchemaMismatchError, QueryFailedError)
"""Errors of I/O, of memory, of a source or of the store: they are no query's."""
ITS_OWN = (AnabranchError, pa.ArrowException, ArithmeticError, ValueError)
"""Errors of expressions and of values. Any other is a mistake of ours, and is told with its trace: it fails the task."""


@contextmanager
def errors_of(query: str) -> Iterator[None]:
    """Has errors within a block be those of a query."""
    try:
        yield
    except NOBODYS:
        raise
    except ITS_OWN as error:
        raise QueryFailedError(query, error) from error
