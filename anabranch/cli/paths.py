"""Whether a run can read what it is to read, and write where it is to write: looked at before Spark is started."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator

from anabranch.errors import FilesError, SourcePathError
from anabranch.plan.formats import DEFAULT_FORMAT, ENDINGS, FORMATS
from anabranch.plan.query import Stream, Table
from anabranch.spark.file_list import FileListing, local_path
from anabranch.sql import Location, Script
from anabranch.sql.text import SqlText

MOST_LOOKED_AT = 100
"""So many files of a path are looked at by name, to see whether any is of the path's format."""


def check_sources(script: Script, text: str) -> list[str]:
    """Refuses FROM paths from which nothing can be read; returns notes on those under which there are no files yet."""
    notes = []
    for source in script.catalog:
        location = script.catalog.location(source.name)
        if location is not None and not location.database and (note := _check(source, location, SqlText(text))):
            notes.append(note)
    return notes


def _check(source: Stream | Table, location: Location, text: SqlText) -> str | None:
    def refused(message: str, hint: str) -> SourcePathError:
        return text.error(SourcePathError, message, location.at, hint)

    try:
        path = local_path(location.path)
    except FilesError as error:
        raise refused(str(error), "") from None
    start = FileListing(path, location.format).start
    if not os.path.isdir(start):
        raise refused(f"there is no folder {start}", "check the path; files may come later, their folder must be there")
    if not os.access(start, os.R_OK | os.X_OK):
        raise refused(f"the folder {start} cannot be read", "this user needs the right to list it")
    found = [name for name, _ in zip(_files(path), range(MOST_LOOKED_AT), strict=False)]
    if not found:
        if isinstance(source, Table):
            raise refused(f"no file matches, and the table {source.name} is read when the query starts", "check the path")
        return f"{source.name}: no file matches {location.path} yet; files that come later are read"
    if not os.access(found[0], os.R_OK):
        raise refused(f"{found[0]} cannot be read", "this user needs the right to read it")
    if location.format == DEFAULT_FORMAT and (other := _other_ending(found)):
        known = f"the formats are {', '.join(FORMATS)}"
        raise refused(f"{os.path.basename(found[0])} is not taken for {DEFAULT_FORMAT}: its ending is .{other}", known)
    return None


def _files(path: str) -> Iterator[str]:
    pattern = os.path.join(glob.escape(path), "*") if os.path.isdir(path) else path
    for name in glob.iglob(pattern, recursive=True):
        if os.path.isfile(name) and not os.path.basename(name).startswith(("_", ".")):
            yield name


def _other_ending(files: list[str]) -> str | None:
    """The ending of files that are all of other formats than parquet."""
    endings = [os.path.splitext(os.path.basename(name))[1][1:].lower() for name in files]
    is_other = all(ending and ENDINGS.get(ending) != DEFAULT_FORMAT for ending in endings)
    return endings[0] if is_other and len(set(endings)) == 1 and endings[0].isalpha() else None
