"""What several commands are given, and how it is read."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from anabranch.errors import AnabranchError, FilesError, SessionError, UsageError

if TYPE_CHECKING:
    from anabranch.plan.overload import Overload
    from anabranch.sql import Script

    Commands: TypeAlias = argparse._SubParsersAction[argparse.ArgumentParser]


def add_budget(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cpu", type=cores, help="cores that a query may use")
    parser.add_argument("--memory", type=size, help="what its state may take, like 2GiB")
    parser.add_argument("--strict", action="store_true", help="refuse a query that no plan keeps within that")


def add_overload(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--overload", metavar="POLICY",
        help="what becomes of results without CPU enough: 'fall behind' (default), 'adapt joins', 'shed' or 'fail'",
    )  # fmt: skip
    parser.add_argument(
        "--clock", choices=("event", "wall"), help="by what FRESHNESS is told (default: event with --once, else wall)"
    )
    parser.add_argument("--overload-cpu", type=cores, help="CPU seconds per second of a batch (default: a core per slot)")
    parser.add_argument(
        "--allow", action="append", default=[], metavar="INPUT=SHARE",
        help="pins the share of rows of an input that look up their partners, like t=0.4",
    )  # fmt: skip
    parser.add_argument("--algorithm", choices=("paths", "uniform"), help="how lookups get CPU (default: paths)")
    parser.add_argument("--may-shed", action="store_true", help="with 'adapt joins': rows may be dropped, too, if need be")


def overload_of(given: argparse.Namespace) -> Overload:
    """What queries are to do under overload, by the options."""
    from anabranch.plan.overload import Overload

    said = {"policy": given.overload, "clock": given.clock, "cpu": given.overload_cpu, "algorithm": given.algorithm}
    said |= {"allowances": numbers("--allow", given.allow), "may_shed": given.may_shed}
    try:
        return Overload(**{name: value for name, value in said.items() if value is not None})
    except SessionError as error:
        raise UsageError(f"--overload: {error}") from None


def count(text: str) -> int:
    """The value of an option that counts something."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no number of 1 or more")
    return int(text)


def cores(text: str) -> float:
    """The value of an option that is a number of cores."""
    number = _number(text)
    if number is None or number <= 0:
        raise argparse.ArgumentTypeError(f"{text} is no number of cores above 0, like 1.5")
    return number


def size(text: str) -> str:
    """The value of an option that is a size in bytes."""
    from anabranch.settings import size_bytes

    return _checked(text, lambda: size_bytes(text, "a size"))


def length(text: str) -> str:
    """The value of an option that is a length of time."""
    from anabranch.sql import parse_duration

    return _checked(text, lambda: parse_duration(text))


def read_file(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        raise FilesError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise FilesError(f"{path} is not a text file in UTF-8") from None


def with_queries(script: Script, path: str) -> Script:
    """A script that says something to run or to explain."""
    if script.queries:
        return script
    if not list(script.catalog):
        raise SessionError(f"{path} is empty: write CREATE STREAM …; CREATE QUERY … AS SELECT …; (docs/sql.md)")
    created = ", ".join(source.name for source in script.catalog)
    raise SessionError(f"{path} has no query: it creates {created}; add CREATE QUERY … AS SELECT …")


def numbers(option: str, given: Sequence[str]) -> dict[str, float]:
    """Options like `--rate trades=5000`, by their names."""
    found = {}
    for text in given:
        name, _, value = text.rpartition("=")  # a key may have one as well
        number = _number(value)
        if not name or number is None:
            raise UsageError(f"{option} {text}: write it as a name, = and a number")
        if number < 0:
            raise UsageError(f"{option} {text}: the number cannot be negative")
        found[name] = number
    return found


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _checked(text: str, check: Callable[[], object]) -> str:
    try:
        check()
    except AnabranchError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text
