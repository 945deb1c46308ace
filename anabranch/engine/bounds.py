"""How much a batch works on at once, and how finely state is cut. None of these bounds what a batch gives: they bound the
memory that it takes."""

from __future__ import annotations

RESULT_ROWS = 1 << 17
"""Results leave in pieces of at most so many rows."""

RESULT_BYTES = 64 << 20
"""A piece of results is made of at most so many bytes of strings and the like."""

CHUNK_PAIRS = 1 << 20
"""A lookup is cut where it has found so many pairs, before predicates are checked."""

CHUNK_BYTES = 256 << 20
"""Keys and predicates are evaluated over at most so many bytes of strings and the like."""

TOGETHER_INSTANTS = 32
"""A database is asked for the groups of at most so many instants in one statement (`python -m bench.instants`): what a
statement takes to read and to plan is shared by then."""

TOGETHER_BYTES = 64 << 20
"""And for so few that the rows of their windows have no more bytes: those of many large windows take little less together,
and the memory that a statement may have is for all of them."""

MOST_SLICES = 8
"""Rows of a source are kept in at most so many slices (`anabranch.engine.slices`): each has indexes of its own, which a
lookup visits."""

MOST_LAGGING = 7
"""Rows are kept apart by at most so many classes of watermarks that lag (`anabranch.engine.slices.lagging`)."""

MOST_APART = 16
"""If rows of a batch would have more slices than these, by lengths and by the watermarks that they wait for, lengths are not
told apart."""

SLICE_RATIO = 1.25
"""A window has a slice of its own only if the next longer slice is so many times as long."""

FOLD_ROWS = 1 << 20
"""Rows to be grouped are folded as soon as there are so many."""

FOLD_BYTES = 256 << 20
"""Or as soon as their strings and the like have so many bytes."""
