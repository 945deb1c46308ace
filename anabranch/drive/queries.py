"""Queries from their texts: those of a batch, bound by workers from its control record; those of results that wait; and what
a query is that goes on with the state of another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from anabranch.balance.together import restored
from anabranch.control.query_texts import QueryText, QueryTexts, identity_of, text_of
from anabranch.control.records import Control, Layout, QueryCommit
from anabranch.errors import ForeignStateError
from anabranch.place.databases.embedded import open_embedded
from anabranch.place.statement_of import placed
from anabranch.place.wishes import places_kept
from anabranch.plan.adoption import adopted
from anabranch.plan.distribution import Distribution
from anabranch.plan.query import ENGINE, Query, Stream
from anabranch.plan.workload import Workload
from anabranch.sql import Catalog, bind_query
from anabranch.storage.filesystem import Filesystem

MOST_BOUND = 256
"""A worker that has met more queries forgets the oldest, but for those of the batch that it runs."""


def bound(text: QueryText, texts: QueryTexts) -> Query:
    """The query of a text, if this release binds it to what it was; in the shape of the state that it goes on with."""
    catalog = Catalog(databases=open_embedded)
    for each in text.sources:
        source = each.source
        catalog = catalog.with_stream(source) if isinstance(source, Stream) else catalog.with_table(source)
    query = bind_query(text.name, text.sql, catalog)
    if text.base:
        query, _ = adopted(query, bound(texts.read(text.base), texts))
        query = replace(query, base=text.base)
    query = placed(query, text.places, text.database_failure)
    if identity_of(query) != text.identity:
        raise ForeignStateError(
            f"query {text.name} is another one to this release than to the one that wrote the checkpoint: use that release, "
            "on all machines"
        )
    return query


def gone_on(query: Query, own: QueryCommit, texts: QueryTexts) -> Query:
    """A query as it goes on with the state that a commit names; ForeignStateError, if it cannot.

    State has the shape of the query that first ran on it. One that is written in another way, and is not of that shape by
    itself, takes it on; what it then selects must be there. A block that no hint places goes on where it has run.
    """
    if text_of(query).state_digest == own.identity:
        return query
    written = texts.read(own.text)
    base: str = written.base or own.text
    failure = query.database_failure if query.places else written.database_failure
    query = placed(query, places_kept(query, written.places), failure)
    lacking = _moved(query, written)
    if not lacking and text_of(query).state_digest == own.identity:
        return query
    if written.sql and not lacking:
        made, lacking = adopted(query, bound(texts.read(base), texts))
        made = placed(replace(made, base=base), query.places, failure)
        if not lacking and text_of(made).state_digest == own.identity:
            return made
    texts.require(text_of(query), own.identity, own.text, lacking)
    raise AssertionError("the texts differ")


def _moved(query: Query, written: QueryText) -> tuple[str, ...]:
    """The blocks that hints want elsewhere than they ran: the state of the one place is none for the other."""
    found = []
    for name, wanted in query.hinted.items():
        before, now = written.places.get(name, ENGINE), query.places.get(name, ENGINE)
        if before != now:
            found.append(f"block {name} ran in {before}, and PLACE({wanted}) wants it in {now}: leave that hint as it was")
    return tuple(found)


class Readings:
    """A query as the texts have it that commits name: results that wait are of the query that was run then."""

    def __init__(self, query: Query, texts: QueryTexts) -> None:
        self._texts, self._known = texts, {text_of(query).digest: query}

    def __call__(self, digest: str) -> Query:
        if digest not in self._known:
            self._known[digest] = bound(self._texts.read(digest), self._texts)
        return self._known[digest]


@dataclass(frozen=True)
class BoundQueries:
    """The queries that a worker has bound, with how they are spread."""

    known: dict[tuple[str, Layout, int], tuple[Query, Distribution]] = field(default_factory=dict)

    def of(
        self, control: Control, slots: int, filesystem: Filesystem, first: Sequence[str] = ()
    ) -> Mapping[str, tuple[Query, Distribution]]:
        """The queries of a batch; `first` are names of those that are to stand first."""
        names = dict.fromkeys([*(name for name in first if name in control.queries), *control.queries])
        keys = {name: (control.queries[name].text, control.queries[name].layout, slots) for name in names}
        found = {name: self._of(key, name, filesystem) for name, key in keys.items()}
        if len(self.known) > MOST_BOUND:
            now = set(keys.values())
            for old in [key for key in self.known if key not in now][: len(self.known) - MOST_BOUND]:
                del self.known[old]
        return found

    def _of(self, key: tuple[str, Layout, int], name: str, filesystem: Filesystem) -> tuple[Query, Distribution]:
        if key not in self.known:
            text, layout, slots = key
            texts = QueryTexts(filesystem)
            query = bound(texts.read(text), texts)
            self.known[key] = query, restored(Workload((query,)), {name: layout}, slots)[name]
        return self.known[key]
