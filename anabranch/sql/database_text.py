"""`DATABASE duck (SELECT … FROM plugs [RANGE 5 MINUTES] … SLIDE 10 SECONDS PARTITION BY plug)`: whose words are whose.

Windows, SLIDE and PARTITION BY are ours; all else is the database's, and is not read here. A window is told by its bracket:
a name, then `[RANGE`, `[NOW]` or `[UNBOUNDED]`. SLIDE and what follows it stand at the end, outside of all brackets.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import Token, TokenType

from anabranch.errors import SyntaxSqlError
from anabranch.sql.dialect import NAME_TOKENS
from anabranch.sql.expression_syntax import ExpressionReader
from anabranch.sql.syntax import DatabaseText, Name, WindowClause, WindowedName

OPENING = (TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE)
CLOSING = (TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE)
LENGTHS = (TokenType.NUMBER, TokenType.STRING, TokenType.INTERVAL)


def at_database(reader: ExpressionReader) -> bool:
    """Whether a block of a database follows, and not a stream that is called so."""
    behind = reader._tokens[reader._index + 2 : reader._index + 3]
    is_called = reader._next is not None and reader._next.token_type in NAME_TOKENS
    return reader.at_word("DATABASE") and is_called and bool(behind) and behind[0].token_type == TokenType.L_PAREN


def read_database(reader: ExpressionReader, read_window: Callable[[], WindowClause | None]) -> DatabaseText:
    """Reads a block of a database, up to and with its closing bracket."""
    reader._advance()
    database = reader.need_name("the name of a database")
    opening = reader.need(TokenType.L_PAREN, "'('")
    start, depth, streams = opening.end + 1, 0, []
    while not (depth == 0 and (reader._match(TokenType.R_PAREN, advance=False) or _at_slide(reader))):
        if not reader._curr:
            reader.fail(SyntaxSqlError, "the bracket that opens here is never closed", opening.start)
        if depth == 0 and reader._match(TokenType.PARTITION_BY, advance=False):
            break
        if _at_window(reader):
            streams.append(_windowed(reader, read_window))
            continue
        kind = reader._curr.token_type
        depth += (kind in OPENING) - (kind in CLOSING)
        reader._advance()
    end, slide_us, slide_at = reader.here(), None, 0
    if end == start or not reader.sql[start:end].strip():
        reader.expected("a SELECT of the database")
    if reader.at_word("SLIDE"):
        slide_at = reader.here()
        reader._advance()
        slide_us = reader.need_length_us()
        if slide_us == 0:
            reader.fail(SyntaxSqlError, "a SLIDE must be longer than 0", slide_at)
    partition = reader.need_name("a column to spread rows by") if reader._match(TokenType.PARTITION_BY) else None
    reader.need(TokenType.R_PAREN, "')'")
    return DatabaseText(database, start, end, tuple(streams), slide_us, slide_at, partition)


def _at_slide(reader: ExpressionReader) -> bool:
    return reader.at_word("SLIDE") and reader._next is not None and reader._next.token_type in LENGTHS


def _at_window(reader: ExpressionReader) -> bool:
    """Whether a window of ours follows a name: brackets of the database index a list, or make one."""
    if reader._curr.token_type != TokenType.L_BRACKET or reader._prev is None or reader._next is None:
        return False
    word, behind = reader._next.text.upper(), reader._tokens[reader._index + 2 : reader._index + 3]
    is_plain = word in ("NOW", "UNBOUNDED") and bool(behind) and behind[0].token_type == TokenType.R_BRACKET
    is_range = word == "RANGE" and bool(behind) and behind[0].token_type in LENGTHS
    return reader._prev.token_type in NAME_TOKENS and (is_plain or is_range)


def _windowed(reader: ExpressionReader, read_window: Callable[[], WindowClause | None]) -> WindowedName:
    """The stream that a window belongs to: the name ahead of it, or the one that this renames."""
    before: list[Token] = reader._tokens[max(reader._index - 3, 0) : reader._index]
    source, alias = before[-1], None
    others = [t for t in before[:-1] if t.token_type != TokenType.ALIAS]
    is_renamed = len(before) > 1 and before[-2].token_type in (*NAME_TOKENS, TokenType.ALIAS)
    if is_renamed and others and others[-1].token_type in NAME_TOKENS:
        source, alias = others[-1], before[-1].text
    at = reader.here()
    window = read_window()
    assert window is not None, "a window stands here"
    if window.freshness_us is not None:
        reader.refuse("FRESHNESS in a block of a database", "leave it out", window.freshness_at)
    name = Name(source.text, source.start, source.token_type == TokenType.IDENTIFIER)
    return WindowedName(name, window, source.start, reader._prev.end + 1 if reader._prev else at, alias)
