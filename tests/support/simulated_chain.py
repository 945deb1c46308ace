"""A chain of four streams for the simulators of Jaqpot."""

from __future__ import annotations

from anabranch.overload.half_way import Join, Plan, Stream
from bench.papers.jaqpot.matching import Equality

CHAIN = [Equality(("a", "ab"), ("b", "ab")), Equality(("b", "bc"), ("c", "bc")), Equality(("c", "cd"), ("d", "cd"))]
NAMES = ("a", "b", "c", "d")


def tree(text):
    """A plan by its notation, with no sizes."""
    stack = [[]]
    for token in text.replace("(", " ( ").replace(")", " ) ").split():
        if token == "(":
            stack.append([])
        elif token == ")":
            stack[-2].append(Join(tuple(stack.pop())))
        else:
            stack[-1].append(Stream(token, 1, 0, 0))
    return Plan(stack[0][0])
