"""Random texts from the grammar: mostly well typed, some with odd operands, some with words dropped, swapped or doubled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

NUMBERS = ("1", "0", "-3", "2.50", "1e3", ".5", "9223372036854775807", "12345678901234567890.123456789", "NULL")
TEXTS = ("'a'", "''", "'it''s'", "'2024-01-31'", "'1.5'", "'äö'", "NULL")
TIMES = ("TIMESTAMP '2024-01-31 10:00:00.5'", "TIMESTAMP '1970-01-01'", "RESULT_TIME", "CAST('2024-01-31' AS TIMESTAMP)")
DAYS = ("DATE '2024-01-31'", "DATE '0001-01-01'", "CAST('2024-01-31' AS DATE)")
ODD = ("X'ff00'", "NULL", "INTERVAL 5 SECONDS", "COUNT(*)", "MAX(1)", "tags", "(1, 2)", "(SELECT 1)", "nothing.a", "raw")
TYPES = (
    "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "BOOLEAN", "STRING", "BINARY", "DATE", "TIMESTAMP",
    "DECIMAL(10,2)", "DECIMAL(38,38)", "DECIMAL", "VARCHAR(3)", "ARRAY<INT>", "MAP<STRING, INT>", "STRUCT<a: INT>",
)  # fmt: skip
LENGTHS = ("1 SECOND", "10 SECONDS", "2.5 SECONDS", "INTERVAL '1 hour 30 minutes'", "1 MICROSECOND", "400 DAYS")
SLIDES = ("1 SECOND", "500 MILLISECONDS", "3 SECONDS", "1 DAY")
"""None so short that a test would wait for millions of instants."""

COMPARISONS = ("=", "<>", "<", "<=", ">", ">=", "<=>", "IS DISTINCT FROM", "IS NOT DISTINCT FROM")
NOISE = (
    "SELECT", "FROM", "WHERE", "GROUP BY", "HAVING", "SLIDE", "WINDOW", "FRESHNESS",
    "OVERLOAD", "JOIN", "ON", "AS", "(", ")", "[", "]", ",", ".",
    "*", "+", "-", "=", ";", "AND", "NOT", "NULL", "1", "'x'", "x", "CASE", "END", "[NOW]", "COUNT(", "DISTINCT", "IN",
    "CREATE", "QUERY", "STREAM", "TIME", "::", "||", "LEFT", "UNION",
)  # fmt: skip


@dataclass(frozen=True)
class Input:
    """What a FROM item offers: its alias, and its columns by the kind of expression they are."""

    alias: str
    columns: dict[str, tuple[str, ...]]


SOURCES: dict[str, dict[str, tuple[str, ...]]] = {
    "trades": {
        "number": ("price", "qty", "amount"), "text": ("symbol",), "day": ("day",), "truth": ("ok",), "time": ("ts",),
    },
    "quotes": {"number": ("bid", "n"), "text": ("symbol",), "time": ("ts",)},
    "symbols": {"number": ("kind",), "text": ("symbol", "name")},
}  # fmt: skip
KINDS = ("number", "text", "truth", "time", "day")


class Grammar:
    """Draws texts; `oddness` is how likely an operand is of a kind that does not belong there."""

    def __init__(self, rng: Random, oddness: float) -> None:
        self.rng, self.oddness = rng, oddness

    def one(self, choices: Sequence[str]) -> str:
        return self.rng.choice(choices)

    def maybe(self, likely: float) -> bool:
        return self.rng.random() < likely

    def length(self, lengths: Sequence[str] = LENGTHS) -> str:
        return "0 SECONDS" if self.maybe(self.oddness / 2) else self.one(lengths)

    # Statements

    def script(self) -> str:
        """A query over the sources of `tests.sql.sources`, sometimes behind statements of its own."""
        select, _ = self.select(2)
        if self.maybe(0.2):
            plan = f" PLAN '{self.one(('(a b)', 'a', '((a b) c)', ''))}'" if self.maybe(0.3) else ""
            select = f"CREATE QUERY named{plan} AS {select}"
        return f"{self.create()}; {select}" if self.maybe(0.1) else select

    def create(self) -> str:
        columns = ", ".join(f"c{i} {self.one(TYPES)}" for i in range(self.rng.randint(1, 3)))
        lateness = f" LATENESS {self.length()}" if self.maybe(0.5) else ""
        place = self.one(("", " FROM 'here/*.csv'", " FROM 'here' FORMAT json", " FORMAT arrow"))
        if self.maybe(0.3):
            return f"CREATE TABLE more ({columns}){place}"
        ahead = self.one(("", " AHEAD NONE", f" AHEAD {self.length()}"))
        idle = self.one(("", " IDLE NONE", " IDLE 5 SECONDS"))
        if "FROM" in place:
            place += self.one(("", " ON ERROR FAIL", " ON ERROR SKIP", " ON ERROR INTO 'there'"))
        return f"CREATE STREAM more ({columns}, at TIMESTAMP) TIME at{lateness}{ahead}{idle}{place}"

    def select(self, depth: int) -> tuple[str, dict[str, tuple[str, ...]]]:
        """A SELECT, and the columns it gives."""
        inputs: list[Input] = []
        source = self.inputs(inputs, depth)
        where = f" WHERE {self.expression('truth', inputs, 2)}" if self.maybe(0.4) else ""
        grouped = self.maybe(0.5)
        keys = [self.key(inputs) for _ in range(self.rng.randint(0, 2))] if grouped else []
        entries: list[str] = []
        columns: dict[str, list[str]] = {}
        for place in range(self.rng.randint(1, 3)):
            if self.maybe(self.oddness):
                entries.append(self.one(("*", f"{inputs[0].alias}.*")))
                continue
            kind = self.one(KINDS)
            if not grouped:
                entry = self.expression(kind, inputs, 2)
            elif keys and self.maybe(0.4):
                kind, entry = self.rng.choice(keys)
            else:
                entry = self.over_groups(kind, inputs, 2)
            entries.append(f"{entry} AS c{place}" if self.maybe(0.9) else entry)
            columns.setdefault(kind, []).append(f"c{place}")
        group_by = ""
        if keys:
            by = [key if self.maybe(0.95) else str(self.rng.randint(1, 2)) for _, key in keys]
            group_by = f" GROUP BY {', '.join(by)}"
        having = f" HAVING {self.over_groups('truth', inputs, 1)}" if grouped and self.maybe(0.3) else ""
        slide = f" SLIDE {self.length(SLIDES)}" if self.maybe(0.3 if grouped else self.oddness) else ""
        window = f" WINDOW {self.length()}" if self.maybe(1 - self.oddness) else ""
        text = f"SELECT {', '.join(entries)} FROM {source}{where}{group_by}{having}{window}{slide}"
        return text, {kind: tuple(names) for kind, names in columns.items()}

    def inputs(self, known: list[Input], depth: int) -> str:
        text = ""
        for place in range(self.rng.choice((1, 1, 2, 2, 3))):
            alias = self.one("abcdef") if self.maybe(self.oddness) else "abcdef"[place]
            if depth and self.maybe(0.3):
                inner, columns = self.select(depth - 1)
                item = f"({inner}) {alias}"
            else:
                source = self.one(("trades", "trades", "quotes", "quotes", "symbols") if place else ("trades", "quotes"))
                columns = SOURCES[source]
                window = self.one(("", "[RANGE 10 SECONDS]", "[NOW]", "[UNBOUNDED]", f"[RANGE {self.length()}]",
                                   "[NOW FRESHNESS 1 MINUTE]", f"[RANGE 10 SECONDS FRESHNESS {self.length()}]"))
                item = f"{source} {'' if source == 'symbols' else window} AS {alias}"
            known.append(Input(alias, columns))
            if not place:
                text = item
            elif self.maybe(0.5):
                text += f" JOIN {item} ON {self.join_condition(known)}"
            else:
                text += f"{self.one((',', ' CROSS JOIN'))} {item}"
        return text

    def join_condition(self, known: list[Input]) -> str:
        kind = self.one(KINDS)
        left, right = self.operand(kind, known[:-1]), self.operand(kind, known[-1:])
        more = f" AND {self.expression('truth', known, 1)}" if self.maybe(0.3) else ""
        return f"{left} {self.one(COMPARISONS)} {right}{more}"

    def key(self, inputs: Sequence[Input]) -> tuple[str, str]:
        kind = self.one(KINDS)
        return kind, self.expression(kind, inputs, 1)

    # Expressions

    def operand(self, kind: str, inputs: Sequence[Input]) -> str:
        """A column or a constant."""
        found = [f"{i.alias}.{c}" for i in inputs for c in i.columns.get(kind, ())]
        if found and self.maybe(0.8):
            return self.one(found)
        constants = {"number": NUMBERS, "text": TEXTS, "truth": ("TRUE", "FALSE", "NULL"), "time": TIMES, "day": DAYS}
        return self.one(constants[kind])

    def expression(self, kind: str, inputs: Sequence[Input], depth: int) -> str:
        return self._made(kind, depth, lambda k, d: self.expression(k, inputs, d), lambda k: self.operand(k, inputs))

    def over_groups(self, kind: str, inputs: Sequence[Input], depth: int) -> str:
        """The same over aggregates."""
        return self._made(kind, depth, lambda k, d: self.over_groups(k, inputs, d), lambda k: self.aggregate(k, inputs))

    def aggregate(self, kind: str, inputs: Sequence[Input]) -> str:
        if kind == "number" and self.maybe(0.7):
            argument = self.expression("number" if self.maybe(0.9) else self.one(KINDS), inputs, 1)
            counted = self.expression(self.one(KINDS), inputs, 1)
            return self.one(("COUNT(*)", f"COUNT({counted})", f"COUNT(DISTINCT {counted})", f"SUM({argument})",
                             f"AVG({argument})", f"STDDEV({argument})", f"MAX(DISTINCT {argument})"))  # fmt: skip
        return f"{self.one(('MIN', 'MAX'))}({self.expression(kind, inputs, 1)})"

    def _made(
        self, kind: str, depth: int, below: Callable[[str, int], str], leaf: Callable[[str], str]
    ) -> str:
        if self.maybe(self.oddness):
            return self.one(ODD)
        if self.maybe(self.oddness):
            kind = self.one(KINDS)
        if depth == 0 or self.maybe(0.35):
            return leaf(kind)

        def some(wanted: str) -> str:
            return below(wanted, depth - 1)

        if self.maybe(0.25):
            return self._of_any_kind(kind, some)
        makers = {
            "number": self._number, "text": self._text, "truth": self._truth, "time": self._time, "day": self._day,
        }  # fmt: skip
        return makers[kind](some)

    def _of_any_kind(self, kind: str, some: Callable[[str], str]) -> str:
        a, b, truth = some(kind), some(kind), some("truth")
        return self.one((
            f"({a})", f"CASE WHEN {truth} THEN {a} ELSE {b} END", f"CASE WHEN {truth} THEN {a} END", f"COALESCE({a}, {b})",
            f"IF({truth}, {a}, {b})", f"NULLIF({a}, {b})", f"GREATEST({a}, {b})", f"LEAST({a}, {b})",
            f"CASE {b} WHEN {a} THEN {a} ELSE {b} END", f"CAST({some(self.one(KINDS))} AS {self.one(TYPES)})",
            f"CAST({a} AS {self._type(kind)})",
        ))  # fmt: skip

    def _type(self, kind: str) -> str:
        numbers = ("INT", "BIGINT", "DOUBLE", "FLOAT", "SMALLINT", "DECIMAL(10,2)", "DECIMAL(38,10)", "TINYINT")
        return {"text": "STRING", "truth": "BOOLEAN", "time": "TIMESTAMP", "day": "DATE"}.get(kind) or self.one(numbers)

    def _number(self, some: Callable[[str], str]) -> str:
        a, b = some("number"), some("number")
        return self.one((
            f"{a} + {b}", f"{a} - {b}", f"{a} * {b}", f"{a} / {b}", f"{a} % {b}", f"- {a}", f"ABS({a})", f"FLOOR({a})",
            f"CEIL({a})", f"ROUND({a})", f"ROUND({a}, {self.rng.randint(-4, 4)})", f"SQRT({a})", f"LENGTH({some('text')})",
            f"YEAR({some('time')})", f"MONTH({some('day')})", f"DAY({some('day')})", f"HOUR({some('time')})",
            f"SECOND({some('time')})", f"CAST({some('text')} AS {self._type('number')})",
        ))  # fmt: skip

    def _text(self, some: Callable[[str], str]) -> str:
        a = some("text")
        return self.one((
            f"UPPER({a})", f"LOWER({a})", f"TRIM({a})", f"{a} || {some('text')}", f"CONCAT({a}, {some('text')}, '-')",
            f"SUBSTRING({a}, {0 if self.maybe(self.oddness) else 2})", f"SUBSTR({a}, 2, {self.rng.randint(0, 3)})",
            f"CAST({some(self.one(KINDS))} AS STRING)",
        ))  # fmt: skip

    def _truth(self, some: Callable[[str], str]) -> str:
        kind = self.one(KINDS)
        a, b, c = some(kind), some(kind), some(kind)
        return self.one((
            f"{a} {self.one(COMPARISONS)} {b}", f"{a} {self.one(COMPARISONS)} {b}", f"{a} BETWEEN {b} AND {c}",
            f"{a} IN ({b}, {c})", f"{a} NOT IN ({b})", f"{a} IS NULL", f"{a} IS NOT NULL", f"{some('truth')} IS NOT TRUE",
            f"NOT {some('truth')}", f"{some('truth')} AND {some('truth')}", f"({some('truth')} OR {some('truth')})",
            f"{some('text')} LIKE {self.one(TEXTS[:-1])}", f"{some('text')} NOT LIKE '%a_'",
        ))  # fmt: skip

    def _time(self, some: Callable[[str], str]) -> str:
        length = self.one(LENGTHS).removeprefix("INTERVAL ")
        return f"{some(self.one(('time', 'time', 'day')))} {self.one('+-')} INTERVAL {length}"

    def _day(self, some: Callable[[str], str]) -> str:
        return f"CAST({some(self.one(('time', 'text')))} AS DATE)"


def mutated(rng: Random, text: str, times: int) -> str:
    """A text with words dropped, swapped, doubled or put in, as often as asked."""
    words = text.split(" ")
    for _ in range(times):
        at, other = rng.randrange(len(words)), rng.randrange(len(words))
        kind = rng.choice(("drop", "swap", "double", "put in"))
        if kind == "drop" and len(words) > 1:
            del words[at]
        elif kind == "swap":
            words[at], words[other] = words[other], words[at]
        elif kind == "double":
            words.insert(at, words[at])
        else:
            words.insert(at, rng.choice(NOISE))
    return " ".join(words)
