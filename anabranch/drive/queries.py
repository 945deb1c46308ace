"""The queries of a batch, from its control record: bound again from their texts, and spread as the record says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from anabranch.balance.together import restored
from anabranch.control.query_texts import QueryText, QueryTexts, identity_of
from anabranch.control.records import Control, Layout
from anabranch.errors import ForeignStateError
from anabranch.plan.distribution import Distribution
from anabranch.plan.query import Query, Stream
from anabranch.plan.workload import Workload
from anabranch.sql import Catalog, bind_query
from anabranch.storage.filesystem import Filesystem

MOST_BOUND = 256
"""A worker that has met more queries forgets the oldest."""


def bound(text: QueryText) -> Query:
    """The query of a text, if this release binds it to what it was."""
    catalog = Catalog()
    for each in text.sources:
        source = each.source
        catalog = catalog.with_stream(source) if isinstance(source, Stream) else catalog.with_table(source)
    query = bind_query(text.name, text.sql, catalog)
    if identity_of(query) != text.identity:
        raise ForeignStateError(
            f"query {text.name} is another one to this release than to the one that wrote the checkpoint: use that release, "
            "on all machines"
        )
    return query


@dataclass(frozen=True)
class BoundQueries:
    """The queries that a worker has bound, with how they are spread."""

    known: dict[tuple[str, Layout, int], tuple[Query, Distribution]] = field(default_factory=dict)

    def of(
        self, control: Control, slots: int, filesystem: Filesystem, first: Sequence[str] = ()
    ) -> Mapping[str, tuple[Query, Distribution]]:
        """The queries of a batch; `first` are names of those that are to stand first."""
        names = [*(name for name in first if name in control.queries), *(n for n in control.queries if n not in first)]
        return {name: self._of(control, name, slots, filesystem) for name in names}

    def _of(self, control: Control, name: str, slots: int, filesystem: Filesystem) -> tuple[Query, Distribution]:
        own = control.queries[name]
        key = own.text, own.layout, slots
        if key not in self.known:
            if len(self.known) >= MOST_BOUND:
                del self.known[next(iter(self.known))]
            query = bound(QueryTexts(filesystem).read(own.text))
            self.known[key] = query, restored(Workload((query,)), {name: own.layout}, slots)[name]
        return self.known[key]
