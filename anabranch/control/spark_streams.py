"""The streams that Spark's log of a pipeline counts, and whether a stream can be added to them.

Spark tells the sources of a streaming query by their places, and then their set is fixed once it has started; or by their
names, if all have one, and then the query can be started anew with a source more. What is on disk differs, and Spark takes
up a log only in the way in which it was begun. So it is noted when a pipeline first starts, in `<pipeline>/streams`:

    {"streams":["trades","quotes"],"names":{"trades":["trades"],"quotes":["quotes"]},"fixed":""}

A stream that is added is noted in a file of its own, `<pipeline>/added/<stream>`, with the names of its sources, before
Spark counts it: a note that is torn is of a stream that Spark has not counted yet. A stream that was ever counted stays so,
although the queries that read it are gone: its rows are passed by. Spark looks for the place where a source is to go on in
the newest entries of its log alone.
"""

from __future__ import annotations

import contextlib
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping

import msgspec

from anabranch.errors import DamagedStateError, SessionError
from anabranch.plan.lookups import root_name
from anabranch.plan.names import why_not_a_name
from anabranch.storage.filesystem import Filesystem
from anabranch.storage.record import seal, unseal

STREAMS, ADDED = "streams", "added"
SOURCE_EVOLUTION = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
"""Spark's setting under which sources have names."""
BEFORE_NAMES = "its pipeline was started by a release that gave sources no names"

Names = Mapping[str, tuple[str, ...]]
"""What Spark calls the sources of each stream; none where one of them has no name."""


class SparkStreams(msgspec.Struct, frozen=True):
    """The streams that Spark's log of a pipeline counts."""

    streams: tuple[str, ...]
    """In the order in which Spark's log counts them."""
    names: dict[str, tuple[str, ...]] = {}
    """What Spark calls the sources of each, unless they are told by their places."""
    fixed: str = ""
    """Why sources are told by their places, so that no stream can be added; "" if they are told by their names."""

    def lacking(self, streams: Mapping[str, object]) -> list[str]:
        """Those of some streams that are not counted."""
        return [name for name in streams if name not in self.streams]

    def why_not_more(self, names: Names) -> str:
        """Why some streams cannot be counted too; "" if they can, or are counted already."""
        if not (more := self.lacking(names)):
            return ""
        return self.fixed or why_fixed({**self.names, **{name: names[name] for name in more}})

    def with_more(self, names: Names) -> SparkStreams:
        """With those of some streams that are not counted yet."""
        more = {name: names[name] for name in self.lacking(names)}
        if why := self.why_not_more(names):
            raise SessionError(f"{', '.join(more)} cannot be read in a pipeline whose streams are fixed: {why}")
        return SparkStreams((*self.streams, *more), {**self.names, **more} if not self.fixed else {}, self.fixed)

    def require_same(self, names: Names) -> None:
        """Refuses a stream whose sources have other names now: Spark would read them from the beginning."""
        for name, before in self.names.items():
            if name in names and (now := names[name]) != before:
                raise SessionError(
                    f"the checkpoint knows the source of {name} as {_listed(before)}, and it "
                    + (f"is {_listed(now)} now" if now else "has no name now")
                    + f": load the stream with .name({before[0]!r}), while {SOURCE_EVOLUTION} is on"
                )


def first_counted(names: Names) -> SparkStreams:
    """The streams of a pipeline that has not started yet.

    >>> first_counted({"trades": ("trades",), "quotes": ("quotes",)}).fixed
    ''
    >>> first_counted({"trades": ("trades",), "quotes": ()}).fixed
    'the source of quotes has no name in Spark'
    """
    fixed = why_fixed(names)
    return SparkStreams(tuple(names), {} if fixed else dict(names), fixed)


def why_fixed(names: Names) -> str:
    """Why Spark cannot tell the sources of some streams by their names; "" if it can."""
    if unnamed := [stream for stream, own in names.items() if not own]:
        return f"the source of {unnamed[0]} has no name in Spark"
    used = Counter(name for own in names.values() for name in own)
    if twice := next((name for name, count in used.items() if count > 1), None):
        streams = [stream for stream, own in names.items() if twice in own]
        return f"two sources of {' and '.join(streams)} have the name {twice} in Spark"
    return ""


def spark_name(name: str) -> str:
    """What Spark is told a source is called: it takes letters without accents, digits and _ alone.

    >>> spark_name("trades_2"), spark_name("trades-2")
    ('trades_2', 'trades_2_2b675624')
    """
    plain = re.sub(r"\W", "_", name, flags=re.ASCII)
    return plain if plain == name else f"{plain}_{zlib.crc32(name.encode()):08x}"


def write_streams(filesystem: Filesystem, counted: SparkStreams) -> None:
    """Notes which streams Spark counts, before a pipeline first starts."""
    filesystem.put(STREAMS, [seal(STREAMS, msgspec.json.encode(counted))])


def add_streams(filesystem: Filesystem, names: Names) -> None:
    """Notes streams that Spark is to count too: in a file each, so that nothing is lost if one is torn."""
    for stream, own in names.items():
        filesystem.put(f"{ADDED}/{stream}", [seal(ADDED, msgspec.json.encode(own))])


def forget_added(filesystem: Filesystem, counted: SparkStreams) -> None:
    """Takes the notes of streams back that were to be added to some, and that Spark has not begun to count."""
    for stream in _noted(filesystem):
        if stream not in counted.streams:
            filesystem.delete(f"{ADDED}/{stream}")


def read_streams(filesystem: Filesystem) -> SparkStreams | None:
    """The streams that Spark counts in a pipeline; None if it has not started.

    >>> from anabranch.storage.filesystem import MemoryFilesystem
    >>> disk = MemoryFilesystem()
    >>> write_streams(disk, first_counted({"trades": ("trades",)}))
    >>> add_streams(disk, {"quotes": ("quotes",)})
    >>> read_streams(disk).streams
    ('trades', 'quotes')
    """
    try:
        content = filesystem.get(STREAMS)
    except FileNotFoundError:
        return None
    payload = unseal(STREAMS, memoryview(content), STREAMS)
    found = msgspec.json.decode(payload, type=SparkStreams | tuple[str, ...])
    if not isinstance(found, SparkStreams):
        return SparkStreams(found, fixed=BEFORE_NAMES)
    return found.with_more(dict(_added(filesystem)))


def _noted(filesystem: Filesystem) -> list[str]:
    """The streams that there are notes of; a file that is not called like a stream is somebody else's."""
    return [name for name in filesystem.list(ADDED) if why_not_a_name(root_name(name)) is None]


def _added(filesystem: Filesystem) -> Iterator[tuple[str, tuple[str, ...]]]:
    for stream in _noted(filesystem):
        path = f"{ADDED}/{stream}"
        with contextlib.suppress(DamagedStateError, FileNotFoundError):
            payload = unseal(ADDED, memoryview(filesystem.get(path)), path)
            yield stream, msgspec.json.decode(payload, type=tuple[str, ...])


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names)
