"""The operators of a bound query of ours (004, section 2.1): windows are the leaves, what emits is the root.

By block, from below: the filters of an input are a SELECT; all joins of the block are one JOIN, with the predicates over
several inputs, for in the engine they are one box whose plan `anabranch.optimize` chooses; GROUP BY is an AGGREGATE, HAVING
a SELECT above it, and a select list without groups a PROJECT. What stands directly on a stream stays with its source, where
the engine filters rows before they are stored (push-down). So

    SELECT f.plug, f.mean FROM (SELECT plug, AVG(load) AS mean FROM plugs [RANGE 5 MINUTES] WHERE load > 0 GROUP BY plug) f
    JOIN … o ON f.plug = o.plug

is PROJECT(JOIN(AGGREGATE(SELECT(plugs)), …)). An operator is named by what it does and by the aliases that lead to it:
"AGGREGATE f", "SELECT f.plugs".

A block goes to a database as a whole, or not at all: its JOIN, AGGREGATE and HAVING are one statement
(`anabranch.place.statement_of`), at the instants that it slides by. It does not go there

- with a sum or mean of floats that is more than shown: no database sums floats as the engine does, and a predicate, a key or
  ROUND would tell the difference. What is only shown is the same within the tolerance of results, and so is the MAX of it;
- with a stored table, unless a hint places it: whether that is read again is known where the block is declared
  (`anabranch.place.wishes`). A table that is looked up in a database is there already when the block is run, as columns of a
  stream (`anabranch.plan.lookups`);
- while the size of what it gives or joins is assumed, so that its price is (`Operator.assumed`), unless a hint places it: a
  cost that was never measured is not trusted (`anabranch.place.choice`). Of keys that nobody told anything of there would be
  as many groups as rows, which the engine would have to hand out at every instant;
- without groups, unless a hint of its own places it: a join gives results when rows come, and is asked for in each batch.

A block in the words of a database runs nowhere else.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from anabranch.cost.facts import EMPTY, Given
from anabranch.cost.model import UnitCosts
from anabranch.cost.streams import Basis, StreamGraph
from anabranch.place.capabilities import Abilities
from anabranch.place.cost import EngineCosts, size_of
from anabranch.place.operators import ANYWHERE, Kind, Operator, Place, Window, time_slides
from anabranch.plan.expression import Column, Expr, ResultTime, aliases_of, columns_of
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.query import ENGINE, GROUP, Aggregate, Derived, Grouping, Input, Query, Stream
from anabranch.plan.statement import VALID

IN_ENGINE, IN_DATABASE = frozenset({Place.ENGINE}), frozenset({Place.DATABASE})

AT_SOURCE = "rows are filtered before they are stored"

INEXACT = frozenset({"sum", "avg", "stddev"})
"""The aggregates whose value over floats depends on how they are computed."""

TOLERANT = frozenset({"sum", "avg", "min", "max", "count"})
"""The aggregates whose value is nearly the same if that of each row is."""

UNASKED = "there is no database that runs blocks"

BATCHES_PER_S = 1.0
"""How often joins without groups give results: once a batch."""


NOTHING = Abilities(lambda _: UNASKED, lambda *_: UNASKED)
"""Of a database that was never asked."""


def operators_of(query: Query, facts: Given = EMPTY, abilities: Abilities = NOTHING) -> Operator:
    """The tree of a query. Rates, selectivities and groups follow from facts; what a database may run, from its
    abilities."""
    root = _Block(query, facts, abilities, (), place=query.place).root()
    return _wished(root, query.place) if query.place is not None else root


@dataclass(frozen=True)
class _Where:
    """Where the operators of a block run: all of them together."""

    places: frozenset[Place]
    block: str | None
    why_engine: str = ""

    def operator(
        self, name: str, kind: Kind, inputs: tuple[Operator | Window, ...], selectivity: float = 1.0, groups: float = 0.0,
        assumed: str = "",
    ) -> Operator:  # fmt: skip
        return Operator(name, kind, inputs, selectivity, groups, self.places, self.block, self.why_engine, assumed)


@dataclass(frozen=True)
class _Block:
    """One block of a query, and the aliases that lead to it."""

    query: Query
    facts: Given
    abilities: Abilities
    path: tuple[str, ...]
    is_read_exactly: bool = False
    """Whether a predicate, key or aggregate above reads sums of floats that the block makes."""
    place: str | None = None
    """Where a hint wants the block."""

    def root(self) -> Operator:
        query = self.query
        inputs = {i.alias: self._input(i) for i in query.inputs}
        where, known = self._where(), self._known(inputs)
        rows = next(iter(inputs.values())) if len(inputs) == 1 else self._join(inputs, known, where)
        if query.grouping is None:
            return where.operator(self._name("PROJECT"), Kind.PROJECT, (rows,))
        return self._groups(query.grouping, rows, known, where)

    def _where(self) -> _Where:
        """Where the operators of the block may run that are not at a stream."""
        query, grouping = self.query, self.query.grouping
        if grouping is None and (query.place in (None, ENGINE) or self.path):
            return _Where(IN_ENGINE, None, "a block without groups goes to a database by a hint of its own alone")
        if query.may_ask is not None and not query.may_ask.is_printed:
            return _Where(IN_DATABASE, query.name)
        why = next(self._why_not(), "")
        return _Where(IN_ENGINE if why else ANYWHERE, query.name, why)

    def _why_not(self) -> Iterator[str]:
        """What speaks against a database for a block."""
        query, grouping = self.query, self.query.grouping
        for i in query.inputs:
            if not isinstance(i.source, Stream) and self.place in (None, ENGINE):
                yield f"it joins the stored table {i.source.name}: a hint alone places it"
            if any(f.name.lower() in VALID for f in i.source.fields):
                yield f"a column of {i.alias} is called as those of its validity are there"
        exprs = [side for e in query.equalities for side in (e.left, e.right)] + [*query.residuals]
        if grouping is None:
            exprs += [expr for _, expr in query.select if not isinstance(expr, ResultTime)]
            yield from self._why_not_joined()
        else:
            given = (*query.select[: grouping.keys], *grouping.select)
            exprs += [expr for _, expr in given if not isinstance(expr, ResultTime)]
            exprs += [] if grouping.having is None else [grouping.having]
            yield from self._why_not_grouped(grouping)
        yield from filter(None, map(self.abilities.why_not_computed, exprs))

    def _why_not_joined(self) -> Iterator[str]:
        """What speaks against it for a join without groups."""
        if len(self.query.inputs) < 2:
            yield "rows of one stream meet no others"
        for i in self.query.inputs:
            if i.freshness_us is not None:
                yield f"the rows of {i.alias} have to be fresh"

    def _why_not_grouped(self, grouping: Grouping) -> Iterator[str]:
        """What speaks against it for a block with groups."""
        columns = [expr for _, expr in self.query.select]
        for a in grouping.aggregates:
            if why := self.abilities.why_not_aggregated(a, None if a.argument is None else columns[a.argument]):
                yield why
        shown = [expr for _, expr in grouping.select]
        having = () if grouping.having is None else (grouping.having,)
        read = {c.name for expr in (*having, *_more_than_shown(shown)) for c in columns_of(expr)}
        for n, a in enumerate(grouping.aggregates):
            if self._is_inexact(a) and (self.is_read_exactly or f"agg{n}" in read):
                yield f"{a.function.upper()} of floats is more than shown, and no database sums them as the engine does"

    def _input(self, i: Input) -> Operator | Window:
        path = (*self.path, i.alias)
        found: Operator | Window
        if isinstance(i.source, Derived) and i.source.query is not None:
            exact = self.is_read_exactly or self._reads_exactly(i)
            below = replace(self, query=i.source.query, path=path, is_read_exactly=exact, place=i.place)
            found = _wished(below.root(), i.place)
        else:
            found = self._window(i)
        if not i.filters:
            return found
        return Operator(
            self._name("SELECT", i.alias), Kind.SELECT, (found,), places=IN_ENGINE, why_engine=AT_SOURCE
        )  # fmt: skip

    def _window(self, i: Input) -> Window:
        graph = self.facts.graph(JoinGraph(self.query))
        stream = graph.streams[graph.names.index(i.alias)]
        is_stream = isinstance(i.source, Stream)
        return Window(".".join((*self.path, i.alias)), stream.rate, stream.rows, self._slides if is_stream else 0.0)

    @property
    def _slides(self) -> float:
        grouping = self.query.grouping
        return BATCHES_PER_S if grouping is None else time_slides(grouping.slide_us / 1e6)

    def _join(self, inputs: dict[str, Operator | Window], known: Given, where: _Where) -> Operator:
        joined = JoinGraph(self.query)
        graph = known.graph(joined)
        share, assumed = min(1.0, graph.selectivity(graph.everything)), self._unknown_of_join(joined, graph, known)
        return where.operator(
            self._name("JOIN"), Kind.JOIN, tuple(inputs.values()), selectivity=share, assumed=assumed
        )  # fmt: skip

    def _unknown_of_join(self, joined: JoinGraph, graph: StreamGraph, known: Given) -> str:
        """What nobody knows of how many rows meet."""
        meets = "how many rows meet is not known, and is counted while the engine joins them"
        if not graph.classes:
            return f"{meets}: no key says it"
        usable = [terms for terms in joined.classes if len({a for t in terms for a in aliases_of(t)}) > 1]
        for terms, key in zip(usable, graph.classes, strict=True):
            if key.basis is Basis.ASSUMED:
                told = {name for name in known.distinct if name not in known.estimated}
                return f"{meets}, or say {_to_say(next(str(t) for t in terms if str(t) not in told))}"
        if self.query.residuals and self.query.name not in known.passing:
            predicates = " AND ".join(map(str, self.query.residuals))
            return f"{meets}: which share of them passes {predicates} is not"
        return ""

    def _known(self, inputs: dict[str, Operator | Window]) -> Given:
        """The facts, and what the operators of subqueries give: a key of groups has as many values as there are groups."""
        rates, distinct, assumed = dict(self.facts.rates), dict(self.facts.distinct), set(self.facts.estimated)
        for i in self.query.inputs:
            operator = inputs[i.alias]
            if isinstance(i.source, Derived) and isinstance(operator, Operator):
                size = size_of(operator)
                rates.setdefault(i.source.name, size.rate_per_s)
                column = _only_key(i.source.query)
                if column is not None and ((key := f"{i.alias}.{column}") not in distinct or key in assumed):
                    distinct[key] = max(1.0, size.rows)
                    assumed = assumed | {key} if operator.assumptions else assumed - {key}
        return replace(self.facts, rates=rates, distinct=distinct, estimated=frozenset(assumed))

    def _groups(self, grouping: Grouping, rows: Operator | Window, known: Given, where: _Where) -> Operator:
        most = max(size_of(rows).rows, 1.0)
        count, assumed = known.groups.get(self.query.name), ""
        if count is None:
            count, assumed = self._groups_of(grouping, most, known)
        groups = where.operator(
            self._name("AGGREGATE"), Kind.AGGREGATE, (rows,), groups=min(count, most), assumed=assumed
        )  # fmt: skip
        if grouping.having is None:
            return groups
        return where.operator(self._name("HAVING"), Kind.SELECT, (groups,))

    def _groups_of(self, grouping: Grouping, rows: float, known: Given) -> tuple[float, str]:
        """How many groups there are at an instant: as many as combinations of keys; of a key of which nothing is known as
        many as rows, and what nobody knows of that."""
        groups, unknown, classes = 1.0, list[str](), JoinGraph(self.query).classes
        for _, expr in self.query.select[: grouping.keys]:
            if not columns_of(expr):
                continue
            alike = next((map(str, terms) for terms in classes if expr in terms), iter((str(expr),)))
            told = [known.distinct[term] for term in alike if term in known.distinct and term not in known.estimated]
            if not told:
                unknown.append(str(expr))
            groups *= min(told, default=max(1.0, known.distinct.get(str(expr), rows)))
        if not unknown:
            return groups, ""
        said = " ".join(map(_to_say, unknown))
        return groups, f"the number of groups is not known: it is counted while the block runs, or say {said}"

    def _reads_exactly(self, i: Input) -> bool:
        """Whether the block does more with floats of an input than hand them on."""
        query, grouping = self.query, self.query.grouping
        exprs = [*i.filters, *query.residuals, *(side for e in query.equalities for side in (e.left, e.right))]
        handed = [expr for _, expr in query.select]
        if grouping is not None:
            exact = {a.argument for a in grouping.aggregates if a.function not in TOLERANT}
            is_exact = self.is_read_exactly or grouping.having is not None
            exprs += [e for n, e in enumerate(handed) if is_exact or n < grouping.keys or n in exact]
        exprs += handed if self.is_read_exactly else _more_than_shown(handed)
        read = {c.name for expr in exprs for c in columns_of(expr) if c.alias == i.alias}
        return any(f.name in read and pa.types.is_floating(f.type) for f in i.source.fields)

    def _is_inexact(self, aggregate: Aggregate) -> bool:
        if aggregate.function not in INEXACT or aggregate.argument is None:
            return False
        return bool(pa.types.is_floating(self.query.select[aggregate.argument][1].type))

    def _name(self, what: str, *more: str) -> str:
        return " ".join(filter(None, (what, ".".join((*self.path, *more)))))


def _wished(root: Operator, place: str | None) -> Operator:
    """The operators of a block, kept to where a hint wants them as far as they may run there."""
    if place is None:
        return root
    wanted = IN_ENGINE if place == ENGINE else IN_DATABASE
    inputs = tuple(_wished(i, place) if isinstance(i, Operator) and i.block == root.block else i for i in root.inputs)
    return replace(root, inputs=inputs, places=root.places & wanted or root.places)


def joining_blocks(query: Query, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Query]]:
    """The blocks of a query that join, by the names of their operators."""
    for i in query.inputs:
        if isinstance(i.source, Derived) and i.source.query is not None:
            yield from joining_blocks(i.source.query, (*path, i.alias))
    if len(query.inputs) > 1:
        yield " ".join(filter(None, ("JOIN", ".".join(path)))), query


def group_keys(query: Query) -> list[str]:
    """What the groups of a block are made by, as facts name it."""
    keys = 0 if query.grouping is None else query.grouping.keys
    return [str(expr) for _, expr in query.select[:keys] if columns_of(expr)]


def _to_say(key: str) -> str:
    """How to say how many values a key has.

    >>> _to_say("s.plug"), _to_say("(s.k % 10)")
    ('--distinct s.plug=VALUES', "--distinct '(s.k % 10)=VALUES'")
    """
    return f"--distinct {shlex.quote(f'{key}=VALUES')}"


def _only_key(query: Query | None) -> str | None:
    """The column of a subquery's groups that has another value in each of them."""
    if query is None or query.grouping is None or query.grouping.keys != 1:
        return None
    return next((name for name, expr in query.grouping.select if expr == Column(expr.type, GROUP, "key0")), None)


def _more_than_shown(exprs: Sequence[Expr]) -> list[Expr]:
    """The expressions that are not columns as they are: a CASE has predicates, ROUND has steps."""
    return [expr for expr in exprs if not isinstance(expr, Column)]


def engine_costs(root: Operator, units: UnitCosts, join_cpu: Mapping[str, float]) -> EngineCosts:
    """What operators take in our engine. `join_cpu` has what the joins of blocks take by their plans, by operator."""
    per_row_s = {
        Kind.SELECT: units.result, Kind.PROJECT: units.result, Kind.JOIN: units.join, Kind.AGGREGATE: units.fold,
    }  # fmt: skip
    return EngineCosts(per_row_s, {**join_cpu, **dict(_folding(root, units))})


def _folding(root: Operator, units: UnitCosts) -> Iterator[tuple[str, float]]:
    """A row is folded once, and a group handed out at every slide."""
    for each in root:
        if each.kind is Kind.AGGREGATE:
            yield each.name, size_of(each.inputs[0]).rate_per_s * units.fold + size_of(each).rate_per_s * units.result
