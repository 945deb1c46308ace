"""Continuous SQL over several streams on Apache Spark: windowed multi-joins under plans that can change while they run.

>>> import anabranch as ab
>>> ab.Budget(cpu=1.5, memory="2 GiB")
Budget(cpu=1.5, memory='2 GiB', strict=False)
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anabranch.cost.facts import Given as Given
    from anabranch.run import Run as Run
    from anabranch.session import Session as Session
    from anabranch.settings import Adapt as Adapt
    from anabranch.settings import Budget as Budget
    from anabranch.spark import sinks as sinks
    from anabranch.storage.cache import Cache as Cache

__all__ = ["Adapt", "Budget", "Cache", "Given", "Run", "Session", "sinks"]


def __getattr__(name: str) -> Any:
    # The engine is used without Spark, too: importing a room below must not load it.
    if name == "sinks":
        from anabranch.spark import sinks

        return sinks
    if name in __all__:
        from anabranch import session

        return getattr(session, name)
    raise AttributeError(f"module 'anabranch' has no attribute {name!r}")
