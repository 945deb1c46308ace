"""Hints: `SELECT /*+ PLACE(x, database) */ …`, a comment that means something.

A hint stands right after the SELECT that it is for. sqlglot drops comments, so hints are looked for in what a text has
between its tokens. A comment that begins with `/*+` and is no hint of ours is an error: whoever writes one wants something,
and would not get it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NoReturn

from sqlglot import Token, TokenType
from sqlglot.errors import TokenError

from anabranch.errors import SyntaxSqlError, UnsupportedSqlError, did_you_mean
from anabranch.sql.dialect import NAME_TOKENS, Anabranch
from anabranch.sql.syntax import Name, PlaceHint
from anabranch.sql.text import SqlText

OPENS, CLOSES, LINE, HINT = "/*", "*/", "--", "/*+"
HOW = "write SELECT /*+ PLACE(alias, engine) */, or database, or the name of one, in place of engine"
"""An alias may be left out: then the hint is for the SELECT that it stands in."""


def read_hints(text: SqlText, tokens: Sequence[Token]) -> dict[int, tuple[PlaceHint, ...]]:
    """The hints of a text, by where the SELECT begins that they are for."""
    found: dict[int, tuple[PlaceHint, ...]] = {}
    previous: Token | None = None
    end = 0
    for token in (*tokens, None):
        for at, body in _hints_between(text.sql, end, len(text.sql) if token is None else token.start):
            if previous is None or previous.token_type is not TokenType.SELECT:
                raise text.error(
                    UnsupportedSqlError, "a hint here is not supported", at, "it stands right after SELECT"
                )
            found[previous.start] = (*found.get(previous.start, ()), *_read(text, at + len(HINT), body))
        if token is not None:
            previous, end = token, token.end + 1
    return found


def _hints_between(sql: str, start: int, end: int) -> Iterator[tuple[int, str]]:
    """The hints among the comments between two tokens: where each opens, and what is in it.

    >>> list(_hints_between("/* a */ /*+ b */ -- /*+ c", 0, 25))
    [(8, ' b ')]
    """
    at = start
    while at < end:
        if sql.startswith(LINE, at):
            line_end = sql.find("\n", at, end)
            at = end if line_end < 0 else line_end
        elif sql.startswith(OPENS, at):
            after = _after_comment(sql, at, end)
            if sql.startswith(HINT, at):
                yield at, sql[at + len(HINT) : after - len(CLOSES)]
            at = after
        else:
            at += 1


def _after_comment(sql: str, at: int, end: int) -> int:
    """Where a comment ends that may hold comments."""
    depth, at = 1, at + len(OPENS)
    while depth and at < end:
        if sql.startswith(OPENS, at) or sql.startswith(CLOSES, at):
            depth += 1 if sql.startswith(OPENS, at) else -1
            at += len(OPENS)
        else:
            at += 1
    return at


def _read(text: SqlText, start: int, body: str) -> list[PlaceHint]:
    """The hints in one comment, whose inside begins at some offset of the text."""
    try:
        tokens = Anabranch.Tokenizer(dialect=Anabranch).tokenize(body)
    except TokenError:
        raise text.error(SyntaxSqlError, "the hint cannot be read", start, HOW) from None
    reader = _Hint(text, start, body, tokens)
    found: list[PlaceHint] = []
    while not found or reader.is_left:
        found.append(reader.place())
    return found


class _Hint:
    """What is in a hint, word by word."""

    def __init__(self, text: SqlText, start: int, body: str, tokens: Sequence[Token]) -> None:
        self.text, self.start, self.body, self.tokens, self.at = text, start, body, tokens, 0

    @property
    def is_left(self) -> bool:
        return self.at < len(self.tokens)

    @property
    def offset(self) -> int:
        return self.start + (self.tokens[self.at].start if self.is_left else len(self.body.rstrip()))

    def place(self) -> PlaceHint:
        """`PLACE(alias, where)`, or `PLACE(where)`."""
        at, what = self.offset, self.name("PLACE(alias, …)")
        if what.text.upper() != "PLACE":
            hint = did_you_mean(what.text.upper(), ["PLACE"]) or HOW
            raise self.text.error(UnsupportedSqlError, f"there is no hint {what.text}", at, hint)
        self.need(TokenType.L_PAREN, "'('")
        first = self.name("an input of FROM")
        if self.is_left and self.tokens[self.at].token_type is TokenType.R_PAREN:
            self.at += 1
            return PlaceHint(None, first)
        self.need(TokenType.COMMA, "','")
        place = self.name("engine, database or the name of a database")
        self.need(TokenType.R_PAREN, "')'")
        return PlaceHint(first, place)

    def name(self, wanted: str) -> Name:
        if not self.is_left or self.tokens[self.at].token_type not in NAME_TOKENS:
            self.expected(wanted)
        token = self.tokens[self.at]
        self.at += 1
        return Name(token.text, self.start + token.start, token.token_type == TokenType.IDENTIFIER)

    def need(self, kind: TokenType, wanted: str) -> None:
        if not self.is_left or self.tokens[self.at].token_type is not kind:
            self.expected(wanted)
        self.at += 1

    def expected(self, wanted: str) -> NoReturn:
        found = f"found {self.tokens[self.at].text!r}" if self.is_left else "the hint ends here"
        raise self.text.error(SyntaxSqlError, f"expected {wanted} in the hint, {found}", self.offset, HOW)
