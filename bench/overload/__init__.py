"""Overload: what is left of the results, and how fresh, where there is not CPU enough (`python -m bench.overload`)."""
