"""Statements: CREATE STREAM, CREATE TABLE, CREATE QUERY and SELECT, from text to `syntax` values.

What is SQL elsewhere but not here is refused at its first word, by name, with what to write instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NoReturn

from sqlglot import Token, TokenType, exp
from sqlglot.errors import SqlglotError, TokenError

from anabranch.errors import (
    MissingTimeColumnError,
    SyntaxSqlError,
    UnknownFormatError,
    UnsupportedSqlError,
    did_you_mean,
)
from anabranch.plan.formats import FORMATS, format_of
from anabranch.plan.lengths import length_text
from anabranch.plan.on_error import FAIL, WAYS, OnError
from anabranch.plan.query import AHEAD_US, CURRENT, NOW, STATIC, UNBOUNDED, Window, range_window
from anabranch.sql.database_text import at_database, read_database
from anabranch.sql.dialect import NAME_TOKENS, SUBQUERY_STARTS, Anabranch
from anabranch.sql.hints import read_hints
from anabranch.sql.overload_syntax import OverloadReader
from anabranch.sql.refusals import OUTPUT_WORDS, REFUSED_STATEMENTS, REFUSED_TOKENS, REFUSED_WORDS
from anabranch.sql.syntax import (
    ColumnDef,
    CreateQuery,
    CreateSource,
    DatabaseText,
    FromItem,
    Name,
    PlaceHint,
    Select,
    SelectItem,
    Statement,
    WindowClause,
)
from anabranch.sql.text import SqlText

FRESHNESS_HINT = (
    "write stream [RANGE 10 MINUTES FRESHNESS 12 MINUTES], or WINDOW 10 MINUTES FRESHNESS 12 MINUTES at the end"
)


class StatementReader(OverloadReader):
    """One statement of a text; `parse_statements` feeds it."""

    def read(self, sql: str, tokens: list[Token], hints: Mapping[int, tuple[PlaceHint, ...]]) -> Statement:
        self.reset()
        self.sql, self.hints = sql, hints
        self._chunks = [tokens]
        self._advance_chunk()
        if self._match(TokenType.CREATE):
            return self._read_create()
        if self.at_word(*REFUSED_STATEMENTS):
            self.refuse(self._curr.text.upper(), "there are CREATE STREAM, CREATE TABLE, CREATE QUERY and SELECT")
        return CreateQuery(None, None, self._read_select())

    def _read_create(self) -> Statement:
        if self.word("STREAM"):
            return self._read_source(is_stream=True)
        if self.word("TABLE"):
            return self._read_source(is_stream=False)
        if not self.word("QUERY"):
            self.expected("STREAM, TABLE or QUERY")
        name = self.need_name("the name of the query")
        plan, overload = None, None
        while not self._match(TokenType.ALIAS):
            at = self.here()
            if self.word("PLAN"):
                if plan is not None:
                    self.fail(SyntaxSqlError, "PLAN stands twice", at)
                plan = self.need(TokenType.STRING, "the plan in '…'").text
            elif self.word("OVERLOAD"):
                if overload is not None:
                    self.fail(SyntaxSqlError, "OVERLOAD stands twice", at)
                overload = self.read_overload()
            else:
                self.expected("PLAN '…', OVERLOAD '…', or AS and a SELECT")
        return CreateQuery(name, plan, self._read_select(), overload)

    def _read_source(self, is_stream: bool) -> CreateSource:
        kind = "stream" if is_stream else "table"
        name = self.need_name(f"the name of the {kind}")
        if not is_stream and self._match(TokenType.FROM):
            return self._read_database_table(name)
        self.need(TokenType.L_PAREN, "'(' and the columns" + ("" if is_stream else ", or FROM DATABASE"))
        columns: list[ColumnDef] = []
        while not columns or self._match(TokenType.COMMA):
            columns.append(ColumnDef(self.need_name("a column"), self.need_outward_type()))
        self.need(TokenType.R_PAREN, "',' or ')'")
        time: Name | None = None
        lateness_us, refresh_us, path, path_at, file_format = 0, 0, None, 0, None
        ahead_us: int | None = AHEAD_US
        idle_us: int | None = None
        on_error, on_error_at = FAIL, 0
        seen: set[str] = set()
        while self._curr:
            clause = self._curr.text.upper()
            if clause in seen:
                self.fail(SyntaxSqlError, f"{clause} stands twice")
            seen.add(clause)
            if is_stream and self.word("TIME"):
                time = self.need_name("the column with the event time")
            elif is_stream and self.word("LATENESS"):
                lateness_us = self.need_length_us()
            elif is_stream and self.word("AHEAD"):
                ahead_us = self._read_length_or_none()
            elif is_stream and self.word("IDLE"):
                at = self.here()
                idle_us = self._read_length_or_none()
                if idle_us == 0:
                    self.fail(SyntaxSqlError, "a stream cannot be idle at once", at, "write IDLE 30 SECONDS")
            elif not is_stream and self.word("REFRESH"):
                at = self.here()
                refresh_us = self.need_length_us()
                if refresh_us == 0:
                    self.fail(SyntaxSqlError, "a table cannot be read again all the time", at, "write REFRESH 1 MINUTE")
            elif self._match(TokenType.FROM):
                path_at = self.here()
                path = self.need(TokenType.STRING, "a path in '…'").text
            elif self._match(TokenType.ON):
                on_error_at = self._prev.start
                if not is_stream:
                    self.refuse("ON ERROR of a table", "a table is read whole: mend its files", on_error_at)
                on_error = self._read_on_error()
            elif self.word("FORMAT"):
                at = self.here()
                file_format = self.need_name("a format").text.lower()
                if file_format not in FORMATS:
                    self.refuse(f"the format {file_format}", "the formats are " + ", ".join(FORMATS), at)
            else:
                of_stream = "TIME, LATENESS, AHEAD, IDLE, FROM, FORMAT, ON ERROR or ';'"
                self.expected(of_stream if is_stream else "FROM, FORMAT, REFRESH or ';'")
        if is_stream and time is None:
            self.fail(MissingTimeColumnError, f"the stream {name.text} has no event time", name.at,
                      "name its column after the list of columns: TIME ts")  # fmt: skip
        if path is None and on_error.sets_aside:
            self.fail(SyntaxSqlError, "ON ERROR is for rows of files", on_error_at, "name them: FROM 'folder/*.csv'")
        if path is not None and file_format is None:
            file_format = self._format_by_ending(path, path_at)
        return CreateSource(
            is_stream, name, tuple(columns), time, lateness_us, path, file_format, refresh_us, ahead_us, idle_us,
            on_error, path_at,
        )  # fmt: skip

    def _read_database_table(self, name: Name) -> CreateSource:
        """`FROM DATABASE crm TABLE 'public.customers'`, and how it is read."""
        if not self.word("DATABASE"):
            self.expected("DATABASE and its name; a table of files has its columns first: (k BIGINT, …) FROM 'path'")
        database = self.need_name("the name of the database")
        if not self.word("TABLE"):
            self.expected("TABLE and the name of the table in '…'")
        at = self.here()
        relation = self.need(TokenType.STRING, "the name of the table in '…'").text
        reading, refresh_us, stands = CURRENT, 0, ""
        while self._curr:
            word, place = self._curr.text.upper(), self.here()
            if word in (STATIC.upper(), CURRENT.upper()):
                self._advance()
                reading = word.lower()
            elif self.word("REFRESH"):
                refresh_us = self.need_length_us()
                if refresh_us == 0:
                    self.fail(SyntaxSqlError, "a table cannot be read again all the time", place, "write REFRESH 1 MINUTE")
            else:
                self.expected("STATIC, CURRENT, REFRESH or ';'")
            if stands:
                self.fail(SyntaxSqlError, f"{word} stands beside {stands}", place, "a table is read in one way")
            stands = word
        return CreateSource(
            False, name, (), None, 0, relation, None, refresh_us, path_at=at, database=database, reading=reading
        )

    def _read_on_error(self) -> OnError:
        if not self.word("ERROR"):
            self.expected("ERROR after ON")
        at, way = self.here(), self._curr.text.lower() if self._curr else ""
        if way not in WAYS:
            hint = did_you_mean(way.upper(), map(str.upper, WAYS))
            self.fail(SyntaxSqlError, "expected FAIL, SKIP or INTO 'folder' after ON ERROR", at, hint)
        self._advance()
        if way != "into":
            return OnError(way)
        at = self.here()
        path = self.need(TokenType.STRING, "a folder in '…'").text
        if not path:
            self.fail(SyntaxSqlError, "the name of the folder is missing", at, "write ON ERROR INTO 'folder'")
        return OnError(way, path)

    def _read_length_or_none(self) -> int | None:
        return None if self.word("NONE") else self.need_length_us()

    def _format_by_ending(self, path: str, at: int) -> str:
        try:
            return format_of(path)
        except UnknownFormatError as error:
            self.fail(UnsupportedSqlError, error.message, at, error.hint)

    def _read_select(self, is_nested: bool = False) -> Select:
        start = self.here()
        self._refuse_known()
        hints = self.hints.get(self.need(TokenType.SELECT, "SELECT").start, ())
        self._match(TokenType.ALL)
        after_column = (TokenType.COMMA, TokenType.FROM, TokenType.DOT)
        if self.at_word(*OUTPUT_WORDS) and self._next.token_type not in after_column:
            self._refuse_known()
        if self._match(TokenType.DISTINCT, advance=False):
            self._refuse_known()
        items = [self._read_item()]
        while self._match(TokenType.COMMA):
            items.append(self._read_item())
        if not self._match(TokenType.FROM):
            self._unexpected("',' or FROM")
        inputs = self._read_from()
        where = self.need_expression() if self._match(TokenType.WHERE) else None
        group_by: list[exp.Expr] = []
        having: exp.Expr | None = None
        window: WindowClause | None = None
        slide_us, slide_at = None, 0
        seen: set[str] = set()
        while self._curr:
            clause, at = self._curr.text.upper(), self.here()
            if self._match(TokenType.GROUP_BY):
                group_by = self._read_group_by()
            elif self._match(TokenType.HAVING):
                having = self.need_expression()
            elif self._match(TokenType.WINDOW, advance=False):
                window = self._read_trailing_window()
            elif self.at_word("FRESHNESS"):
                self.fail(SyntaxSqlError, "FRESHNESS stands after a window", at, FRESHNESS_HINT)
            elif self.word("SLIDE"):
                slide_us, slide_at = self.need_length_us(), at
                if slide_us == 0:
                    self.fail(SyntaxSqlError, "a SLIDE must be longer than 0", at)
            else:
                break
            if clause in seen:
                self.fail(SyntaxSqlError, f"{clause} stands twice", at)
            seen.add(clause)
        if is_nested:
            if not self._match(TokenType.R_PAREN, advance=False):
                self._unexpected("')'")
        elif self._curr:
            self._unexpected("the end of the statement")
        sql = self.sql[start : self._prev.end + 1]
        return Select(
            tuple(items), tuple(inputs), where, window, sql, tuple(group_by), having, slide_us, slide_at, hints
        )  # fmt: skip

    def _read_group_by(self) -> list[exp.Expr]:
        if self._match(TokenType.ALL, advance=False) or self.at_word("ROLLUP", "CUBE", "GROUPING"):
            self.refuse(f"GROUP BY {self._curr.text.upper()}", "list the keys of the groups")
        keys = [self.need_expression()]
        while self._match(TokenType.COMMA):
            keys.append(self.need_expression())
        return keys

    def _read_item(self) -> SelectItem:
        at = self.here()
        if self._match(TokenType.STAR):
            return SelectItem(at, None)
        if self._curr.token_type in NAME_TOKENS and self._next.token_type == TokenType.DOT:
            owner = self.need_name("an input")
            if self._match_pair(TokenType.DOT, TokenType.STAR):
                return SelectItem(at, None, star_of=owner)
            self._retreat(self._index - 1)
        expr = self.need_expression()
        if self._match(TokenType.ALIAS) or self._at_alias():
            return SelectItem(at, expr, alias=self.need_name("a name for the column"))
        return SelectItem(at, expr)

    def _read_from(self) -> list[FromItem]:
        inputs = [self._read_input()]
        while True:
            if self._match(TokenType.COMMA):
                inputs.append(self._read_input())
            elif self._match(TokenType.CROSS):
                self.need(TokenType.JOIN, "JOIN")
                inputs.append(self._read_input())
            elif self._match_set((TokenType.INNER, TokenType.JOIN)):
                if self._prev.token_type == TokenType.INNER:
                    self.need(TokenType.JOIN, "JOIN")
                joined = self._read_input()
                if self._match(TokenType.USING, advance=False):
                    self._refuse_known()
                if not self._match(TokenType.ON):
                    self.fail(SyntaxSqlError, "expected ON", hint="a join without a condition is written CROSS JOIN")
                inputs.append(replace(joined, on=self.need_expression()))
            else:
                return inputs

    def _read_input(self) -> FromItem:
        if self._match(TokenType.L_PAREN):
            if self._curr.token_type == TokenType.SELECT:
                return self._read_subquery()
            if self._curr.token_type in SUBQUERY_STARTS:
                self._refuse_known()
            self.refuse("a join in parentheses", "write the inputs one after the other; the plan decides the order")
        self._refuse_known()
        if at_database(self):
            text = read_database(self, self._read_window)
            self._refuse_hints_in(text)
            alias = self._read_subquery_alias()
            return FromItem(alias, alias, None, text=text)
        source = self.need_name("a stream or table")
        if self._match(TokenType.DOT, advance=False):
            self.refuse("a name of several parts", "streams and tables have one name")
        if self._match(TokenType.L_PAREN, advance=False):
            self.refuse("a table function", "create a stream or table, and join it", source.at)
        window = self._read_window()
        alias = source
        if self._match(TokenType.ALIAS) or self._at_alias():
            alias = self.need_name("an alias")
            if self._match(TokenType.L_PAREN, advance=False):
                self.refuse("renaming columns in FROM", "rename them in the select list")
        if self._match(TokenType.L_BRACKET, advance=False):
            if window is not None:
                self.fail(SyntaxSqlError, f"{alias.text} has two windows")
            window = self._read_window()
        return FromItem(source, alias, window)

    def _refuse_hints_in(self, text: DatabaseText) -> None:
        """The database decides how its words are run; to it a hint of ours is a comment."""
        for at, (hint, *_) in self.hints.items():
            if text.start <= at < text.end:
                advice = f"leave it out: the block runs in {text.database.text}"
                self.refuse("a hint in the words of a database", advice, (hint.alias or hint.place).at)

    def _read_subquery(self) -> FromItem:
        select = self._read_select(is_nested=True)
        self.need(TokenType.R_PAREN, "')'")
        alias = self._read_subquery_alias()
        return FromItem(alias, alias, None, select=select)

    def _read_subquery_alias(self) -> Name:
        if self._match(TokenType.L_BRACKET, advance=False):
            self.refuse("a window on a subquery", "its inputs have windows of their own: put it there")
        self._match(TokenType.ALIAS)
        alias = self.need_name("a name for the subquery")
        if self._match(TokenType.L_BRACKET, advance=False):
            self.refuse("a window on a subquery", "its inputs have windows of their own: put it there")
        return alias

    def _read_window(self) -> WindowClause | None:
        if not self._match(TokenType.L_BRACKET):
            return None
        at = self._prev.start
        if self.word("RANGE"):
            window = self._read_range()
        elif self.word("NOW"):
            window = NOW
        elif self.word("UNBOUNDED"):
            window = UNBOUNDED
        elif self.at_word("FRESHNESS"):
            self.fail(SyntaxSqlError, "FRESHNESS stands after a window", hint=FRESHNESS_HINT)
        else:
            self._unexpected("RANGE, NOW or UNBOUNDED")
        clause = self._read_freshness(WindowClause(window, at))
        if not self._match(TokenType.R_BRACKET):
            self._unexpected("']'")
        return clause

    def _read_freshness(self, clause: WindowClause) -> WindowClause:
        """A window with the FRESHNESS that follows it, if one does."""
        at = self.here()
        if not self.word("FRESHNESS"):
            return clause
        window, freshness_us = clause.window, self.need_length_us()
        if window == UNBOUNDED:
            hint = "rows without end grow older than any: write [RANGE 10 MINUTES FRESHNESS 12 MINUTES]"
            self.refuse("FRESHNESS of an UNBOUNDED window", hint, at)
        if freshness_us == 0:
            self.fail(SyntaxSqlError, "a FRESHNESS must be longer than 0", at, FRESHNESS_HINT)
        if freshness_us < window.length_us:
            shortest = length_text(window.length_us)
            self.fail(SyntaxSqlError, f"a FRESHNESS of {length_text(freshness_us)} is below the window, {shortest}", at,
                      f"rows are joined until the window ends: write FRESHNESS {shortest.upper()}, or longer")  # fmt: skip
        if self.at_word("FRESHNESS"):
            self.fail(SyntaxSqlError, "FRESHNESS stands twice")
        return replace(clause, freshness_us=freshness_us, freshness_at=at)

    def _read_range(self) -> Window:
        at = self.here()
        length_us = self.need_length_us()
        if length_us == 0:
            self.fail(SyntaxSqlError, "a window must be longer than 0", at, "the window of one instant is [NOW]")
        return range_window(length_us)

    def _read_trailing_window(self) -> WindowClause | None:
        if not self._match(TokenType.WINDOW):
            return None
        at = self._prev.start
        if self._curr.token_type in NAME_TOKENS and self._next.token_type == TokenType.ALIAS:
            self.refuse("a named window", "write WINDOW 10 SECONDS, or stream [RANGE 10 SECONDS]")
        self._refuse_known()
        self.word("RANGE")
        return self._read_freshness(WindowClause(self._read_range(), at))

    def _at_alias(self) -> bool:
        """Whether a name follows, and not the next clause."""
        lengths = (TokenType.NUMBER, TokenType.STRING, TokenType.INTERVAL)
        is_clause = self.at_word("SLIDE", "FRESHNESS") and self._next.token_type in lengths
        return self._curr.token_type in NAME_TOKENS and not self._at_refused() and not is_clause

    def _at_refused(self) -> bool:
        return self._curr.token_type in REFUSED_TOKENS or self.at_word(*REFUSED_WORDS)

    def _refuse_known(self) -> None:
        if self._at_refused():
            self.refuse(*(REFUSED_TOKENS.get(self._curr.token_type) or REFUSED_WORDS[self._curr.text.upper()]))

    def _unexpected(self, wanted: str) -> NoReturn:
        self._refuse_known()
        self.expected(wanted)


def tokenize(text: SqlText) -> list[Token]:
    """The words of a text, without its comments."""
    tokenizer = Anabranch.Tokenizer(dialect=Anabranch)
    try:
        return tokenizer.tokenize(text.sql)
    except TokenError as error:
        start = int(getattr(tokenizer._core, "_start", 0))
        message = "the quotes that open here are never closed"
        if text.sql.startswith("/*", start):
            message = "the comment that opens here is never closed"
        elif text.sql[start : start + 1] in ("x", "X"):
            message = "the bytes that start here are not in hexadecimal, or never closed"
        raise text.error(SyntaxSqlError, message, start) from error


def parse_statements(sql: str) -> list[Statement]:
    """The statements of a text, separated by `;`."""
    text = SqlText(sql)
    chunks: list[list[Token]] = [[]]
    tokens = tokenize(text)
    hints = read_hints(text, tokens)
    for token in tokens:
        if token.token_type == TokenType.SEMICOLON:
            chunks.append([])
        else:
            chunks[-1].append(token)
    reader = StatementReader(dialect=Anabranch)
    statements: list[Statement] = []
    for chunk in filter(None, chunks):
        try:
            statements.append(reader.read(sql, chunk, hints))
        except RecursionError:
            raise text.error(SyntaxSqlError, "the statement is nested too deeply", chunk[0].start) from None
        except (SqlglotError, AttributeError, TypeError, ValueError, LookupError) as error:
            # Operators are read by sqlglot, whose parser trips over some malformed texts instead of reporting them.
            raise text.error(SyntaxSqlError, "the text cannot be read here", reader.here()) from error
    return statements
