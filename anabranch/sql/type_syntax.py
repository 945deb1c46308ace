"""How types are written: `DECIMAL(10, 2)`, `ARRAY<STRUCT<a: INT, b STRING>>`."""

from __future__ import annotations

import pyarrow as pa
from sqlglot import TokenType

from anabranch.errors import SyntaxSqlError, UnsupportedSqlError, did_you_mean
from anabranch.plan.outward import unzoned, zoned
from anabranch.sql.dialect import Reader
from anabranch.sql.types import DECIMALS, MAX_PRECISION, SIMPLE_TYPES, SIZED_STRINGS, TYPE_NAMES

DEFAULT_DECIMAL = (10, 0)
"""Spark's meaning of DECIMAL without digits."""


class TypeReader(Reader):
    """The part of the parser that reads types into Arrow's."""

    def need_type(self) -> pa.DataType:
        """A type of the engine."""
        return unzoned(self.need_outward_type())

    def need_outward_type(self) -> pa.DataType:
        """A type as a column is declared: TIMESTAMP is an instant, TIMESTAMP_NTZ has no zone."""
        at = self.here()
        if self._curr.token_type != TokenType.VAR:
            self.expected("a type")
        name = self._curr.text.upper()
        self._advance()
        if name in SIMPLE_TYPES:
            return SIMPLE_TYPES[name] if name == "TIMESTAMP_NTZ" else zoned(SIMPLE_TYPES[name])
        if name in SIZED_STRINGS:
            self._type_sizes()
            return pa.string()
        if name in DECIMALS:
            sizes = self._type_sizes() or DEFAULT_DECIMAL
            precision, scale = sizes if len(sizes) == 2 else (sizes[0], 0)
            if not 1 <= precision <= MAX_PRECISION or not 0 <= scale <= precision:
                self.fail(SyntaxSqlError, f"DECIMAL({precision},{scale}): 1 to {MAX_PRECISION} digits, of which "
                          "at most all stand behind the point", at)  # fmt: skip
            return pa.decimal128(precision, scale)
        if name not in ("ARRAY", "MAP", "STRUCT"):
            hint = did_you_mean(name, TYPE_NAMES) or "the types are " + ", ".join(sorted(TYPE_NAMES))
            self.fail(UnsupportedSqlError, f"the type {name} is not supported", at, hint)
        return self._nested_type(name)

    def _type_sizes(self) -> tuple[int, ...]:
        """`(10, 2)`, or nothing."""
        if not self._match(TokenType.L_PAREN):
            return ()
        sizes: list[int] = []
        while not sizes or (len(sizes) < 2 and self._match(TokenType.COMMA)):
            if self._curr.token_type != TokenType.NUMBER or not self._curr.text.isdecimal():
                self.expected("a number of digits")
            sizes.append(int(self._curr.text[:9]))
            self._advance()
        self.need(TokenType.R_PAREN, "')'")
        return tuple(sizes)

    def _nested_type(self, name: str) -> pa.DataType:
        self.need(TokenType.LT, f"'<' after {name}")
        if name == "ARRAY":
            found: pa.DataType = pa.list_(self.need_outward_type())
        elif name == "MAP":
            key = self.need_outward_type()
            self.need(TokenType.COMMA, "',' and the type of the values")
            found = pa.map_(key, self.need_outward_type())
        else:
            fields: list[pa.Field] = []
            while not fields or self._match(TokenType.COMMA):
                field = self.need_name("the name of a field").text
                self._match(TokenType.COLON)
                fields.append(pa.field(field, self.need_outward_type()))
            found = pa.struct(fields)
        self.need(TokenType.GT, "'>'")
        return found
