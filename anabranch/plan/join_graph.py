"""Which inputs of a query are connected, and by which keys.

Equalities are closed transitively: terms that must be equal form a *class* (`A.k = B.k AND B.k = C.k` makes the class
`{A.k, B.k, C.k}`), so A can look up C by `k` although nobody wrote it. The invariant every plan relies on: once a set of
inputs has been joined, all terms of one class inside it are equal, so any of them can represent the class. Two terms of
one input in one class become a filter of that input (`implied_filters`).

Terms are expressions after their casts. `A.i = B.d` with an integer and a float puts `CAST(A.i AS double)` in the class,
not `A.i`: equality is transitive only within one type.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from anabranch.plan.expression import Call, Expr, ResultTime, aliases_of, walk
from anabranch.plan.query import Query
from anabranch.plan.ranges import Range, range_of

Aliases = tuple[str, ...]
"""A set of inputs, in the order of the query: how states and nodes are named."""


@dataclass(frozen=True)
class Key:
    """One pair of terms that a lookup compares: what the rows at hand have, and what the state is indexed by."""

    bound: Expr
    target: Expr


@dataclass(frozen=True)
class JoinGraph:
    """The join graph of a query."""

    query: Query

    @cached_property
    def classes(self) -> tuple[tuple[Expr, ...], ...]:
        """Terms that must be equal, in order of appearance; classes in order of their first equality."""
        classes: list[list[Expr]] = []
        for equality in self.query.equalities:
            touching = [c for c in classes if equality.left in c or equality.right in c]
            merged = [term for c in touching for term in c]
            merged += [term for term in (equality.left, equality.right) if term not in merged]
            if touching:
                classes[classes.index(touching[0])] = merged
                classes = [c for c in classes if c is merged or not any(c is t for t in touching)]
            else:
                classes.append(merged)
        return tuple(tuple(c) for c in classes)

    def ordered(self, aliases: Set[str]) -> Aliases:
        """The aliases in the order of the query."""
        return tuple(a for a in self.query.aliases if a in aliases)

    def keys_between(self, bound: Set[str], target: Set[str]) -> tuple[Key, ...]:
        """The keys by which rows of `bound` find rows of `target`; empty for a cartesian product."""
        keys = []
        for terms in self._inputs_of_terms:
            ours = next((term for term, aliases in terms if aliases <= bound), None)
            theirs = next((term for term, aliases in terms if aliases <= target), None)
            if ours is not None and theirs is not None:
                keys.append(Key(ours, theirs))
        return tuple(keys)

    @cached_property
    def _inputs_of_terms(self) -> tuple[tuple[tuple[Expr, frozenset[str]], ...], ...]:
        """The classes, with the inputs that each term reads: asked for far more often than anything else of a graph."""
        return tuple(tuple((term, aliases_of(term)) for term in terms) for terms in self.classes)

    def connected(self, left: Set[str], right: Set[str]) -> bool:
        return bool(self.keys_between(left, right))

    def range_between(self, bound: Set[str], target: Set[str]) -> Range | None:
        """The range in which rows of `bound` find rows of `target`, where predicates limit one."""
        return range_of(self.residuals_at(bound, target), bound, target)

    @cached_property
    def sampled_terms(self) -> tuple[tuple[str, Expr], ...]:
        """The keys of single inputs whose selectivities probes need not tell apart: where inputs are connected by more keys
        than a tree has, several are looked up at once; and a key of three inputs is never looked up between all pairs."""
        is_tree = len(self.classes) < len(self.query.aliases) and all(len(c) == 2 for c in self.classes)
        if is_tree:
            return ()
        return tuple((a, t) for terms in self.classes for t in terms for a in aliases_of(t) if len(aliases_of(t)) == 1)

    def implied_filters(self, alias: str) -> tuple[Expr, ...]:
        """What a row of an input must have to find any partner: keys that are not NULL, and equal where a class says so."""
        filters: list[Expr] = []
        for terms in self.classes:
            mine = [t for t in terms if aliases_of(t) == {alias}]
            filters += [Call(pa.bool_(), "not", (Call(pa.bool_(), "is_null", (t,)),)) for t in mine[:1]]
            filters += [Call(pa.bool_(), "eq", (mine[0], t)) for t in mine[1:]]
        return tuple(filters)

    def residuals_at(self, bound: Set[str], target: Set[str]) -> tuple[Expr, ...]:
        """The residual predicates that can be decided when `target` joins `bound`, and not before on either side."""
        both = bound | target
        return tuple(
            r
            for r in self.query.residuals
            if (needs := self.inputs_needed(r)) <= both and not needs <= bound and not needs <= target
        )

    def decided_in(self, aliases: Set[str]) -> tuple[Expr, ...]:
        """The residual predicates that combined rows of some inputs have passed."""
        return tuple(r for r in self.query.residuals if self.inputs_needed(r) <= aliases)

    def inputs_needed(self, residual: Expr) -> frozenset[str]:
        """The inputs that must be joined to decide a predicate. One on RESULT_TIME, or on no input at all, is decided on
        whole results."""
        aliases = aliases_of(residual)
        if not aliases or any(isinstance(node, ResultTime) for node in walk(residual)):
            return frozenset(self.query.aliases)
        return aliases
