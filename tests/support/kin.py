"""Queries that join the same streams by the same keys, as data: what they differ in decides whose a combination is.

They differ in aliases, in windows by stream, in filters, in further predicates, in what they select, in whether they group,
and some in the order of FROM, or in the sides of a comparison.
"""

from __future__ import annotations

from itertools import pairwise

from hypothesis import strategies as st

from tests.support.workloads import STREAMS, Workload, counts

JOINS = ("{p}.k = {q}.k", "{p}.j = {q}.k", "{p}.k = {q}.k AND {p}.j = {q}.j", "{p}.s = {q}.s")
ALSO = ("{p}.x < {q}.x + 3", "{p}.x <> {q}.x", "{p}.x + {q}.x > 6", "RESULT_TIME > TIMESTAMP '1970-01-01'")
FILTERS = ("{p}.x > 3", "{p}.x > 5", "{p}.x < 7", "{p}.s = 'u'", "{p}.x % 2 = 0", "{p}.j IS NOT NULL", "{p}.x > 8")
WINDOWS = ("RANGE 1 SECOND", "RANGE 2 SECONDS", "RANGE 3 SECONDS", "RANGE 5 SECONDS", "NOW", "RANGE 2500 MILLISECONDS")
MIRRORED = {" = ": " = ", " < ": " > "}


class Kin(Workload):
    """So many queries with one join, over two or three of three streams."""

    def _query(self, number: int) -> str:
        join, rng = self.rng("join"), self.rng("member", number)
        count = int(join.integers(2, 4))
        sources = [str(join.choice(list(STREAMS))) for _ in range(count)]
        keys = [str(join.choice(JOINS)) for _ in range(count - 1)]
        common = [str(join.choice(ALSO)) for _ in range(count - 1) if join.integers(3) == 0]
        is_even = bool(join.integers(2))
        aliases = [f"{'mnop'[int(rng.integers(4))]}{place}" for place in range(count)]
        window = str(rng.choice(WINDOWS))
        inputs = []
        for source, alias in zip(sources, aliases, strict=True):
            own = window if is_even else str(rng.choice([*WINDOWS, *(["UNBOUNDED"] if count < 3 else [])]))
            inputs.append(f"{source} [{own}] AS {alias}")
        if rng.integers(5) == 0:
            inputs.reverse()
        pairs = [*pairwise(aliases)]
        where = [key.format(p=p, q=q) for key, (p, q) in zip(keys, pairs, strict=True)]
        where += [also.format(p=pairs[0][0], q=pairs[0][1]) for also in common]
        if rng.integers(3) == 0:
            where.append(str(rng.choice(ALSO)).format(p=aliases[-1], q=aliases[-2]))
        where += [str(rng.choice(FILTERS)).format(p=a) for a in aliases for _ in range(2) if rng.integers(4) == 0]
        if rng.integers(2):
            where = [mirrored(each) for each in where]
        if rng.integers(4) == 0:
            key = f"{aliases[-1]}.k"
            select, tail = f"{key}, COUNT(*) AS n, SUM({aliases[0]}.x) AS y", f" GROUP BY {key}"
        else:
            columns = [f"{a}.{c} AS {c}{place}" for place, a in enumerate(aliases) for c in "xs" if rng.integers(3)]
            select, tail = ", ".join(columns) or "RESULT_TIME AS t", ""
        return f"SELECT {select} FROM {', '.join(inputs)} WHERE {' AND '.join(where)}{tail}"


def mirrored(predicate: str) -> str:
    """A comparison with its sides exchanged, if it is one of two columns."""
    for sign, other in MIRRORED.items():
        left, found, right = predicate.partition(sign)
        if found and " " not in left and " " not in right:
            return f"{right}{other}{left}"
    return predicate


def kin(most: int = 12) -> st.SearchStrategy[Kin]:
    """Two queries or more."""
    return st.builds(Kin, st.integers(0, 2**32 - 1), counts(most), st.sampled_from([6, 3, 12]))


