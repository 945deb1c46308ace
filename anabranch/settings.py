"""What a user may set for all queries of a session."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from datetime import timedelta

from anabranch.adapt.loop import Settings
from anabranch.adapt.scope import Scope
from anabranch.adapt.timing import DataDriven, MemoryDriven, RefinedMemoryDriven, Timing
from anabranch.errors import PlanError, SessionError, did_you_mean
from anabranch.optimize.planner import Bounds, parse_bytes
from anabranch.plan.migration import Strategy
from anabranch.plan.overload import Overload as Overload
from anabranch.sql import parse_duration

TIMINGS = ("data", "aggressive", "memory", "refined-memory", "never")


@dataclass(frozen=True)
class Budget:
    """What all queries of a session may use together: CPU in cores, state in bytes or like "2 GiB". `strict` refuses a query
    with which no plans are within it; else the least bad plans run."""

    cpu: float | None = None
    memory: int | float | str | None = None
    strict: bool = False

    def __post_init__(self) -> None:
        if self.cpu is not None and (not _is_number(self.cpu) or not self.cpu > 0):
            raise SessionError(f"the cpu of a budget is a number of cores above 0, like 1.5: not {self.cpu!r}")
        if self.memory is not None:
            size_bytes(self.memory, "the memory of a budget")
        if not isinstance(self.strict, bool):
            raise SessionError(f"strict is True or False: not {self.strict!r}")

    @property
    def bounds(self) -> Bounds:
        cpu = float("inf") if self.cpu is None else float(self.cpu)
        return Bounds(cpu, float("inf") if self.memory is None else parse_bytes(self.memory))


@dataclass(frozen=True)
class Adapt:
    """How the plans of a session's queries change while they run.

    `timing` says when another plan is thought about: when statistics have changed ("data", after `interval` batches at the
    earliest, by more than `threshold`; "aggressive" at once), when memory gets short or rows pile up ("memory", and
    "refined-memory", which looks at views too), or "never". `pause` is how long a batch may wait for a migration; `strategy`
    ("moving-state", "parallel-track", "gradual") pins the way, else the cheapest within the pause is taken. `scope` is the
    "whole" plan or the "part" of it that has what changed. With `approve` a change waits for `run.approve(query)`.
    """

    timing: str = "data"
    interval: int = 4
    threshold: float = 0.2
    window: int = 8
    pause: str | timedelta = "500 milliseconds"
    strategy: str | None = None
    scope: str = "whole"
    library: bool = True
    approve: bool = False

    def __post_init__(self) -> None:
        _one_of("timing", self.timing, TIMINGS)
        _one_of("scope", self.scope, [s.value for s in Scope])
        if self.strategy is not None:
            strategy_of(self.strategy)
        if not all(map(_is_number, (self.interval, self.window, self.threshold))) or (
            self.interval < 1 or self.window < 2 or not self.threshold > 0
        ):
            raise SessionError("give an interval of 1 batch or more, a window of 2 or more, and a threshold above 0")
        parse_duration(self.pause, "pause")

    def settings(self, bounds: Bounds) -> Settings:
        """The same for the loop."""
        return Settings(
            self._timing(bounds), self.window, Scope(self.scope), parse_duration(self.pause, "pause") / 1e6,
            strategy_of(self.strategy) if self.strategy is not None else None, self.library,
        )  # fmt: skip

    def _timing(self, bounds: Bounds) -> Timing:
        if self.timing == "memory":
            return MemoryDriven(bounds.memory, interval=self.interval)
        if self.timing == "refined-memory":
            return RefinedMemoryDriven(bounds.memory, interval=self.interval)
        return DataDriven(self.interval, self.threshold, aggressive=self.timing == "aggressive")


def strategy_of(name: str) -> Strategy:
    _one_of("strategy", name, [s.value for s in Strategy])
    return Strategy(name)


def size_bytes(given: int | float | str, what: str) -> float:
    """A size above 0 that was given as a number of bytes or like "2 GiB"; `what` names it in errors."""
    size = None
    if isinstance(given, str) or _is_number(given):
        with contextlib.suppress(PlanError):
            size = parse_bytes(given)
    if size is None or not size > 0:
        raise SessionError(f"{what} is a number of bytes above 0, or a text like '500 MB' or '2 GiB': not {given!r}")
    return size


def _is_number(given: object) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool)


def _one_of(what: str, given: str, known: tuple[str, ...] | list[str]) -> None:
    if given not in known:
        hint = did_you_mean(str(given), known)
        raise SessionError(f"{given!r} is not a {what}: it is one of {', '.join(known)}" + (f"; {hint}" if hint else ""))
