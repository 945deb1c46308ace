"""Plans in few words and characters, from their notation: `((o s) p)`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeAlias

Tree: TypeAlias = "str | tuple[Tree, ...]"

_TOKEN = re.compile(r"[()]|[^\s()]+")
_ORDERS = re.compile(r"\{[^{}]*\}")


def tree_of(plan: str) -> Tree:
    """A plan as nested aliases, without its probe orders and what stands behind it.

    >>> tree_of("((o s) p){(o s): p}, p grouped first")
    (('o', 's'), 'p')
    """
    stack: list[list[Tree]] = [[]]
    for token in _TOKEN.findall(_ORDERS.sub("", plan)):
        if token == "(":
            stack.append([])
        elif token == ")" and len(stack) > 1:
            made = tuple(stack.pop())
            stack[-1].append(made)
            if len(stack) == 1:
                break
        else:
            stack[-1].append(token)
    return stack[0][0] if stack[0] else plan


def drawn(plan: str, names: Mapping[str, str] | None = None) -> str:
    """A plan in one line: what is joined and kept stands in brackets.

    >>> drawn("((o s) p)"), drawn("(o p s)"), drawn("((o s) p)", {"o": "orders", "s": "shipments", "p": "payments"})
    ('[o ⋈ s] ⋈ p', 'o ⋈ p ⋈ s', '[orders ⋈ shipments] ⋈ payments')
    """
    known = names or {}

    def visit(tree: Tree, is_top: bool) -> str:
        if isinstance(tree, str):
            return known.get(tree, tree)
        text = " ⋈ ".join(visit(child, False) for child in tree)
        return text if is_top else f"[{text}]"

    return visit(tree_of(plan), True)


def told(plan: str, names: Mapping[str, str] | None = None) -> str:
    """A plan in words.

    >>> told("((o s) p)", {"o": "orders", "s": "shipments", "p": "payments"})
    'joining orders with shipments first, then payments'
    >>> told("(a b c)"), told("(a b)")
    ('joining a, b and c at once', 'joining a with b')
    >>> told("((a b) (c d))"), told("(((a b) c) d)")
    ('joining a with b and c with d first, then both', 'joining a with b first, then c, then d')
    """
    tree = tree_of(plan)
    return f"reading {(names or {}).get(tree, tree)}" if isinstance(tree, str) else f"joining {_steps(tree, names or {})}"


def _steps(tree: tuple[Tree, ...], names: Mapping[str, str]) -> str:
    leaves = [names.get(child, child) for child in tree if isinstance(child, str)]
    joins = [child for child in tree if not isinstance(child, str)]
    if not joins:
        return " with ".join(leaves) if len(leaves) == 2 else f"{listed(leaves)} at once"
    first = " and ".join(_steps(child, names) for child in joins)
    rest = listed(leaves) if leaves else "both" if len(joins) == 2 else "all"
    return f"{first}{'' if ' first, then ' in first else ' first'}, then {rest}"


def listed(names: list[str]) -> str:
    """
    >>> listed(["a", "b", "c"]), listed(["a"])
    ('a, b and c', 'a')
    """
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
