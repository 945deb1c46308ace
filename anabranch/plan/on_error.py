"""What becomes of rows and files of a stream that cannot be read: they fail the batch, or are set aside."""

from __future__ import annotations

from dataclasses import dataclass

WAYS = ("fail", "skip", "into")


@dataclass(frozen=True)
class OnError:
    """`fail`: the batch fails. `skip`: what is bad is left out and counted. `into`: it is kept in a folder, too."""

    way: str = "fail"
    path: str = ""
    """The folder, a path or a URI."""

    def __post_init__(self) -> None:
        assert self.way in WAYS, self
        assert bool(self.path) == (self.way == "into"), self

    @property
    def sets_aside(self) -> bool:
        return self.way != "fail"

    def __str__(self) -> str:
        """
        >>> print(FAIL, SKIP, OnError("into", "bad"), sep=", ")
        ON ERROR FAIL, ON ERROR SKIP, ON ERROR INTO 'bad'
        """
        return f"ON ERROR {self.way.upper()}" + (f" '{self.path}'" if self.path else "")


FAIL, SKIP = OnError(), OnError("skip")
