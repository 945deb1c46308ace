"""Queries over four streams, each of which joins the next by a column of its own, and parts of that join, as data.

Rows of the whole join are spread by two of its three equalities, by a grid of two times two slots, say. A part over two
streams that follows it (`anabranch.balance.together`) has every second slot: when the whole leaves, nobody has a cell in the
others.
"""

from __future__ import annotations

from typing import ClassVar

from hypothesis import strategies as st

from tests.support.workloads import FILTERS, Workload, counts

EQUALITIES = ("k", "j", "s")
"""By these columns each stream is joined with the next."""
WINDOWS = ("RANGE 1 SECOND", "RANGE 2 SECONDS", "NOW")


class Chains(Workload):
    """So many queries. The first joins two of the four streams, the second all, the others some."""

    stream_names: ClassVar[str] = "abcd"

    def _query(self, number: int) -> str:
        rng, names = self.rng("chain", number), self.stream_names
        width = {0: 2, 1: len(names)}.get(number, int(rng.integers(2, len(names) + 1)))
        first = int(rng.integers(len(names) - width + 1))
        streams = names[first : first + width]
        columns = EQUALITIES[first : first + width - 1]
        where = [f"{p}.{c} = {q}.{c}" for p, q, c in zip(streams, streams[1:], columns, strict=False)]
        where += [str(rng.choice(FILTERS)).format(p=s) for s in streams if rng.integers(6) == 0]
        inputs = ", ".join(f"{s} [{rng.choice(WINDOWS)}]" for s in streams)
        key, shown = f"{streams[-1]}.k", ", ".join(f"{s}.x AS {s}x" for s in streams)
        if number > 1 and rng.integers(4) == 0:
            return f"SELECT {key}, COUNT(*) AS n FROM {inputs} WHERE {' AND '.join(where)} GROUP BY {key}"
        return f"SELECT {shown} FROM {inputs} WHERE {' AND '.join(where)}"


def chains(most: int = 4) -> st.SearchStrategy[Chains]:
    """Two queries or more."""
    return st.builds(Chains, st.integers(0, 2**32 - 1), counts(most), st.sampled_from([5, 3]), st.sampled_from([6, 4]))
