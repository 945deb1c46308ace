"""What people are warned of in a query that is right as it is written, and may not be what they meant."""

from __future__ import annotations

from anabranch.plan.defeated import defeated
from anabranch.plan.partial import late_suppressed
from anabranch.plan.query import Query


def warnings_of(query: Query) -> list[str]:
    """Windows that are too short for the conditions of the query, and freshness that is too short for rows that come late;
    as sentences without a full stop."""
    return [*map(str, defeated(query)), *late_suppressed(query)]
