"""A SELECT becomes a `Query`: sources found, windows given, names and types resolved, then rewritten
(`anabranch.plan.rewrites`). As it is bound, all conjuncts of WHERE and ON are residuals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
from sqlglot import exp

from anabranch.errors import (
    DuplicateNameError,
    InvalidNameError,
    MissingWindowError,
    SyntaxSqlError,
    TypeMismatchError,
    UnknownStreamError,
    UnsupportedSqlError,
    did_you_mean,
)
from anabranch.plan.expression import Call, Column, Expr, ResultTime
from anabranch.plan.flat import CannotFlattenError
from anabranch.plan.lookups import why_not_looked_up
from anabranch.plan.names import NAME_RULE, why_not_a_name
from anabranch.plan.partial import why_not_partial
from anabranch.plan.query import (
    DATABASE,
    ENGINE,
    FOREVER_US,
    INSTANT,
    SECOND_US,
    STORED,
    UNBOUNDED,
    DatabaseTable,
    Derived,
    Field,
    Grouping,
    Input,
    Query,
    Stream,
    Table,
    Window,
    range_window,
)
from anabranch.plan.rewrites import REWRITES, Rewrite, rewritten
from anabranch.sql.bind_database import MOST_INSTANTS, bind_database
from anabranch.sql.catalog import Catalog
from anabranch.sql.expressions import ExpressionBinder
from anabranch.sql.group_by import GroupBinder, Groups, bind_keys, is_grouped
from anabranch.sql.scope import Scope
from anabranch.sql.statements import parse_statements
from anabranch.sql.syntax import CreateQuery, FromItem, PlaceHint, Select, SelectItem, WindowClause
from anabranch.sql.text import SqlText
from anabranch.sql.types import TIMESTAMP


def bind_query(name: str, select_sql: str, catalog: Catalog, rewrites: Sequence[Rewrite] = REWRITES) -> Query:
    """The query of one SELECT over the sources of a catalog, rewritten.

    >>> from anabranch.plan.query import Field
    >>> trades = Stream("trades", (Field("symbol", pa.string()), Field("ts", pa.timestamp("us"))), time="ts")
    >>> sql = "SELECT a.symbol FROM trades [RANGE 10 SECONDS] a, trades [NOW] b WHERE a.symbol = b.symbol"
    >>> query = bind_query("q", sql, Catalog().with_stream(trades))
    >>> [str(i.window) for i in query.inputs], [str(e) for e in query.equalities]
    (['RANGE 10000000 us', 'NOW'], ['a.symbol = b.symbol'])
    """
    if reason := why_not_a_name(name):
        raise InvalidNameError(reason, "", 0, 0, NAME_RULE)
    text = SqlText(select_sql)
    statements = parse_statements(select_sql)
    if len(statements) != 1:
        raise text.error(SyntaxSqlError, f"expected one SELECT, found {len(statements)} statements", 0)
    statement = statements[0]
    if not isinstance(statement, CreateQuery) or statement.name is not None:
        raise text.error(SyntaxSqlError, "expected a SELECT, found a CREATE statement", 0)
    return bind_select(name, statement.select, catalog, text, rewrites)


def bind_select(
    name: str,
    select: Select,
    catalog: Catalog,
    text: SqlText,
    rewrites: Sequence[Rewrite] = REWRITES,
    is_nested: bool = False,
) -> Query:
    """The same for a SELECT that has been parsed, by itself or in FROM (`is_nested`); errors point into `text`."""
    try:
        inputs = _bind_inputs(name, select, catalog, text, rewrites)
        conjuncts: list[Expr] = []
        for position, item in enumerate(select.inputs):
            if item.on is not None:
                conjuncts += _bind_condition(item.on, text, inputs[: position + 1])
        if select.where is not None:
            conjuncts += _bind_condition(select.where, text, inputs)
        grouping, columns = _bind_columns(select, text, inputs)
        own = next((hint for hint in select.places if hint.alias is None), None)
        if own is not None and grouping is None and is_nested:
            raise text.error(UnsupportedSqlError, "placing a subquery without groups is not supported", own.place.at,
                             "its inputs are joined with the others: place the SELECT around it")  # fmt: skip
    except RecursionError:
        raise text.error(SyntaxSqlError, "the statement is nested too deeply", 0) from None
    place = _place(own) if own is not None else None
    query = Query(name, inputs, (), tuple(conjuncts), columns, select.sql, grouping, place=place)
    try:
        made = rewritten(query, rewrites)
    except CannotFlattenError as error:
        raise text.error(UnsupportedSqlError, str(error), select.inputs[0].source.at, error.hint) from None
    at = _freshness_at(select)
    is_whole = not is_nested or made.grouping is not None
    if is_whole and (lacking := why_not_looked_up(made)) is not None:
        table, at_table = _written(select, lacking[0])
        raise text.error(UnsupportedSqlError, f"{table} cannot be looked up in its database: {lacking[1]}", at_table,
                         "join it by … = its column, or declare it with REFRESH, which ships it")  # fmt: skip
    if is_whole and at is not None and (reason := why_not_partial(made)) is not None:
        raise text.error(UnsupportedSqlError, f"FRESHNESS is not supported here: {reason}", at, "leave it out")
    return made


def _bind_columns(
    select: Select, text: SqlText, inputs: Sequence[Input]
) -> tuple[Grouping | None, tuple[tuple[str, Expr], ...]]:
    """The grouping, if there is one, and the columns of the join's rows."""
    scope = Scope(text, inputs)
    if not is_grouped(select):
        if select.slide_us is not None:
            raise text.error(UnsupportedSqlError, "SLIDE without aggregates is not supported", select.slide_at,
                             "leave it out, or aggregate: results of a join appear when their rows do")  # fmt: skip
        return None, _bind_select_list(select.items, text, scope, ExpressionBinder(text, scope))
    starred = next((item for item in select.items if item.expr is None), None)
    if starred is not None:
        raise text.error(
            UnsupportedSqlError, "* over groups is not supported", starred.at, "list the keys and aggregates"
        )
    groups = Groups(bind_keys(select, text, scope))
    binder = GroupBinder(text, scope, groups)
    selected = _bind_select_list(select.items, text, scope, binder)
    having = binder.predicate(select.having) if select.having is not None else None
    slide_us = select.slide_us if select.slide_us is not None else SECOND_US
    longest = max((i.window.length_us for i in inputs if i.window.length_us != FOREVER_US), default=0)
    if longest > MOST_INSTANTS * slide_us:
        raise text.error(UnsupportedSqlError, f"a row that counts at more than {MOST_INSTANTS:,} instants is not supported",
                         select.slide_at or select.items[0].at, "write a longer SLIDE, or a shorter window")  # fmt: skip
    return Grouping(len(groups.keys), tuple(groups.aggregates), selected, having, slide_us), groups.rows


def _bind_inputs(
    name: str, select: Select, catalog: Catalog, text: SqlText, rewrites: Sequence[Rewrite]
) -> tuple[Input, ...]:
    inputs: list[Input] = []
    _check_hints(select, text)
    for item in select.inputs:
        source: Stream | Table | None
        if item.select is not None:
            source = _bind_subquery(f"{name}.{item.alias.text}", item.select, catalog, text, rewrites)
        elif item.text is not None:
            source = bind_database(f"{name}.{item.alias.text}", item.text, catalog, text)
        else:
            source = catalog.source(item.source.text)
        if source is None:
            hint = did_you_mean(item.source.text, (s.name for s in catalog))
            message = f"there is no stream or table {item.source.text}"
            raise text.error(UnknownStreamError, message, item.source.at, hint or "create it with CREATE STREAM")
        if any(i.alias.lower() == item.alias.text.lower() for i in inputs):
            message = f"{item.alias.text} stands twice in FROM"
            raise text.error(DuplicateNameError, message, item.alias.at, "give each its own name: AS …")
        if not item.alias.text.isidentifier():
            raise text.error(UnsupportedSqlError, f"{item.alias.text!r} cannot name an input", item.alias.at,
                             "give it a plain word with AS: plans are written in them")  # fmt: skip
        window, freshness_us = _window_of(item, source, select.window, text)
        inputs.append(
            Input(
                item.alias.text, source, window, freshness_us=freshness_us, place=_place_of(item, source, select, text)
            )
        )
    if all(isinstance(i.source, Table) for i in inputs):
        raise text.error(UnsupportedSqlError, "a query over stored tables alone is not supported",
                         select.inputs[0].source.at, "join at least one stream")  # fmt: skip
    return tuple(inputs)


def _check_hints(select: Select, text: SqlText) -> None:
    """Every hint is for an input of FROM, and none for one that has a hint already."""
    aliases = [item.alias.text for item in select.inputs]
    placed: set[str] = set()
    for hint in select.places:
        if hint.alias is None:
            if "" in placed:
                raise text.error(DuplicateNameError, "the SELECT is placed twice", hint.place.at, "leave one hint out")
            placed.add("")
            continue
        alias = hint.alias.text.lower()
        if alias not in map(str.lower, aliases):
            advice = did_you_mean(hint.alias.text, aliases) or f"FROM has {', '.join(aliases)}"
            raise text.error(UnknownStreamError, f"there is no {hint.alias.text} in FROM", hint.alias.at, advice)
        if alias in placed:
            raise text.error(
                DuplicateNameError, f"{hint.alias.text} is placed twice", hint.alias.at, "leave one hint out"
            )
        placed.add(alias)


def _place_of(item: FromItem, source: Stream | Table, select: Select, text: SqlText) -> str | None:
    """Where a hint wants an input; None without one."""
    alias = item.alias.text.lower()
    hint = next((h for h in select.places if h.alias is not None and h.alias.text.lower() == alias), None)
    own = source.query.place if isinstance(source, Derived) and source.query is not None else None
    if hint is None:
        return own
    if own is not None:
        raise text.error(DuplicateNameError, f"{item.alias.text} is placed twice, here and in its own SELECT",
                         hint.place.at, "leave one hint out")  # fmt: skip
    place = _place(hint)
    has_groups = isinstance(source, Derived) and source.query is not None and source.query.grouping is not None
    if place == ENGINE or has_groups:
        return place
    if isinstance(source, DatabaseTable):
        if place.lower() in (DATABASE, source.database.lower()):
            return DATABASE
        raise text.error(UnsupportedSqlError, f"{source.name} is in {source.database}, not in {place}", hint.place.at,
                         f"write {source.database}, database or engine")  # fmt: skip
    if isinstance(source, Table):
        raise text.error(UnsupportedSqlError, f"{source.name} is not looked up in a database: its rows are here",
                         hint.place.at, "leave the hint out; CREATE TABLE … FROM DATABASE leaves a table there")  # fmt: skip
    what = "a subquery without groups" if isinstance(source, Derived) else "a stream"
    why = "its inputs are joined with the others" if isinstance(source, Derived) else "its rows come to the engine"
    raise text.error(UnsupportedSqlError, f"placing {what} in a database is not supported", hint.place.at,
                     f"{why}: place a subquery with GROUP BY, or a table in a database")  # fmt: skip


def _place(hint: PlaceHint) -> str:
    return hint.place.text.lower() if hint.place.text.lower() in (ENGINE, DATABASE) else hint.place.text


def _bind_subquery(name: str, select: Select, catalog: Catalog, text: SqlText, rewrites: Sequence[Rewrite]) -> Derived:
    """A subquery as a source. The groups of one get their instant as a column, which is their event time."""
    query = bind_select(name, select, catalog, text, rewrites, is_nested=True)
    grouping = query.grouping
    if grouping is not None:
        instant = (INSTANT, ResultTime(TIMESTAMP))
        query = replace(query, grouping=replace(grouping, select=(*grouping.select, instant)))
    fields = tuple(Field(f.name, f.type) for f in query.output_schema)
    return Derived(name, fields, INSTANT, query=query)


def _window_of(
    item: FromItem, source: Stream | Table, default: WindowClause | None, text: SqlText
) -> tuple[Window, int | None]:
    """The window of an input, and its freshness: of one clause, its own or that of all streams which have none."""
    if isinstance(source, Derived):
        grouping = source.query.grouping if source.query is not None else None
        return range_window(grouping.slide_us) if grouping is not None else UNBOUNDED, None
    if isinstance(source, Table):
        if item.window is not None and item.window.freshness_us is not None:
            hint = "leave out […]: its rows are valid for ever, and never too old"
            message = f"FRESHNESS of the stored table {source.name} is not supported"
            raise text.error(UnsupportedSqlError, message, item.window.freshness_at, hint)
        if item.window is not None:
            raise text.error(UnsupportedSqlError, f"a window on the stored table {source.name} is not supported",
                             item.window.at, "leave it out: its rows are valid for ever")  # fmt: skip
        return STORED, None
    if item.window is not None:
        return item.window.window, item.window.freshness_us
    if default is None:
        raise text.error(MissingWindowError, f"the stream {item.alias.text} has no window", item.source.at,
                         f"write {item.source.text} [RANGE 10 SECONDS], or WINDOW 10 SECONDS at the end")  # fmt: skip
    return default.window, default.freshness_us


def _written(select: Select, alias: str) -> tuple[str, int]:
    """An input as it is written, also in a subquery that was taken apart, and where it stands."""
    for item in select.inputs:
        if item.alias.text == alias:
            return item.source.text, item.source.at
        if item.select is not None and alias.startswith(f"{item.alias.text}_"):
            return _written(item.select, alias.removeprefix(f"{item.alias.text}_").rstrip("_"))
    return alias, select.inputs[0].source.at


def _freshness_at(select: Select) -> int | None:
    """Where FRESHNESS first stands in a query, or in what it selects from."""
    clauses = [*(item.window for item in select.inputs), select.window]
    places = [each.freshness_at for each in clauses if each is not None and each.freshness_us is not None]
    places += [at for i in select.inputs if i.select is not None and (at := _freshness_at(i.select)) is not None]
    return min(places, default=None)


def _bind_condition(node: exp.Expr, text: SqlText, inputs: Sequence[Input]) -> list[Expr]:
    bound = ExpressionBinder(text, Scope(text, inputs)).predicate(node)
    conjuncts, left = [], [bound]
    while left:
        current = left.pop()
        if isinstance(current, Call) and current.op == "and":
            left += reversed(current.args)
        else:
            conjuncts.append(current)
    return conjuncts


def _bind_select_list(
    items: Sequence[SelectItem], text: SqlText, scope: Scope, binder: ExpressionBinder
) -> tuple[tuple[str, Expr], ...]:
    columns: list[tuple[str, Expr]] = []
    taken: set[str] = set()
    for item in items:
        for name, expr in _bind_item(item, binder, scope, len(columns)):
            at = item.alias.at if item.alias is not None else item.at
            if name.lower() in taken:
                raise text.error(DuplicateNameError, f"two columns of the result are called {name}", at,
                                 f"list the columns and name one of them: … AS other_{name}")  # fmt: skip
            if pa.types.is_duration(expr.type):
                raise text.error(TypeMismatchError, "an INTERVAL cannot be selected", item.at, "add it to a timestamp")
            if pa.types.is_null(expr.type):
                raise text.error(TypeMismatchError, f"{name} is NULL and nothing else: results have types", item.at,
                                 "write CAST(NULL AS STRING), or another type")  # fmt: skip
            taken.add(name.lower())
            columns.append((name, expr))
    return tuple(columns)


def _bind_item(item: SelectItem, binder: ExpressionBinder, scope: Scope, before: int) -> list[tuple[str, Expr]]:
    """The output columns of one entry: one, or those of `*`. Unnamed expressions are called col1, col2, … by place."""
    if item.expr is None:
        starred = scope.inputs if item.star_of is None else [scope.input(item.star_of)]
        return [(f.name, Column(f.type, i.alias, f.name)) for i in starred for f in i.source.shown_fields]
    bound = binder.bind(item.expr)
    if item.alias is not None:
        return [(item.alias.text, bound)]
    return [(item.expr.name if isinstance(item.expr, exp.Column) else f"col{before + 1}", bound)]
