"""How to spread queries that run together: over the same slots, and by the same grid where their keys allow it.

A row crosses the exchange once for each slot that wants it for any query. Queries that spread a stream in the same *way*
(`anabranch.plan.distribution.way_of`) want its rows in the same slots, and share what is stored and indexed there. So grids
are chosen for all queries together: query after query takes the grid that adds the fewest copies of rows to what the others
need, and once more when all have one, until nothing changes.

Example: q1 joins a and b by k, q2 joins b and c by j, q3 joins a, b and c by k and by j. Alone, q3 over four slots would
have a grid of two times two. Beside q1 it is better off by k: rows of a and b cross once, and those of c go to every slot.

A query whose join is contained in a larger one may take the grid of that one, as far as its own streams go
(`anabranch.plan.grid.Grid.part_of`): then no row crosses for its sake, and both can run one join. Of two grids that add as
few copies it takes one whose ways are all there already.

A query that needs no exchange by itself (one stream, no groups) takes part in the exchange of a stream that others have
exchanged anyway, by a grid over a column: of the copies of a row it takes the one in its cell, so that no copy has to be
numbered. It runs apart if most rows would cross for its sake alone: if all others filter the stream. Queries that run apart
for this reason run together, as far as streams connect them: nothing crosses for any of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import pyarrow as pa

from anabranch.balance.layout import layout_of, layout_text
from anabranch.balance.partition import choose_distribution, needs_exchange
from anabranch.balance.shares import grids, is_routable
from anabranch.control.records import Layout
from anabranch.errors import StateError
from anabranch.plan.contained import ways_into
from anabranch.plan.demand import source_filters
from anabranch.plan.distribution import Distribution, all_inputs, renamed, way_of
from anabranch.plan.expression import Call, Column, Expr, aliases_of, columns_of
from anabranch.plan.grid import FIXED, Dimension, Grid
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.lookups import reads_found
from anabranch.plan.overload import Overload
from anabranch.plan.query import Input, Query, Stream
from anabranch.plan.workload import Workload, connected

MOST_CANDIDATES = 32
"""So many grids of a query are looked at, the best of its own first."""
ROUNDS = 3
"""How often each query may choose again."""
WIDER = (pa.int16(), pa.int32(), pa.int64(), pa.float64())
"""The types that keys are widened to, to be compared."""


def pipelines_of(
    queries: Sequence[Query], alone: Collection[str] = (), overloads: Mapping[str, Overload] | None = None
) -> list[Workload]:
    """Which queries run together: those that streams connect and that do the same under overload (`overloads`, by query),
    but for some that are to run alone."""
    alike: list[tuple[Overload | None, list[Query]]] = []
    for query in queries:
        own = (overloads or {}).get(query.name)
        group = next((members for known, members in alike if known == own), None)
        if group is None:
            alike.append((own, [query]))
        else:
            group.append(query)
    found = [workload for _, members in alike for workload in _of_one_policy(members, alone)]
    order = {query.name: place for place, query in enumerate(queries)}
    return sorted(found, key=lambda workload: order[workload.queries[0].name])


def _of_one_policy(queries: Sequence[Query], alone: Collection[str]) -> list[Workload]:
    found = []
    for workload in connected([query for query in queries if query.name not in alone]):
        exchanged = tuple(query for query in workload.queries if needs_exchange(query))
        apart = [query for query in workload.queries if _crosses_for_itself(query, exchanged)]
        found += connected(apart)
        together = [query for query in workload.queries if query not in apart]
        found += connected(together) if together else []
    return [*found, *(Workload((query,)) for query in queries if query.name in alone)]


def _crosses_for_itself(query: Query, exchanged: tuple[Query, ...]) -> bool:
    """Whether rows would cross the exchange for the sake of a query alone that needs none by itself. `exchanged` are the
    queries whose rows must cross anyway."""
    if not exchanged or needs_exchange(query):
        return False
    (stream,) = [source.name for source in query.base_sources if isinstance(source, Stream)]
    others = Workload(exchanged)
    filtered = source_filters(others)
    if stream not in filtered:
        return not others.readers(stream)
    return len(source_filters(Workload((*exchanged, query))).get(stream, ())) != len(filtered[stream])


def choose_together(workload: Workload, slots: int, may_skip_exchange: bool = True) -> dict[str, Distribution]:
    """How to spread each query over so many slots; `may_skip_exchange`: stored tables are small enough for each to have
    all."""
    alone = {query.name: choose_distribution(query, slots, may_skip_exchange) for query in workload.queries}
    if len(workload.queries) == 1 or all(each.needs_no_exchange for each in alone.values()):
        return alone
    candidates = {}
    for query in workload.queries:
        inputs = all_inputs(query)
        candidates[query.name] = [(each, _ways(inputs, each.grid)) for each in _candidates(query, slots, workload)]
    copies, chosen = _Copies(slots), dict[str, tuple[Distribution, Ways]]()
    queries, larger = {query.name: query for query in workload.queries}, _larger(workload.queries)
    for _ in range(ROUNDS):
        before = dict(chosen)
        # Queries with few grids to choose from come first, and have the others follow them.
        for name in sorted(candidates, key=lambda name: len(candidates[name])):
            if name in chosen:
                copies.remove(chosen[name][1])
            known = [(chosen[other][0], names) for other, names in larger[name] if other in chosen]
            parts = _parts(queries[name], known)
            options = [*candidates[name], *((each, _ways(all_inputs(queries[name]), each.grid)) for each in parts)]
            chosen[name] = min(options, key=lambda one: (copies.more(one[1]), not copies.has(one[1])))
            copies.add(chosen[name][1])
        if chosen == before:
            break
    return {name: chosen[name][0] for name in candidates}


def join_others(query: Query, running: Mapping[str, tuple[Query, Distribution]], slots: int) -> Distribution:
    """How to spread a query that comes while others run: these stay as they are spread."""
    if all(each.needs_no_exchange for _, each in running.values()):
        return choose_distribution(query, slots)
    copies, workload = _Copies(slots), Workload((*(other for other, _ in running.values()), query))
    for other, distribution in running.values():
        copies.add(_ways(all_inputs(other), distribution.grid))
    inputs, larger = all_inputs(query), _larger(workload.queries)[query.name]
    options = [*_candidates(query, slots, workload), *_parts(query, [(running[other][1], names) for other, names in larger])]

    def more(each: Distribution) -> tuple[int, bool]:
        ways = _ways(inputs, each.grid)
        return copies.more(ways), not copies.has(ways)

    return min(options, key=more)


def _larger(queries: Sequence[Query]) -> dict[str, list[tuple[str, dict[str, str]]]]:
    """For each query those whose joins contain its own and have more inputs, and what it calls these. A query that groups
    is spread by its groups."""
    found: dict[str, list[tuple[str, dict[str, str]]]] = {query.name: [] for query in queries}
    for query in queries:
        if len(query.blocks) > 1 or len(query.inputs) < 2 or query.grouping is not None:
            continue
        for other in queries:
            if len(other.blocks) == 1 and len(other.inputs) > len(query.inputs):
                ways = ({there: here for here, there in way.items()} for way in ways_into(query, other))
                found[query.name] += [(other.name, names) for names in ways]
    return found


def _parts(query: Query, larger: Iterable[tuple[Distribution, Mapping[str, str]]]) -> list[Distribution]:
    """How a query may be spread that is contained in others, by how these are: as far as it reads what that takes, for the
    others may go."""
    read = {(i.alias, column) for i in query.inputs for column in query.needed_columns(i.alias)}
    found: dict[Grid, None] = {}
    for each, names in larger:
        grid = each.grid.part_of(names)
        columns = {(c.alias, c.name) for d in grid.dimensions for term in d.terms for c in columns_of(term)}
        if columns and columns <= read and not each.needs_no_exchange:
            found[grid] = None
    return [Distribution(grid) for grid in found]


Ways = tuple[tuple[str, tuple[object, ...], int], ...]
"""For each input its source, what decides where its rows go, and to how many slots a row goes."""


def _ways(inputs: Query, grid: Grid) -> Ways:
    return tuple((i.source.name, way_of(grid, i.alias), len(grid.offsets(i.alias))) for i in inputs.inputs)


class _Copies:
    """To how many slots a row of each source goes at most, for the sake of some queries."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._ways: dict[str, dict[tuple[object, ...], Counter[int]]] = {}

    def add(self, ways: Ways) -> None:
        for source, way, copies in ways:
            self._ways.setdefault(source, {}).setdefault(way, Counter())[copies] += 1

    def remove(self, ways: Ways) -> None:
        for source, way, copies in ways:
            known = self._ways[source][way]
            known[copies] -= 1
            if not known[copies]:
                del known[copies]
            if not known:
                del self._ways[source][way]

    def more(self, ways: Ways) -> int:
        """How many slots more rows of all sources would go to for the sake of another query."""
        own: dict[str, dict[tuple[object, ...], int]] = {}
        for source, way, copies in ways:
            own.setdefault(source, {})[way] = max(copies, own.get(source, {}).get(way, 0))
        found = 0
        for source, added in own.items():
            known = {way: max(counts) for way, counts in self._ways.get(source, {}).items()}
            together = {way: max(known.get(way, 0), added.get(way, 0)) for way in known.keys() | added.keys()}
            found += min(self.slots, sum(together.values())) - min(self.slots, sum(known.values()))
        return found


    def has(self, ways: Ways) -> bool:
        """Whether rows go all the ways of another query for the sake of some."""
        return all(way in self._ways.get(source, {}) for source, way, _ in ways)


def _candidates(query: Query, slots: int, workload: Workload) -> list[Distribution]:
    """How a query may be spread, the best for itself first."""
    own = choose_distribution(query, slots, may_skip_exchange=False)
    is_spread_by_groups = query.grouping is not None and not own.groups_span_slots
    if slots == 1 or len(query.blocks) > 1 or is_spread_by_groups:
        return [own]
    if query.grouping is not None:
        every = grids(JoinGraph(query), slots)[:MOST_CANDIDATES]
        return list(dict.fromkeys([own, *(Distribution(grid, groups_span_slots=True) for grid in every)]))
    found = [own, *(Distribution(grid) for grid in _by_columns(query, slots, workload))]
    found += [Distribution(grid) for grid in grids(JoinGraph(query), slots)[:MOST_CANDIDATES]]
    return list(dict.fromkeys(found))


def _by_columns(query: Query, slots: int, workload: Workload) -> list[Grid]:
    """A query over one input may be spread by any column: by those that others join the stream by."""
    if len(query.inputs) > 1:
        return []
    (own,) = query.inputs
    terms: dict[Expr, None] = {}
    for other in workload.queries:
        for block in other.blocks:
            for i in block.inputs if other is not query else ():
                if i.source == own.source:
                    classes = JoinGraph(block).classes
                    routed = (t for c in classes for t in c if is_routable(t) and not reads_found(block, t))
                    mine = [t for t in routed if i.alias in aliases_of(t)]
                    terms |= dict.fromkeys(renamed(term, own.alias) for term in mine)
    return [Grid((Dimension((term,)),), (slots,)) for term in terms]


def restored(workload: Workload, layouts: Mapping[str, Layout], slots: int) -> dict[str, Distribution]:
    """How queries are spread, by what a commit says: as they were when the pipeline first started. The others of that time
    may be gone."""
    found = {}
    for query in workload.queries:
        wanted = layouts[query.name]
        every = [choose_distribution(query, slots), *_candidates(query, slots, workload), *_every_column(query, slots)]
        same = next((each for each in every if layout_of(each) == wanted), None) or _by_text(query, wanted, slots)
        if same is None:
            raise StateError(
                f"the checkpoint has {len(wanted.slots)} slots over {layout_text(wanted)} for query {query.name}, this run "
                f"{slots}: start it with the same number of slots"
            )
        found[query.name] = same
    return found


def _by_text(query: Query, wanted: Layout, slots: int) -> Distribution | None:
    """A query as it is spread by the grid of a larger join, which may be gone, by what a commit says of that; None if it
    cannot be so."""
    if len(query.blocks) > 1 or len(query.inputs) < 2 or query.grouping is not None or len(wanted.slots) != slots:
        return None
    terms = {str(term): term for i in query.inputs for term in _terms(i)}
    dimensions: list[Dimension] = []
    for text in wanted.dimensions:
        rows_of = text.removeprefix("rows of ")
        if text == FIXED:
            dimensions.append(Dimension((), is_fixed=True))
        elif rows_of != text and rows_of in query.aliases:
            dimensions.append(Dimension((), rows_of))
        elif all(part in terms for part in text.split(" = ")):
            dimensions.append(Dimension(tuple(terms[part] for part in text.split(" = "))))
    found = Distribution(Grid(tuple(dimensions), tuple(wanted.shares)))
    return found if len(dimensions) == len(wanted.shares) and layout_of(found) == wanted else None


def _every_column(query: Query, slots: int) -> list[Distribution]:
    if len(query.inputs) > 1 or slots == 1:
        return []
    (own,) = query.inputs
    return [Distribution(Grid((Dimension((term,)),), (slots,))) for term in _terms(own)]


def _terms(i: Input) -> list[Expr]:
    """What rows of an input may be spread by: a column, or a column as it is compared with a wider one."""
    columns = [Column(f.type, i.alias, f.name) for f in i.source.shown_fields]
    widened = [Call(type, "cast", (column,)) for column in columns for type in WIDER if type != column.type]
    return [term for term in (*columns, *widened) if is_routable(term)]
