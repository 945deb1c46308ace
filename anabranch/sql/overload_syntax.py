"""What CREATE QUERY says of overload:

    OVERLOAD 'adapt joins' CLOCK WALL CPU 1.5 ALLOW t 0.4, q 0.1 ALGORITHM UNIFORM MAY SHED EPSILON 0.05 P 0.05 PILOT 0.05

The policy stands first; what follows may be left out, and stands in any order. It is what `anabranch.plan.overload.Overload`
has, and is checked there.
"""

from __future__ import annotations

from typing import Any

from sqlglot import TokenType

from anabranch.errors import SessionError, SyntaxSqlError
from anabranch.plan.overload import Overload
from anabranch.sql.expression_syntax import ExpressionReader


class OverloadReader(ExpressionReader):
    """Reads the clause OVERLOAD."""

    def read_overload(self) -> Overload:
        """What stands after the word OVERLOAD."""
        at = self.here()
        said: dict[str, Any] = {"policy": self.need(TokenType.STRING, "a policy in '…', like 'adapt joins'").text}
        found = self._made(said, at)
        while self.at_word("CLOCK", "CPU", "ALLOW", "ALGORITHM", "MAY", "EPSILON", "P", "PILOT"):
            at, word = self.here(), self._curr.text.upper()
            self._advance()
            name = {"ALLOW": "allowances", "MAY": "may_shed"}.get(word, word.lower())
            if name in said:
                self.fail(SyntaxSqlError, f"{word} stands twice", at)
            said[name] = self._option(name)
            found = self._made(said, at)
        return found

    def _option(self, name: str) -> object:
        if name in ("clock", "algorithm"):
            return self.need_name(f"the {name}").text.lower()
        if name == "may_shed":
            if not self.word("SHED"):
                self.expected("SHED after MAY")
            return True
        if name != "allowances":
            return self._number(f"a number after {name.upper()}")
        shares: dict[str, float] = {}
        while not shares or self._match(TokenType.COMMA):
            alias = self.need_name("an input and the share of its rows, like t 0.4")
            if alias.text in shares:
                self.fail(SyntaxSqlError, f"{alias.text} stands twice", alias.at)
            shares[alias.text] = self._number(f"the share of {alias.text}, like 0.4")
        return shares

    def _number(self, what: str) -> float:
        sign = -1 if self._match(TokenType.DASH) else 1
        return sign * float(self.need(TokenType.NUMBER, what).text)

    def _made(self, said: dict[str, Any], at: int) -> Overload:
        try:
            return Overload(**said)
        except SessionError as error:
            self.fail(SyntaxSqlError, str(error), at)
