"""What a Python worker of Spark's does with the collector of garbage: once before its first task of ours, and when it keeps
something else between tasks than before.

After each task pyspark's worker collects garbage, which looks at every object that is alive: with numba, pandas and pyarrow
loaded that costs more than a small task. They stay for as long as the process does, so
`settle` has the collector pass them over from then on (`gc.freeze`). It does so before a task has made any state: what a
task drops must still be collected.

A worker that keeps the boxes of a slot keeps as many objects as the queries have parts: thousands of queries' expressions
are not looked at after each task either (`settle_with`). When boxes go, or others take their place, all objects are looked
at once more: boxes refer to one another in circles, and are gone when the collector has seen it.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping

import numpy as np

_settled = False
_with: dict[str, int] = {}
"""What the worker kept when the collector was last told, by name."""


def settle() -> None:
    """Loads what tasks use, and has the collector of garbage leave it alone; does nothing the second time."""
    global _settled
    if _settled:
        return
    _settled = True
    import anabranch.spark.reader
    import anabranch.spark.task  # noqa: F401
    from anabranch.engine.kernels.cells import coordinates

    # The first kernel that is called loads most of numba.
    coordinates(np.zeros(1, np.uint64), 2, np.zeros(1, np.int64))
    gc.collect()
    gc.freeze()


def settle_with(kept: Mapping[str, object]) -> None:
    """Has the collector leave alone what a worker keeps between tasks; does nothing if it keeps the same as before."""
    global _with
    now = {name: id(what) for name, what in kept.items()}
    if now == _with:
        return
    if any(now.get(name) != known for name, known in _with.items()):
        gc.unfreeze()
    _with = now
    gc.collect()
    gc.freeze()
