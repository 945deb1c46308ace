"""What a state holds, as a value: the same whoever asks for it, under whatever aliases and in whatever plan.

A slot keeps logs of rows, indexes over them, views of combined rows, and indexes over these. Queries, the blocks of a query
and the tracks of a migration ask for states by key, and what has one key is kept once:

- `RowsKey`: rows of a stream or table that pass some predicates and belong to the slot for some reason. Windows are no part
  of it: rows are kept as long as the longest window needs, and a lookup tells which of them are valid. Nor is that keys are
  not NULL: a row with a NULL key is in no index by that key, and what else a reader may not see it is not shown
  (`anabranch.engine.reader`). So an index serves a query that joins by one key and one that joins by two;
- `ViewKey`: all combinations of such rows that fit together. Windows matter here, and so do the streams whose watermark
  decides which rows count: queries over other streams may count other rows;
- `IndexKey`: the rows of one or the other by the hash of some terms, or in the order of one.

    SELECT … FROM s [RANGE 5 SECONDS] AS x, t [RANGE 5 SECONDS] WHERE x.k = t.k AND x.v > 3
    SELECT … FROM t [RANGE 9 SECONDS] AS u, s [RANGE 2 SECONDS]  WHERE u.k = s.k AND s.v > 3

Both look up `s by (s.k) where (s.v > 3)` and `t by (t.k)`: two indexes in all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, permutations, product
from typing import NamedTuple

from anabranch.plan.expression import Column, Expr, aliases_of, replace
from anabranch.plan.join_graph import Aliases, JoinGraph
from anabranch.plan.query import FOREVER_US, Input

DIGEST_BYTES = 8

MOST_ORDERS = 720
"""Inputs of a view that are alike are numbered in the way that gives the least text, as long as there are so many ways."""


def digest(text: str) -> str:
    """A short name for a text, for files.

    >>> digest("s by (s.k)")
    '2d5a7a5bf5e3ba3b'
    """
    return hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).hexdigest()


def streams_key(streams: Iterable[str]) -> str:
    """Some streams as one text, by which their watermark is known: queries over the same streams have the same. No name
    holds what stands between two of them (`anabranch.plan.names`), while it may hold blanks.

    >>> streams_key(["b", "a"]), streams_key(["a b"])
    ('a, b', 'a b')
    """
    return ", ".join(sorted(streams))


class Key:
    """What the keys of all states have. Keys are looked up all the time, and a text remembers its hash."""

    @cached_property
    def text(self) -> str:
        raise NotImplementedError

    @cached_property
    def digest(self) -> str:
        return digest(self.text)

    def __str__(self) -> str:
        return self.text

    def __hash__(self) -> int:
        return hash(self.text)


@dataclass(frozen=True)
class RowsKey(Key):
    """Rows of a source that pass `filters`, and that are in the slot for the reason that `members` tells."""

    source: str
    filters: tuple[str, ...] = ()
    """The predicates as texts, sorted, with the source's name in place of aliases."""
    members: tuple[str, ...] = ()
    """By what a row belongs to a cell, where the rows of a source may be there for several reasons."""
    version: int = 0
    """Of a stored table: the batch that read it."""

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.source,)

    def covers(self, other: RowsKey) -> bool:
        """Whether all rows of another key are among these.

        >>> RowsKey("s").covers(RowsKey("s", ("(s.v > 3)",)))
        True
        """
        same = (self.source, self.members, self.version) == (other.source, other.members, other.version)
        return same and set(self.filters) <= set(other.filters)

    __hash__ = Key.__hash__

    @cached_property
    def text(self) -> str:
        version = f"@{self.version}" if self.version else ""
        where = f" where {' and '.join(self.filters)}" if self.filters else ""
        return f"{self.source}{version}{where}{self._at}"

    @property
    def _at(self) -> str:
        return f" at ({', '.join(self.members)})" if self.members else ""


class Wanted(NamedTuple):
    """What some query wants of a view: what it asks of the inputs, and the first batch whose rows are its own."""

    asked: str
    since: int = 0

    def __str__(self) -> str:
        return f"{self.asked}{_since(self.since)}"


def _since(batch: int) -> str:
    return f" since {batch}" if batch else ""


@dataclass(frozen=True)
class ViewKey(Key):
    """All combinations of rows that are valid together and fulfil `conditions`. Inputs are numbered, `#0` the first."""

    inputs: tuple[tuple[RowsKey, int], ...]
    """The rows of each input, and the length of its window in microseconds."""
    conditions: tuple[str, ...]
    accepted_by: tuple[str, ...] = ()
    """The streams whose watermark decides which rows count."""
    owner: str = ""
    """A query whose selects stand above a join (`anabranch.plan.selects`), or whose groups are on their way, has its views
    for itself, and the second of two views that hold the same."""
    since: int = 0
    """A view of a parallel track has only combinations of rows that came in this batch or later."""
    wanted: tuple[Wanted, ...] = ()
    """A view of a shared join has only combinations that some member wants (`SharedJoin.wanted`); nothing: all."""
    came: int = 0
    """The first batch whose rows count: the query that keeps the view came in it, while others ran."""

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """The source of each input."""
        return tuple(rows.source for rows, _ in self.inputs)

    __hash__ = Key.__hash__

    @cached_property
    def text(self) -> str:
        rows = ", ".join(f"{key} [{'' if us == FOREVER_US else us}]" for key, us in self.inputs)
        where = f" where {' and '.join(self.conditions)}" if self.conditions else ""
        accepted = f" accepted by ({', '.join(self.accepted_by)})" if self.accepted_by else ""
        owner = f" of {self.owner}" if self.owner else ""
        wanted = f" wanted by ({' or '.join(map(str, self.wanted))})" if self.wanted else ""
        came = f" from batch {self.came} on" if self.came else ""
        return f"({rows}){where}{accepted}{owner}{_since(self.since)}{wanted}{came}"


@dataclass(frozen=True)
class IndexKey(Key):
    """Rows by the hash of some terms; or in the order of the last, among rows with one hash of the others."""

    rows: RowsKey | ViewKey
    terms: tuple[str, ...]
    is_ordered: bool = False
    before: tuple[str, ...] = ()
    """Selects of the inputs of a view that its rows have not passed yet."""

    __hash__ = Key.__hash__

    @cached_property
    def text(self) -> str:
        by = f"{'ordered by' if self.is_ordered else 'by'} ({', '.join(self.terms)})"
        if isinstance(self.rows, ViewKey):
            return f"{self.rows} {by}" + (f" before {' and '.join(self.before)}" if self.before else "")
        rows = self.rows
        where = f" where {' and '.join(rows.filters)}" if rows.filters else ""
        return f"{RowsKey(rows.source, (), (), rows.version)} {by}{where}{rows._at}"

    @cached_property
    def phase(self) -> int:
        """Spines take turns with their merges (`anabranch.engine.spine.due_merges`): by what they hold, not by who asked
        first, so that a slot merges the same wherever it runs."""
        return int(self.digest[:8], 16)


def named(expr: Expr, name: str) -> str:
    """An expression over one input as a text, with a name in place of the alias."""
    return str(replace(expr, lambda e: Column(e.type, name, e.name) if isinstance(e, Column) else e))


def view_key(
    graph: JoinGraph,
    aliases: Aliases,
    rows: Mapping[str, RowsKey],
    windows_us: Mapping[str, int],
    accepted_by: Iterable[str],
    owner: str = "",
    since: int = 0,
    wanted: Callable[[Aliases], tuple[Wanted, ...]] | None = None,
    came: int = 0,
) -> tuple[ViewKey, Aliases]:
    """The key of a view over some inputs of a query, and the inputs in the order in which the key numbers them. `wanted`
    tells which combinations of inputs are kept, if not all are."""
    inside = set(aliases)
    equal = [[t for t in terms if aliases_of(t) <= inside] for terms in graph.classes]
    residuals = graph.decided_in(inside)

    def conditions(order: Aliases) -> tuple[str, ...]:
        number = {alias: f"#{place}" for place, alias in enumerate(order)}
        classes = (" = ".join(sorted(_numbered(t, number) for t in terms)) for terms in equal if len(terms) > 1)
        return tuple(sorted({*classes, *(_numbered(r, number) for r in residuals)}))

    def alike(alias: str) -> tuple[str, int]:
        return rows[alias].text, windows_us[alias]

    least, order = min((conditions(order), order) for order in _orders(aliases, alike))
    inputs = tuple((rows[alias], windows_us[alias]) for alias in order)
    only = wanted(order) if wanted is not None else ()
    return ViewKey(inputs, least, tuple(sorted(accepted_by)), owner, since, only, came), order


def view_terms(terms: Iterable[Expr], order: Aliases) -> tuple[str, ...]:
    """Terms over the inputs of a view, as its indexes name them."""
    number = {alias: f"#{place}" for place, alias in enumerate(order)}
    return tuple(_numbered(term, number) for term in terms)


def _orders(aliases: Aliases, alike: Callable[[str], tuple[str, int]]) -> Iterator[Aliases]:
    """The orders in which the inputs of a view may be numbered: only those that are alike may change places."""
    groups = [list(group) for _, group in groupby(sorted(aliases, key=alike), key=alike)]
    count = 1
    for group in groups:
        for factor in range(2, len(group) + 1):
            count *= factor
    ways = product(*(permutations(g) for g in groups)) if count <= MOST_ORDERS else iter([tuple(map(tuple, groups))])
    for way in ways:
        yield tuple(alias for group in way for alias in group)


def _numbered(expr: Expr, number: Mapping[str, str]) -> str:
    return str(replace(expr, lambda e: Column(e.type, number[e.alias], e.name) if isinstance(e, Column) else e))


def input_rows(i: Input, filters: Iterable[Expr], members: Iterable[str] = (), version: int = 0) -> RowsKey:
    """The rows of an input that pass some predicates."""
    texts = tuple(sorted({named(f, i.source.name) for f in filters}))
    return RowsKey(i.source.name, texts, tuple(members), version)
