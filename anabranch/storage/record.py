"""The envelope of every small file: one line that says what follows and whether it is whole, then JSON.

    anabranch 6 commit 17 0f3c…e2
    {"batch":42,"…":…}

The line is `magic version kind length checksum`. People can read the file with any pager; we can tell three cases
apart, which call for different actions:

- *whole*: the length and the checksum agree;
- *damaged*: ours, but torn or changed. A torn file is what a crash leaves where a filesystem cannot replace names
  atomically; a file of zeros is what a power cut leaves where data lags behind names;
- *foreign*: whole, but another program's, another version's, or another kind of record.

The checksum (xxh3_64, hexadecimal) is over the fields before it and the payload: so a flipped bit in the kind or in
the length is damage, and never mistaken for a foreign record.
"""

from __future__ import annotations

import xxhash

from anabranch.errors import DamagedStateError, ForeignStateError

MAGIC = b"anabranch "
FORMAT_VERSION = 11
LONGEST_HEADER_BYTES = 256
"""No header line is longer; a missing newline is searched for no further."""


def seal(kind: str, payload: bytes) -> bytes:
    """Put a payload into its envelope.

    >>> seal("commit", b"{}")  # doctest: +ELLIPSIS
    b'anabranch ... commit 2 ...\\n{}'
    """
    return first_line(kind, payload) + payload


def first_line(kind: str, payload: bytes | memoryview) -> bytes:
    """What stands before a payload in its envelope: with it, a payload that is large need not be copied."""
    if not kind.isidentifier() or not kind.isascii() or len(kind) > LONGEST_HEADER_BYTES // 2:
        raise ValueError(f"the kind of a record is one short ASCII word, not {kind!r}")
    fields = f"{FORMAT_VERSION} {kind} {len(payload)} ".encode("ascii")
    return MAGIC + fields + _checksum(fields, payload) + b"\n"


def unseal(kind: str, data: bytes | memoryview, path: str) -> bytes:
    """Return the payload of a whole record of this kind; `path` is for the message of the error otherwise.

    >>> unseal("commit", seal("commit", b"{}"), "commit/7")
    b'{}'
    """
    return bytes(unsealed(kind, data, path))


def unsealed(kind: str, data: bytes | memoryview, path: str) -> memoryview:
    """The same without a copy of the payload."""
    view = memoryview(data)
    start = bytes(view[:LONGEST_HEADER_BYTES])
    require_magic(start, path)
    line, newline, _ = start.partition(b"\n")
    version, _, rest = line.removeprefix(MAGIC).partition(b" ")
    if (rest or newline) and version.isdigit() and int(version) != FORMAT_VERSION:
        raise ForeignStateError(
            f"{path}: format version {int(version)}, this program reads {FORMAT_VERSION}: "
            "use the release that wrote this checkpoint, or start with an empty one"
        )
    fields = line.split(b" ")
    if not newline or len(fields) != 5 or not fields[3].isdigit():
        raise damaged(path, "its first line is torn")
    payload = view[len(line) + 1 :]
    if len(payload) != int(fields[3]):
        raise damaged(path, f"it has {len(payload)} bytes after the first line instead of {int(fields[3])}")
    if _checksum(b" ".join(fields[1:4]) + b" ", payload) != fields[4]:
        raise damaged(path, "its checksum does not match")
    found = fields[2].decode("ascii", "replace")
    if found != kind:
        raise ForeignStateError(
            f"{path}: a record of kind {found!r} where {kind!r} belongs: "
            "check that nobody moved files inside the checkpoint, and that its location is the right one"
        )
    return payload


def require_magic(start: bytes, path: str) -> None:
    """Refuse a file that does not begin like ours: damaged if it was cut or zeroed, foreign if something else."""
    head = start[: len(MAGIC)]
    if head == MAGIC:
        return
    if MAGIC.startswith(head) or not any(head):
        raise damaged(path, "it is empty, torn or zeroed")
    raise ForeignStateError(
        f"{path}: not a file of anabranch: check the location of the checkpoint, which must be a folder of its own"
    )


def damaged(path: str, what: str) -> DamagedStateError:
    """Say which file is unusable, why, and the way out that always exists."""
    return DamagedStateError(f"{path}: {what}: restore this file from a backup, or start with an empty checkpoint")


def _checksum(fields: bytes, payload: bytes | memoryview) -> bytes:
    digest = xxhash.xxh3_64(fields)
    digest.update(payload)
    return digest.hexdigest().encode("ascii")
