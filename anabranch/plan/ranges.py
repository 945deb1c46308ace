"""Lookups by order: which comparisons of a join say where in the order of a term its partners lie.

A comparison `term < bound`, in which one side reads the state alone and the other the rows at hand alone, limits a lookup
if values of its type are in order as 64-bit words. All limits of one term make a range: `A.x BETWEEN B.x - 1 AND B.x + 1`
is a range of `A.x` for rows of B. For rows of A it is one of `B.x`, not of the two terms `B.x - 1` and `B.x + 1`: what is
added to a term is taken off the bounds (`Limit.shifts`), and a cast that changes no word is left out.

A range must have all partners in it, and may have more: the comparisons are checked again on what is found.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from math import isfinite

import pyarrow as pa

from anabranch.plan.expression import Call, Expr, Literal, ResultTime, aliases_of, walk

LARGEST_SHIFT = 2**60
"""No more than this is taken off a bound: sums of a few such numbers still fit a word."""

_MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


@dataclass(frozen=True)
class Limit:
    """The term with `shifts` added to it, the last one first, is at most (`is_upper`) or at least `bound`; below or above it
    if the limit `is_strict`."""

    bound: Expr
    is_upper: bool
    shifts: tuple[Literal, ...] = ()
    is_strict: bool = False

    @property
    def steps(self) -> tuple[float, ...]:
        """The shifts in units of the word: floats, or integers."""
        return tuple(_units(shift) for shift in self.shifts)

    def __str__(self) -> str:
        taken_off = "".join(
            f" + {-s.value}" if s.value < type(s.value)() else f" - {s.value}" for s in self.shifts
        )
        return f"{'<' if self.is_upper else '>'}{'' if self.is_strict else '='} {self.bound}{taken_off}"


@dataclass(frozen=True)
class Range:
    """A lookup of the rows whose `term` lies within all limits."""

    term: Expr
    limits: tuple[Limit, ...]

    @property
    def is_closed(self) -> bool:
        """Whether it is limited on both sides."""
        return len({limit.is_upper for limit in self.limits}) == 2

    @property
    def margin(self) -> int:
        """Integers so close to the least or the largest one may wrap when shifts are added: then limits say nothing."""
        if pa.types.is_floating(self.term.type):
            return 0
        return max(sum(abs(int(step)) for step in limit.steps) for limit in self.limits)

    def __str__(self) -> str:
        return " and ".join(f"{self.term} {limit}" for limit in self.limits)


def range_of(residuals: Iterable[Expr], bound: Set[str], target: Set[str]) -> Range | None:
    """The range by which rows of `bound` find those of `target`: of several terms one that is limited on both sides."""
    limits: dict[Expr, list[Limit]] = {}
    for residual in residuals:
        if isinstance(residual, Call) and residual.op in _MIRRORED:
            for op, ours, theirs in (
                (residual.op, residual.args[1], residual.args[0]),
                (_MIRRORED[residual.op], residual.args[0], residual.args[1]),
            ):
                if _reads_only(ours, bound) and _reads_only(theirs, target) and has_ordered_words(theirs.type):
                    term, shifts = _without_shifts(theirs)
                    # What is added to a term may be rounded off or wrap: then equal is not surely equal.
                    is_strict = op in ("lt", "gt") and not shifts
                    limits.setdefault(term, []).append(Limit(ours, op in ("lt", "le"), shifts, is_strict))
    found = [Range(term, tuple(of_term)) for term, of_term in limits.items()]
    return max(found, key=lambda r: r.is_closed, default=None)


def has_ordered_words(type: pa.DataType) -> bool:
    """Whether values of a type can be compared as 64-bit words."""
    if pa.types.is_decimal(type):
        return bool(type.precision <= 18)
    return bool(pa.types.is_primitive(type) and type.bit_width <= 64)


def _reads_only(expr: Expr, aliases: Set[str]) -> bool:
    read = aliases_of(expr)
    return bool(read) and read <= aliases and not any(isinstance(node, ResultTime) for node in walk(expr))


def _without_shifts(term: Expr) -> tuple[Expr, tuple[Literal, ...]]:
    """What literals are added to, and these, the outermost first.

    >>> from anabranch.plan.expression import Column
    >>> x = Column(pa.int64(), "a", "x")
    >>> found, shifts = _without_shifts(Call(x.type, "sub", (x, Literal(x.type, 3))))
    >>> str(found), [shift.value for shift in shifts]
    ('a.x', [-3])
    """
    shifts: list[Literal] = []
    while isinstance(term, Call):
        if term.op == "cast" and _same_words(term.args[0].type, term.type):
            term = term.args[0]
            continue
        left, right = term.args if term.op in ("add", "sub") else (term, term)
        if term.op == "add" and isinstance(left, Literal):
            left, right = right, left
        if not _is_shift(left, right, term.type):
            break
        assert isinstance(right, Literal)
        shifts.append(Literal(right.type, -right.value) if term.op == "sub" else right)
        term = left
    return term, tuple(shifts)


def _is_shift(term: Expr, added: Expr, type: pa.DataType) -> bool:
    """Whether adding a literal to a term adds as much to its word (or, for floats, is monotone)."""
    if not isinstance(added, Literal) or added.value is None or not _same_words(term.type, type):
        return False
    if pa.types.is_floating(type):
        return bool(type == term.type == added.type == pa.float64() and isfinite(added.value))
    if pa.types.is_timestamp(type):
        return bool(type == pa.timestamp("us") and added.type == pa.duration("us") and abs(_units(added)) <= LARGEST_SHIFT)
    if pa.types.is_decimal(type):
        return bool(pa.types.is_decimal(added.type) and added.type.scale == type.scale)
    return bool(type == term.type == added.type == pa.int64() and abs(_units(added)) <= LARGEST_SHIFT)


def _same_words(narrow: pa.DataType, wide: pa.DataType) -> bool:
    """Whether values of a type have the same words when cast to a wider one."""
    if not has_ordered_words(wide):
        return False
    if pa.types.is_decimal(narrow) and pa.types.is_decimal(wide):
        return bool(narrow.scale == wide.scale and narrow.precision <= wide.precision)
    for kind in (pa.types.is_signed_integer, pa.types.is_floating):
        if kind(narrow) and kind(wide):
            return bool(narrow.bit_width <= wide.bit_width)
    return bool(narrow == wide)


def _units(shift: Literal) -> float:
    """A literal in units of the word of what it is added to."""
    value = shift.value
    if isinstance(value, timedelta):
        return value // timedelta(microseconds=1)
    if isinstance(value, Decimal):
        return int(value.scaleb(shift.type.scale))
    return float(value) if pa.types.is_floating(shift.type) else int(value)
