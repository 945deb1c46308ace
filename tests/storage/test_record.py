from __future__ import annotations

import pytest

from anabranch.errors import DamagedStateError, ForeignStateError
from anabranch.storage.record import FORMAT_VERSION, seal, unseal

PAYLOAD = b'{"batch":42,"files":["log/a","log/b"]}'


@pytest.mark.parametrize("payload", [b"", PAYLOAD, b"\n\n\x00 anabranch 1 ", bytes(100_000)])
def test_round_trip(payload):
    sealed = seal("commit", payload)
    assert unseal("commit", sealed, "p") == payload
    assert unseal("commit", memoryview(sealed), "p") == payload


def test_people_can_read_it():
    line, payload = seal("commit", PAYLOAD).decode("ascii").split("\n")
    assert line.split(" ")[:4] == ["anabranch", str(FORMAT_VERSION), "commit", str(len(PAYLOAD))]
    assert payload == PAYLOAD.decode()


@pytest.mark.parametrize("kind", ["", "two words", "line\n", "ключ", "k" * 200])
def test_kinds_that_would_break_the_line_are_refused(kind):
    with pytest.raises(ValueError, match="one short ASCII word"):
        seal(kind, b"")


def test_every_prefix_is_damaged():
    sealed = seal("commit", PAYLOAD)
    for length in range(len(sealed)):
        with pytest.raises(DamagedStateError, match=r"commit/7: .*restore"):
            unseal("commit", sealed[:length], "commit/7")


def test_every_flipped_bit_is_noticed():
    sealed = seal("commit", PAYLOAD)
    for position in range(len(sealed)):
        for bit in range(8):
            changed = bytearray(sealed)
            changed[position] ^= 1 << bit
            # in the magic and in the version it cannot be told from a foreign file, anywhere else it is damage
            is_told_apart = position < len(f"anabranch {FORMAT_VERSION}")
            expected = (DamagedStateError, ForeignStateError) if is_told_apart else DamagedStateError
            with pytest.raises(expected):
                unseal("commit", bytes(changed), "commit/7")


def test_bytes_too_many_and_zeros():
    with pytest.raises(DamagedStateError, match="instead of"):
        unseal("commit", seal("commit", PAYLOAD) + b"x", "commit/7")
    with pytest.raises(DamagedStateError, match="zeroed"):
        unseal("commit", bytes(200), "commit/7")


@pytest.mark.parametrize("data", [b"PAR1...", b'{"v":1}', b"anabranches 1 commit", b"\nanabranch 1"])
def test_foreign_programs(data):
    with pytest.raises(ForeignStateError, match=r"commit/7: not a file of anabranch"):
        unseal("commit", data, "commit/7")


@pytest.mark.parametrize("data", [b"anabranch 1 commit 0 0\n", b"anabranch 12\nanything", b"anabranch 2 " + b"x" * 500])
def test_other_versions(data):
    with pytest.raises(ForeignStateError, match=r"commit/7: format version .*use the release"):
        unseal("commit", data, "commit/7")


def test_other_kinds():
    with pytest.raises(ForeignStateError, match=r"commit/7: a record of kind 'control' where 'commit' belongs"):
        unseal("commit", seal("control", PAYLOAD), "commit/7")
