"""The words of the language, and the tools to read them: sqlglot's tokenizer and parser, cut down to what we mean.

sqlglot reads thirty dialects and is generous; here a text is either in the language or refused. So this dialect keeps
only the keywords below (every other word may name a column), has no commands, and turns every complaint of the parser
into a `SyntaxSqlError` at the current token.
"""

from __future__ import annotations

from typing import ClassVar, NoReturn

from sqlglot import Token, TokenType, exp, parser, tokens
from sqlglot.dialects.dialect import Dialect

from anabranch.errors import SqlError, SyntaxSqlError, UnsupportedSqlError
from anabranch.sql.syntax import Name
from anabranch.sql.text import SqlText

NAME_TOKENS = (TokenType.VAR, TokenType.IDENTIFIER)
SUBQUERY_STARTS = (TokenType.SELECT, TokenType.WITH, TokenType.VALUES)

RESERVED: dict[str, TokenType] = {
    word: TokenType[word.replace(" ", "_")]
    for word in (
        "ALL", "AND", "ANTI", "BETWEEN", "CASE", "CREATE", "CROSS", "DISTINCT", "DIV", "ELSE", "END", "ESCAPE",
        "EXCEPT", "FALSE", "FROM", "FULL", "GROUP BY", "HAVING", "ILIKE", "IN", "INNER", "INTERSECT", "INTERVAL",
        "IS", "JOIN", "LATERAL", "LEFT", "LIKE", "LIMIT", "NATURAL", "NOT", "NULL", "OFFSET", "ON", "OR", "ORDER BY",
        "OUTER", "OVER", "PARTITION BY", "QUALIFY", "RIGHT", "RLIKE", "SELECT", "SEMI", "THEN", "TRUE", "UNION",
        "UNNEST", "USING", "VALUES", "WHEN", "WHERE", "WINDOW", "WITH",
    )
}  # fmt: skip


class Anabranch(Dialect):
    """Our dialect. Strings stand in '…', names that need quotes in `…` or "…"."""

    class Tokenizer(tokens.Tokenizer):
        IDENTIFIERS: ClassVar[list[str | tuple[str, str]]] = ['"', "`"]
        HEX_STRINGS: ClassVar[list[str | tuple[str, str]]] = [("x'", "'"), ("X'", "'")]
        COMMANDS: ClassVar[set[TokenType]] = set()
        KEYWORDS: ClassVar[dict[str, TokenType]] = {
            **RESERVED,
            "AS": TokenType.ALIAS,
            "::": TokenType.DCOLON,
            "||": TokenType.DPIPE,
            "==": TokenType.EQ,
            ">=": TokenType.GTE,
            "<=": TokenType.LTE,
            "<>": TokenType.NEQ,
            "!=": TokenType.NEQ,
            "<=>": TokenType.NULLSAFE_EQ,
        }


class Reader(parser.Parser):
    """A parser that says where it stands and what it expected."""

    @property
    def text(self) -> SqlText:
        return SqlText(self.sql)

    def here(self) -> int:
        """The offset of the current token, or the end of the statement."""
        if self._curr:
            return self._curr.start
        return self._prev.end + 1 if self._prev else len(self.sql)

    def fail(self, kind: type[SqlError], message: str, at: int | None = None, hint: str = "") -> NoReturn:
        raise self.text.error(kind, message, self.here() if at is None else at, hint)

    def refuse(self, what: str, hint: str, at: int | None = None) -> NoReturn:
        self.fail(UnsupportedSqlError, f"{what} is not supported", at, hint)

    def raise_error(self, message: str, token: Token = parser.SENTINEL_NONE) -> None:
        self.fail(SyntaxSqlError, message, token.start if token else None)

    def expected(self, what: str) -> NoReturn:
        found = f"found {self._curr.text!r}" if self._curr else "the statement ends here"
        self.fail(SyntaxSqlError, f"expected {what}, {found}")

    def need(self, kind: TokenType, what: str) -> Token:
        if not self._match(kind):
            self.expected(what)
        return self._prev

    def at_word(self, *words: str) -> bool:
        """Whether the current token is one of some words that are no keywords everywhere."""
        return self._curr.token_type == TokenType.VAR and self._curr.text.upper() in words

    def word(self, *words: str) -> bool:
        """The same, and steps over it."""
        found = self.at_word(*words)
        if found:
            self._advance()
        return found

    def need_name(self, what: str) -> Name:
        if not self._match_set(NAME_TOKENS):
            hint = "put it in backticks, if it is a name" if self._curr.text.upper() in RESERVED else ""
            if hint:
                self.fail(SyntaxSqlError, f"expected {what}, found the keyword {self._curr.text!r}", hint=hint)
            self.expected(what)
        return Name(self._prev.text, self._prev.start, self._prev.token_type == TokenType.IDENTIFIER)

    def need_expression(self) -> exp.Expr:
        found = self._parse_disjunction()
        if found is None:
            self.expected("an expression")
        return found
