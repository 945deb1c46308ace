"""How expressions are written.

Operands (`_parse_unary` and what is under it) are read here, each marked with its offset in the text. Operators, their
precedence and the predicates around them (`IS`, `LIKE`, `AND`, …) are sqlglot's, which calls back for the operands.
"""

from __future__ import annotations

from typing import NoReturn

from sqlglot import TokenType, exp

from anabranch.errors import SyntaxSqlError
from anabranch.sql.dialect import NAME_TOKENS, SUBQUERY_STARTS
from anabranch.sql.durations import UNIT_HINT, BadDurationError, length_us, words_us
from anabranch.sql.functions import AGGREGATES, FUNCTIONS, refusal
from anabranch.sql.syntax import AggregateCall, ArrowType, Length, TypedLiteral, offset_of
from anabranch.sql.type_syntax import TypeReader
from anabranch.sql.types import SIMPLE_TYPES

NOW_WORDS = ("CURRENT_DATE", "CURRENT_TIMESTAMP")
"""Functions that stand without parentheses."""


class ExpressionReader(TypeReader):
    """Expressions. The statements around them are in `statements.py`."""

    def need_length_us(self) -> int:
        """`10 SECONDS`, `INTERVAL '10' SECONDS`, `'10 seconds'`."""
        self._match(TokenType.INTERVAL)
        at = self.here()
        if not self._match_set((TokenType.NUMBER, TokenType.STRING)):
            self.fail(SyntaxSqlError, "expected a length of time", at, UNIT_HINT)
        number = self._prev
        try:
            if number.token_type == TokenType.STRING and len(number.text.split()) > 1:
                return words_us(number.text)
            if self._curr.token_type != TokenType.VAR:
                self.fail(SyntaxSqlError, f"expected a unit of time after {number.text}", hint=UNIT_HINT)
            self._advance()
            return length_us(number.text, self._prev.text)
        except BadDurationError as error:
            self.fail(SyntaxSqlError, str(error), at, UNIT_HINT)

    def _parse_unary(self) -> exp.Expr:
        start = self._curr
        if self._match(TokenType.DASH):
            found: exp.Expr = self.expression(exp.Neg(this=self._parse_unary()))
        elif self._match(TokenType.PLUS):
            found = self._parse_unary()
        elif self._match(TokenType.NOT):
            found = self.expression(exp.Not(this=self._parse_equality()))
        else:
            found = self._parse_operand()
            while self._match(TokenType.DCOLON):
                found = self.expression(exp.Cast(this=found, to=ArrowType(this=self.need_type())))
            if self._match(TokenType.L_BRACKET):
                self.refuse("[…] after an expression", "nested columns can only be selected", self._prev.start)
        return found.update_positions(start)

    def _parse_operand(self) -> exp.Expr:
        token = self._curr
        if self._match(TokenType.STRING):
            return exp.Literal.string(token.text)
        if self._match(TokenType.NUMBER):
            return exp.Literal.number(token.text)
        if self._match_pair(TokenType.DOT, TokenType.NUMBER):
            return exp.Literal.number("0." + self._prev.text)
        if self._match(TokenType.HEX_STRING):
            return exp.HexString(this=token.text)
        if self._match_set((TokenType.TRUE, TokenType.FALSE)):
            return exp.Boolean(this=token.token_type == TokenType.TRUE)
        if self._match(TokenType.NULL):
            return exp.Null()
        if self._match(TokenType.INTERVAL, advance=False):
            return Length(this=self.need_length_us())
        if self._match(TokenType.CASE):
            return self._parse_case()
        if self._match(TokenType.L_PAREN):
            return self._parse_parenthesised()
        if token.token_type in (TokenType.LEFT, TokenType.RIGHT) and self._next.token_type == TokenType.L_PAREN:
            self.refuse(f"the function {token.text.upper()}", "write SUBSTRING(text, start, length)")
        if token.token_type in SUBQUERY_STARTS:
            self._refuse_subquery()
        if token.token_type not in NAME_TOKENS:
            self.expected("an expression")
        if token.token_type == TokenType.VAR and self._next.token_type == TokenType.STRING:
            return self._parse_typed_literal()
        return self._parse_call() if self._next.token_type == TokenType.L_PAREN else self._parse_column()

    def _refuse_subquery(self) -> NoReturn:
        self.refuse("a subquery outside of FROM", "join it in FROM: JOIN (SELECT …) x ON …")

    def _parse_parenthesised(self) -> exp.Expr:
        if self._curr.token_type in SUBQUERY_STARTS:
            self._refuse_subquery()
        inner = self.need_expression()
        if self._match(TokenType.COMMA, advance=False):
            self.refuse("a row of several values", "compare the values one by one, joined by AND")
        self.need(TokenType.R_PAREN, "')'")
        return exp.Paren(this=inner)

    def _parse_typed_literal(self) -> exp.Expr:
        kind = self._curr
        if kind.text.upper() not in ("DATE", "TIMESTAMP"):
            self._advance()
            self.expected("an operator")
        self._advance(2)
        return TypedLiteral(this=self._prev.text, to=ArrowType(this=SIMPLE_TYPES[kind.text.upper()]))

    def _parse_column(self) -> exp.Expr:
        parts: list[exp.Identifier] = []
        while not parts or self._match(TokenType.DOT):
            token = self._curr
            if not token or (token.token_type not in NAME_TOKENS and (not parts or not token.text.isidentifier())):
                self.expected("a column")
            self._advance()
            quoted = token.token_type == TokenType.IDENTIFIER
            parts.append(exp.Identifier(this=token.text, quoted=quoted).update_positions(token))
        if len(parts) == 1 and parts[0].name.upper() in NOW_WORDS and not parts[0].quoted:
            self.refuse(*refusal(parts[0].name.upper()), offset_of(parts[0]))
        if len(parts) > 2:
            self.refuse("a field of a nested column", "select the whole column", offset_of(parts[2]))
        return exp.Column(this=parts[-1], table=parts[0] if len(parts) == 2 else None)

    def _parse_call(self) -> exp.Expr:
        token, name = self._curr, self._curr.text.upper()
        if name in AGGREGATES:
            return self._parse_aggregate()
        if name not in FUNCTIONS and name not in ("CAST", "TRY_CAST"):
            what, hint = refusal(name)
            self.refuse(what, hint)
        self._advance(2)
        if name not in FUNCTIONS:
            return self._parse_cast_body()
        args: list[exp.Expr] = []
        if not self._match(TokenType.R_PAREN):
            args.append(self.need_expression())
            while self._match(TokenType.COMMA):
                args.append(self.need_expression())
            self.need(TokenType.R_PAREN, "',' or ')'")
        if self._match(TokenType.OVER):
            self.refuse("a window function (OVER)", "windows stand in FROM: s [RANGE 10 SECONDS]", self._prev.start)
        return exp.Anonymous(this=name, expressions=args).update_positions(token)

    def _parse_aggregate(self) -> exp.Expr:
        token, name = self._curr, self._curr.text.upper()
        self._advance(2)
        distinct = bool(self._match(TokenType.DISTINCT))
        args: list[exp.Expr] = []
        if self._match(TokenType.STAR):
            if AGGREGATES[name] != "count" or distinct:
                self.refuse(f"{name}({'DISTINCT ' if distinct else ''}*)", "only COUNT takes *", self._prev.start)
        else:
            args.append(self.need_expression())
        if self._match(TokenType.COMMA, advance=False):
            self.refuse(f"{name} of several operands", "write one: they can be joined by CONCAT or added")
        self.need(TokenType.R_PAREN, "')'")
        if self._match(TokenType.OVER):
            self.refuse("a window function (OVER)", "windows stand in FROM: s [RANGE 10 SECONDS]", self._prev.start)
        if self.word("FILTER"):
            self.refuse("FILTER", f"write {name}(CASE WHEN … THEN … END)", self._prev.start)
        return AggregateCall(this=name, expressions=args, distinct=distinct).update_positions(token)

    def _parse_cast_body(self) -> exp.Expr:
        value = self.need_expression()
        self.need(TokenType.ALIAS, "AS and a type")
        kind = self.need_type()
        self.need(TokenType.R_PAREN, "')'")
        return exp.Cast(this=value, to=ArrowType(this=kind))

    def _parse_case(self) -> exp.Expr:
        subject = None if self._match(TokenType.WHEN, advance=False) else self.need_expression()
        branches: list[exp.Expr] = []
        while not branches or self._match(TokenType.WHEN, advance=False):
            self.need(TokenType.WHEN, "WHEN")
            condition = self.need_expression()
            self.need(TokenType.THEN, "THEN")
            branches.append(exp.If(this=condition, true=self.need_expression()))
        default = self.need_expression() if self._match(TokenType.ELSE) else None
        self.need(TokenType.END, "WHEN, ELSE or END")
        return exp.Case(this=subject, ifs=branches, default=default)

    def _parse_in(self, this: exp.Expr | None, alias: bool = False) -> exp.In:
        self.need(TokenType.L_PAREN, "'(' and a list of values")
        if self._curr.token_type in SUBQUERY_STARTS:
            self._refuse_subquery()
        values = [self.need_expression()]
        while self._match(TokenType.COMMA):
            values.append(self.need_expression())
        self.need(TokenType.R_PAREN, "',' or ')'")
        return exp.In(this=this, expressions=values)

    def _parse_between(self, this: exp.Expr | None) -> exp.Between:
        low = self._parse_bitwise()
        self.need(TokenType.AND, "AND and the upper bound of BETWEEN")
        return exp.Between(this=this, low=low, high=self._parse_bitwise())
