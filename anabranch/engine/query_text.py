"""What state belongs to: the query it was written for, whatever its plan."""

from __future__ import annotations

import difflib

from anabranch.errors import ForeignStateError
from anabranch.plan.query import Query


def identity_of(query: Query) -> str:
    """The parts of a query that its state depends on, a line each."""
    lines = [f"{block.name}: {line}" for block in query.subqueries for line in identity_of(block).splitlines()]
    for i in query.inputs:
        columns = ", ".join(f"{f.name} {f.type}" for f in i.source.fields)
        lines.append(f"input {i.alias}: {i.source.name} ({columns}) [{i.window}]")
        lines += [f"  filter {f}" for f in i.filters]
    lines += [f"equality {e}" for e in query.equalities]
    lines += [f"residual {r}" for r in query.residuals]
    lines += [f"select {name}: {expr} {expr.type}" for name, expr in query.select]
    if (grouping := query.grouping) is not None:
        lines.append(f"group by the first {grouping.keys}, slide {grouping.slide_us} us")
        lines += [f"aggregate {a}: {a.type}" for a in grouping.aggregates]
        lines += [f"result {name}: {expr} {expr.type}" for name, expr in grouping.select]
        lines += [f"having {grouping.having}"] if grouping.having is not None else []
    return "\n".join(lines)


def require_same(query: Query, written: str, wanted: str) -> None:
    """Refuses state of another query, and shows the difference."""
    if written == wanted:
        return
    changes = difflib.unified_diff(
        written.splitlines(), wanted.splitlines(), "checkpoint", f"query {query.name}", lineterm=""
    )
    raise ForeignStateError(
        f"the checkpoint was written for another query than {query.name}:\n"
        + "\n".join(changes)
        + "\nuse another checkpoint, or the query it was written for"
    )
