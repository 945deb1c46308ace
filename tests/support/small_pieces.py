"""Has a batch work on very little at once: what is cut only at size is cut in small cases too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

from hypothesis import strategies as st

SMALL = st.sampled_from([1, 2, 3, 7, 30])
"""How many rows or bytes at once."""


@contextmanager
def small_pieces(rows: int, size_bytes: int) -> Iterator[None]:
    """Pieces of at most so many rows and bytes, wherever there are pieces."""
    bounds = dict.fromkeys(("RESULT_ROWS", "CHUNK_PAIRS", "FOLD_ROWS"), rows)
    bounds |= dict.fromkeys(("RESULT_BYTES", "CHUNK_BYTES", "FOLD_BYTES"), size_bytes)
    with ExitStack() as stack:
        for name, value in bounds.items():
            stack.enter_context(mock.patch(f"anabranch.engine.bounds.{name}", value))
        yield
