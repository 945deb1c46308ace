"""Queries whose joins are contained in one another, as data: with further equalities, and over some of the streams.

The first query joins three or four inputs, of three streams, by the fewest equalities. Every other query has all of these
inputs or some of them, neighbours in the chain of equalities, often one more equality, and windows, filters, predicates and
groups of its own. Streams differ in lateness, so that what is late for a query over some streams is not for one over others.

Of *uneven* ones streams begin late, fall silent for some batches, or are seconds ahead of others, and some windows have no
end.
"""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from tests.support.kin import ALSO, FILTERS, WINDOWS, mirrored
from tests.support.workloads import SECOND_US, STREAMS, Workload, counts

KEYS = ("{p}.k = {q}.k", "{p}.k = {q}.k", "{p}.j = {q}.j", "{p}.s = {q}.s")
FURTHER = ("{p}.j = {q}.j", "{p}.s = {q}.s", "{p}.k = {q}.k", "{p}.j = {q}.k", "{p}.x = {q}.x")


class Contained(Workload):
    """So many queries, the joins of most of which are contained in the first one's."""

    @cached_property
    def chain(self) -> tuple[list[str], list[str]]:
        """The streams of the largest join, and the equality between each and the next."""
        rng = self.rng("chain")
        count = 3 + int(rng.integers(4) == 0)
        sources = [str(rng.choice(list(STREAMS))) for _ in range(count)]
        if rng.integers(2):
            keys = [str(rng.choice(KEYS))] * (count - 1)
        else:
            keys = [str(rng.choice(KEYS)) for _ in range(count - 1)]
        return sources, keys

    def _query(self, number: int) -> str:
        rng, (sources, keys) = self.rng("contained", number), self.chain
        first, last = 0, len(sources)
        if number and rng.integers(3):
            width = int(rng.integers(2, len(sources) + 1))
            # Left-deep plans bring the first ones together.
            first = 0 if rng.integers(2) else int(rng.integers(len(sources) - width + 1))
            last = first + width
        aliases = [f"{'mnop'[int(rng.integers(4))]}{place}" for place in range(first, last)]
        is_even = bool(self.rng("windows").integers(2))
        window = str(rng.choice(WINDOWS))
        windows = [window if is_even else str(rng.choice(WINDOWS)) for _ in aliases]
        windows = [self._window(number, place, own) for place, own in enumerate(windows)]
        inputs = [f"{s} [{w}] AS {a}" for s, w, a in zip(sources[first:last], windows, aliases, strict=True)]
        pairs = [*pairwise(aliases)]
        where = [key.format(p=p, q=q) for key, (p, q) in zip(keys[first : last - 1], pairs, strict=True)]
        if number and rng.integers(2):
            p, q = rng.choice(len(aliases), 2, replace=False)
            where.append(str(rng.choice(FURTHER)).format(p=aliases[p], q=aliases[q]))
        if rng.integers(4) == 0:
            where.append(str(rng.choice(ALSO)).format(p=pairs[-1][0], q=pairs[-1][1]))
        where += [str(rng.choice(FILTERS)).format(p=a) for a in aliases if rng.integers(4) == 0]
        if rng.integers(3) == 0:
            where = [mirrored(each) for each in where]
        if rng.integers(4) == 0:
            key = f"{aliases[-1]}.k"
            select, tail = f"{key}, COUNT(*) AS n, SUM({aliases[0]}.x) AS y", f" GROUP BY {key}"
        else:
            columns = [f"{a}.{c} AS {c}{place}" for place, a in enumerate(aliases) for c in "xs" if rng.integers(3)]
            select, tail = ", ".join(columns) or "RESULT_TIME AS t", ""
        return f"SELECT {select} FROM {', '.join(inputs)} WHERE {' AND '.join(where)}{tail}"


    def _window(self, number: int, place: int, drawn: str) -> str:
        """That of an input of a query."""
        return drawn


class Uneven(Contained):
    """Watermarks of such queries go on by themselves, and some stand still."""

    def _window(self, number: int, place: int, drawn: str) -> str:
        return "UNBOUNDED" if self.rng("endless", number, place).integers(7) == 0 else drawn

    def batch(self, number: int) -> dict[str, pa.Table]:
        found = {}
        for name in STREAMS:
            pace = self.rng("pace", name)
            first, silent_from = int(pace.integers(0, 4)) * int(pace.integers(2)), int(pace.integers(0, self.batches))
            silent_for, ahead_s = int(pace.integers(0, 5)), int(pace.integers(-1, 4))
            rng = self.rng("rows", name, number)
            if number < first or silent_from <= number < silent_from + silent_for or (number and rng.integers(6) == 0):
                continue
            spread_us = rng.integers(-4 * SECOND_US, SECOND_US, self.rows) // (1 + rng.integers(0, 4))
            found[name] = self._rows(rng, name, np.asarray((number + ahead_s) * SECOND_US + spread_us))
        return found


def uneven(most: int = 7) -> st.SearchStrategy[Uneven]:
    """Two queries or more; few rows, for windows without end find many."""
    return st.builds(Uneven, st.integers(0, 2**32 - 1), counts(most), st.sampled_from([6, 3, 10]), st.just(7))


def contained(most: int = 12) -> st.SearchStrategy[Contained]:
    """Two queries or more."""
    return st.builds(Contained, st.integers(0, 2**32 - 1), counts(most), st.sampled_from([6, 3, 12]))
