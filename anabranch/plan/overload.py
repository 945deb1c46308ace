"""What a user asks for when streams bring more than there is CPU to join.

By default a query is exact and falls behind. A policy that may lose results says which ones: never wrong, repeated or staler
than promised, and what is missing is measured. JAQPOT (paper 001) has the algorithms, `anabranch.overload` is their room.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import TYPE_CHECKING

from anabranch.errors import SessionError, did_you_mean


class Policy(StrEnum):
    """What becomes of results when there is not CPU enough for all."""

    FALL_BEHIND = "fall behind"
    """All of them, late."""
    ADAPT_JOINS = "adapt joins"
    """Lookups that give results are limited to what there is CPU for, those that give least first."""
    SHED = "shed"
    """Rows are dropped before they are joined, at random."""
    FAIL = "fail"
    """The run ends with an error."""

    @property
    def may_lose(self) -> bool:
        """Whether results may be missing."""
        return self in (Policy.ADAPT_JOINS, Policy.SHED)


class Clock(StrEnum):
    """By what freshness is told."""

    EVENT = "event"
    """The least of the largest event times that the query's streams have shown before the batch."""
    WALL = "wall"
    """The driver's clock when the batch was first planned."""


class Algorithm(StrEnum):
    """How CPU is given to directions of a join."""

    PATHS = "paths"
    """To the directions that give most results for it."""
    UNIFORM = "uniform"
    """The same share of rows of each."""


@dataclass(frozen=True)
class Overload:
    """What queries do under overload.

    `policy` is one of "fall behind" (the default), "adapt joins", "shed", "fail". `clock` is that of FRESHNESS: "event" or
    "wall" (None: "wall" with `processingTime`, else "event"). `cpu` is the CPU that a batch may take, in seconds per second
    (None: the cores of the slots). `allowances` pins the share of rows of an input that look up their partners, by alias:
    `{"a": 0.4}`. `algorithm` is "paths" or "uniform". With `may_shed`, "adapt joins" drops rows, too, where taking them in
    alone takes too long. `epsilon` is by how much the load must change for allowances to be thought of again, and `p` how
    many more results other allowances must give to be taken (001, section 4.4). `pilot` is the share of rows that looks up
    in any direction, so that it is seen what it would give."""

    policy: Policy = Policy.FALL_BEHIND
    clock: Clock | None = None
    cpu: float | None = None
    allowances: Mapping[str, float] = field(default_factory=dict)
    algorithm: Algorithm = Algorithm.PATHS
    may_shed: bool = False
    epsilon: float = 0.05
    p: float = 0.05
    pilot: float = 0.05

    if TYPE_CHECKING:
        # What people write are words; what others read are values of the classes above.
        def __init__(
            self,
            policy: Policy | str = ...,
            clock: Clock | str | None = ...,
            cpu: float | None = ...,
            allowances: Mapping[str, float] = ...,
            algorithm: Algorithm | str = ...,
            may_shed: bool = ...,
            epsilon: float = ...,
            p: float = ...,
            pilot: float = ...,
        ) -> None: ...

    @property
    def text(self) -> str:
        """What is said of it that is not the default, for people.

        >>> Overload("adapt joins", cpu=1.5, allowances={"a": 0.4}).text
        'adapt joins, cpu 1.5, allowances a 0.4'
        """
        default, found = Overload(), [str(self.policy)]
        for each in fields(self)[1:]:
            value = getattr(self, each.name)
            if value == getattr(default, each.name):
                continue
            if isinstance(value, Mapping):
                value = ", ".join(f"{alias} {share:g}" for alias, share in value.items())
            found.append(each.name.replace("_", " ") + ("" if value is True else f" {value}"))
        return ", ".join(found)

    @property
    def limits_lookups(self) -> bool:
        """Whether only some rows may look up their partners."""
        return self.policy is Policy.ADAPT_JOINS

    @property
    def sheds(self) -> bool:
        """Whether rows may be dropped before they are joined."""
        return self.policy is Policy.SHED or self.may_shed

    def __post_init__(self) -> None:
        for name, kind in (("policy", Policy), ("clock", Clock), ("algorithm", Algorithm)):
            given = getattr(self, name)
            if given is not None:
                object.__setattr__(self, name, _one_of(name, given, kind))
        if self.cpu is not None and not (_is_number(self.cpu) and 0 < self.cpu < math.inf):
            raise SessionError(f"the cpu of an overload policy is seconds of CPU per second, above 0: not {self.cpu!r}")
        for name, share in (("epsilon", self.epsilon), ("p", self.p), ("pilot", self.pilot)):
            if not (_is_number(share) and 0 < share < 1):
                raise SessionError(f"{name} is a share above 0 and below 1: not {share!r}")
        if not isinstance(self.may_shed, bool):
            raise SessionError(f"may_shed is True or False: not {self.may_shed!r}")
        if not isinstance(self.allowances, Mapping):
            raise SessionError(f'allowances are shares by alias, like {{"a": 0.4}}: not {self.allowances!r}')
        for alias, share in self.allowances.items():
            if not (_is_number(share) and 0 <= share <= 1):
                raise SessionError(f"the allowance of {alias} is a share from 0 to 1: not {share!r}")
        if self.allowances and not self.limits_lookups:
            raise SessionError(f'allowances go with policy="adapt joins", not with "{self.policy}"')
        if self.may_shed and not self.limits_lookups:
            raise SessionError(f'may_shed goes with policy="adapt joins", not with "{self.policy}"')


def require_overload(given: object) -> None:
    """Refuses what is no `Overload`, unless it is None."""
    if given is not None and not isinstance(given, Overload):
        raise SessionError(f"overload={given!r} is no Overload: write overload=ab.Overload('adapt joins')")


def _is_number(given: object) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool)


def _one_of(what: str, given: object, kind: type[StrEnum]) -> StrEnum:
    try:
        return kind(str(given))
    except ValueError:
        names = [each.value for each in kind]
        hint = did_you_mean(str(given), names) or "it is one of " + ", ".join(f'"{name}"' for name in names)
        raise SessionError(f"{what}={given!r} is no {what} of overload: {hint}") from None
