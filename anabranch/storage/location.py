"""Where a checkpoint or results are kept: a path, a URI, or a filesystem of pyarrow's with a path in it.

A local folder is a `LocalFilesystem`, however it was given: files are mapped there. Everything else is an `ArrowFilesystem`.
"""

from __future__ import annotations

import os
import re
import shutil
from typing import TypeAlias

import pyarrow as pa
import pyarrow.fs as pafs

from anabranch.errors import LocationError
from anabranch.storage.filesystem import ArrowFilesystem, LocalFilesystem, base_of

Folder: TypeAlias = LocalFilesystem | ArrowFilesystem
Place: TypeAlias = "str | os.PathLike[str] | tuple[pafs.FileSystem, str] | Folder"
"""A path (`state`), a URI (`s3://bucket/state`), a `pyarrow.fs.FileSystem` with a path in it, or what `located` gave."""

KNOWN = (
    "a path, a URI like file:///x, s3://bucket/x, gs://bucket/x, abfs://account@container/x, hdfs://host/x, "
    "or a pyarrow.fs.FileSystem with a path in it"
)

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]+):/")  # more than one letter: C:/ is a path
_SECRETS = re.compile(r"(?<=//)[^/@]*:[^/@]*@|\?.*", re.DOTALL)


def located(place: Place) -> Folder:
    """The filesystem whose root is a place.

    >>> located("file:///var/state") == located("/var/state") == LocalFilesystem("/var/state")
    True
    >>> located("s4://bucket/state")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    anabranch.errors.LocationError: s4://bucket/state: there is no filesystem for s4: give a path, a URI like ...
    """
    if isinstance(place, LocalFilesystem | ArrowFilesystem):
        return place
    if isinstance(place, str | os.PathLike):
        return _of_text(os.fspath(place))
    if not (isinstance(place, tuple) and len(place) == 2 and isinstance(place[0], pafs.FileSystem)):
        raise LocationError(f"{place!r} is no place: give {KNOWN}")
    return _of_filesystem(place[0], os.fspath(place[1]))


def _of_text(text: str) -> Folder:
    if not text:
        raise LocationError(f"an empty path is no place: give {KNOWN}")
    scheme = _SCHEME.match(text)
    if scheme is None:
        return LocalFilesystem(text)
    shown = without_secrets(text)
    if scheme[1] in ("s3a", "s3n"):
        raise LocationError(f"{shown}: {scheme[1]} is Hadoop's name of it: write s3://…")
    try:
        filesystem, path = pafs.FileSystem.from_uri(text)
    except (pa.ArrowInvalid, ValueError, ImportError) as error:
        if "Unrecognized filesystem" in str(error):
            raise LocationError(f"{shown}: there is no filesystem for {scheme[1]}: give {KNOWN}") from None
        raise LocationError(f"{shown}: {_first_line(error)}") from None
    except (OSError, NotImplementedError) as error:
        raise LocationError(f"{shown} cannot be reached: {_first_line(error)}") from None
    return _of_filesystem(filesystem, path)


def _of_filesystem(filesystem: pafs.FileSystem, path: str) -> Folder:
    base, whole = base_of(filesystem, path)
    if base.type_name == "mock":
        raise LocationError("a mock filesystem keeps nothing")
    if base.type_name == "local":
        return LocalFilesystem(whole)
    if not path.strip("/") and base is filesystem:
        raise LocationError(f"the root of {base.type_name} is no place: name a bucket or a folder in it")
    return ArrowFilesystem(filesystem, path)


def remove_all(folder: Folder) -> None:
    """Deletes a folder and all that is in it."""
    if isinstance(folder, LocalFilesystem):
        shutil.rmtree(folder.root, ignore_errors=True)
        return
    for name in folder.folders(""):
        remove_all(folder.below(name))
    for name in [*folder.list(""), *folder.unfinished("")]:
        folder.delete(name)


def check_folder(folder: Folder, what: str) -> None:
    """Refuses a folder of this machine that cannot be made or written to; `what` names it in errors. What a store lets one
    do shows only when it is done."""
    if not isinstance(folder, LocalFilesystem):
        return
    there = os.path.abspath(folder.root)
    while not os.path.lexists(there):
        there = os.path.dirname(there)
    shown = f"{what} {folder.root}"
    if not os.path.isdir(there):
        is_own = there == os.path.abspath(folder.root)
        raise LocationError(f"{shown} is a file: name a folder" if is_own else f"{shown} cannot be made: {there} is a file")
    if not os.access(there, os.W_OK | os.X_OK):
        raise LocationError(f"{shown} cannot be written: this user has no right to write to {there}")


def is_local(place: str) -> bool:
    """Whether a path or URI names a folder of this machine, as far as that can be told without a connection.

    >>> is_local("state"), is_local("file:///state"), is_local("s3a://bucket/state")
    (True, True, False)
    """
    scheme = _SCHEME.match(place)
    return scheme is None or scheme[1] == "file"


def without_secrets(uri: str) -> str:
    """A URI without user, password and options, to be shown.

    >>> without_secrets("s3://key:secret@bucket/x?region=eu-west-1")
    's3://bucket/x'
    """
    return _SECRETS.sub("", uri)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
