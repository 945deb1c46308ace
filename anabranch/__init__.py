"""Continuous SQL over several streams on Apache Spark: windowed multi-joins under plans that can change while they run.

>>> import anabranch as ab
>>> ab.Budget(cpu=1.5, memory="2 GiB")
Budget(cpu=1.5, memory='2 GiB', strict=False)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from anabranch.version import __version__ as __version__

if TYPE_CHECKING:
    from anabranch import errors as errors
    from anabranch.cost.facts import Given as Given
    from anabranch.place.databases.named import database as database
    from anabranch.run import Run as Run
    from anabranch.session import Session as Session
    from anabranch.settings import Adapt as Adapt
    from anabranch.settings import Budget as Budget
    from anabranch.settings import Overload as Overload
    from anabranch.spark import sinks as sinks
    from anabranch.storage.cache import Cache as Cache

__all__ = ["Adapt", "Budget", "Cache", "Given", "Overload", "Run", "Session", "database", "errors", "sinks"]

_ROOMS = {"errors": "anabranch.errors", "sinks": "anabranch.spark.sinks"}
"""The names that are modules."""


def __getattr__(name: str) -> Any:
    # The engine is used without Spark, too: importing a room below must not load it.
    if name in _ROOMS:
        return import_module(_ROOMS[name])
    if name in __all__:
        return getattr(import_module("anabranch.session"), name)
    from anabranch.errors import did_you_mean

    hint = did_you_mean(name, __all__)
    raise AttributeError(f"module 'anabranch' has no attribute {name!r}" + (f": {hint}" if hint else ""))


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
