"""What waits in the sources of a streaming query, as far as Spark's own progress tells: the offset that a source has reached
beside the one that was last read.

An offset is a number, or numbers by name: files of our reader, rows of a partition of Kafka's. Units differ, so what waits
is told in batches like the last one: with 40 files waiting where the last trigger took 10, four batches wait.
"""

from __future__ import annotations

import json
from typing import Any


def batches_waiting(progress_json: str) -> float | None:
    """How many batches like the last one wait in the sources of a streaming query, the mean of those that tell.

    >>> source = {"startOffset": {"files": 20}, "endOffset": {"files": 30}, "latestOffset": {"files": 70}}
    >>> batches_waiting(json.dumps({"sources": [source]})), batches_waiting(json.dumps({"sources": [{"endOffset": "x"}]}))
    (4.0, None)
    """
    found = []
    for source in json.loads(progress_json).get("sources", ()):
        start, end, latest = (_number(source.get(f"{name}Offset")) for name in ("start", "end", "latest"))
        if start is not None and end is not None and latest is not None and end > start:
            found.append(max(0.0, latest - end) / (end - start))
    return sum(found) / len(found) if found else None


def _number(offset: Any) -> float | None:
    """An offset as one number: the sum of the numbers in it; None if there is something else in it."""
    if isinstance(offset, bool) or offset is None:
        return None
    if isinstance(offset, int | float):
        return float(offset)
    if isinstance(offset, str):
        try:
            return _number(json.loads(offset))
        except ValueError:
            return None
    if isinstance(offset, dict):
        parts = [_number(part) for part in offset.values()]
        known = [part for part in parts if part is not None]
        return sum(known) if known and len(known) == len(parts) else None
    return None
