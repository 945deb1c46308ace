"""The queries that run together, and which of them should."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from anabranch.plan.query import Query, Stream, Table


@dataclass(frozen=True)
class Workload:
    """Queries over the same batches of rows."""

    queries: tuple[Query, ...]

    @cached_property
    def sources(self) -> dict[str, Stream | Table]:
        """The streams and tables that some query reads, in the order in which queries name them."""
        return {source.name: source for query in self.queries for source in query.base_sources}

    @cached_property
    def streams(self) -> dict[str, Stream]:
        return {name: source for name, source in self.sources.items() if isinstance(source, Stream)}

    def readers(self, source: str) -> list[Query]:
        """The queries that read a source."""
        return [query for query in self.queries if any(s.name == source for s in query.base_sources)]


def connected(queries: Sequence[Query]) -> list[Workload]:
    """The queries in groups that share no stream, in the order of their first queries. (A stored table connects nothing: it
    has no batches.)

    Two queries over `trades` and one over `clicks` are two groups; a query that joins both would make one of all.
    """
    groups: list[tuple[set[str], list[Query]]] = []
    for query in queries:
        streams, members = {s.name for s in query.base_sources if isinstance(s, Stream)}, [query]
        for group in [g for g in groups if g[0] & streams]:
            groups.remove(group)
            streams, members = streams | group[0], group[1] + members
        groups.append((streams, members))
    order = {query.name: place for place, query in enumerate(queries)}
    made = [Workload(tuple(sorted(members, key=lambda q: order[q.name]))) for _, members in groups]
    return sorted(made, key=lambda workload: order[workload.queries[0].name])
