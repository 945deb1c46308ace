"""Plans like those of the paper, and random ones."""

from __future__ import annotations

from hypothesis import strategies as st

from anabranch.overload.half_way import Join, Plan, ProbeCost, Stream, join


def streams(rates=(300, 400, 500, 600, 700), rows=1000):
    return [Stream(name, rate, rows, 0.0) for name, rate in zip("abcde", rates, strict=False)]


def linear(rates=(300, 400, 500, 600), rows=1000, selectivities=(0.01, 0.01, 0.05), state_rows=1000):
    """(((a b) c) d)."""
    first, *others = streams(rates, rows)[: len(selectivities) + 1]
    found = first
    for n, (other, selectivity) in enumerate(zip(others, selectivities, strict=True)):
        found = join(found, other, selectivity, state_rows if n + 1 < len(others) else 0)
    return Plan(found)


def bushy(rates=(300, 400, 500, 600), rows=1000, selectivities=(0.01, 0.01, 0.05), state_rows=1000):
    """((a b) (c d))."""
    a, b, c, d = streams(rates, rows)[:4]
    left, right = join(a, b, selectivities[0], state_rows), join(c, d, selectivities[1], state_rows)
    return Plan(join(left, right, selectivities[2]))


def _number(low, high):
    return st.floats(low, high, allow_nan=False, allow_infinity=False)


@st.composite
def plans(draw, most=6, widest=2, unit=False):
    """Any tree over two to `most` streams, with joins of up to `widest` inputs."""
    count = draw(st.integers(2, most))
    parts = [
        Stream(f"s{n}", draw(_number(1, 1000)), draw(_number(1, 500)), draw(_number(0.001, 0.2))) for n in range(count)
    ]
    while len(parts) > 1:
        width = draw(st.integers(2, min(widest, len(parts))))
        at = draw(st.integers(0, len(parts) - width))
        merged = Join(tuple(parts[at : at + width]), draw(_number(1, 500)), draw(_number(0.001, 0.2)))
        parts[at : at + width] = [merged]
    root = Join(parts[0].inputs)
    cost = ProbeCost() if unit else ProbeCost(draw(_number(0.1, 5)), draw(_number(0, 3)), draw(_number(0, 3)))
    return Plan(root, cost)
