from __future__ import annotations

import msgspec
import pytest

from anabranch.control.ledger import Ledger
from anabranch.errors import DamagedStateError, ForeignStateError
from anabranch.storage.container import Segment
from anabranch.storage.filesystem import LocalFilesystem
from anabranch.storage.record import seal
from tests.support.faulty import Crash, Fault, FaultyFilesystem


class Commit(msgspec.Struct, frozen=True):
    batch: int
    files: tuple[Segment, ...] = ()


@pytest.fixture
def disk(tmp_path):
    return FaultyFilesystem(LocalFilesystem(str(tmp_path)))


@pytest.fixture
def ledger(disk):
    return Ledger(disk, folder="commit", kind="commit", type=Commit)


def test_round_trip(disk, ledger):
    record = Commit(42, (Segment("log/a", 64, 10, 2**64 - 1),))
    ledger.write(42, record)
    assert disk.puts == ["commit/00000000000000000042-0000000000"] == [ledger.path(42)]
    assert ledger.read(42) == record
    assert ledger.latest() == (42, record)


def test_nothing_yet(ledger):
    assert ledger.latest() is None
    assert ledger.numbers() == []
    ledger.prune(10)


def test_latest_is_by_number_and_other_files_are_not_ours(disk, ledger):
    for number in (9, 10, 2, 100):
        ledger.write(number, Commit(number))
    disk.put("commit/README", [b"hello"])
    disk.put("commit/" + "²" * 20, [b"hello"])
    assert ledger.numbers() == [2, 9, 10, 100]
    assert ledger.latest() == (100, Commit(100))


def test_writing_again_supersedes(ledger):
    ledger.write(3, Commit(3))
    ledger.write(3, Commit(33))
    assert ledger.latest() == (3, Commit(33))


@pytest.mark.parametrize("number", [-1, 10**20])
def test_numbers_that_have_no_name(ledger, number):
    with pytest.raises(ValueError, match="cannot have the number"):
        ledger.write(number, Commit(0))


def test_prune(ledger):
    for number in range(5):
        ledger.write(number, Commit(number))
    ledger.prune(3)
    assert ledger.numbers() == [3, 4]
    with pytest.raises(DamagedStateError, match="missing"):
        ledger.read(2)


def test_a_crash_at_any_byte_of_a_write_leaves_the_record_before(disk, ledger):
    ledger.write(0, Commit(0))
    whole = len(disk.get(ledger.path(0)))
    for keep in range(whole + 1):
        disk.plan[len(disk.puts)] = Fault("tear", keep=keep)
        with pytest.raises(Crash):
            ledger.write(1, Commit(1))
        assert ledger.latest() == ((1, Commit(1)) if keep == whole else (0, Commit(0)))
    ledger.write(1, Commit(1))
    assert ledger.latest() == (1, Commit(1))


@pytest.mark.parametrize(("fault", "latest"), [("lose", 0), ("crash_after", 1)])
def test_a_crash_before_or_after_a_write(disk, ledger, fault, latest):
    disk.plan[1] = Fault(fault)
    ledger.write(0, Commit(0))
    with pytest.raises(Crash):
        ledger.write(1, Commit(1))
    assert ledger.latest() == (latest, Commit(latest))


def test_a_torn_first_record_was_never_acknowledged(disk, ledger):
    disk.plan[0] = Fault("tear")
    with pytest.raises(Crash):
        ledger.write(0, Commit(0))
    assert ledger.latest() is None


def test_a_damaged_record_above_pruned_ones_was_acknowledged(disk, ledger):
    for number in range(3):
        ledger.write(number, Commit(number))
    ledger.prune(2)
    disk.corrupt(ledger.path(2))
    with pytest.raises(DamagedStateError, match=r"commit/0+2-0+: "):
        ledger.latest()


def test_two_damaged_records_are_not_a_crash(disk, ledger):
    for number in range(3):
        ledger.write(number, Commit(number))
    disk.corrupt(ledger.path(2))
    disk.corrupt(ledger.path(1))
    with pytest.raises(DamagedStateError, match=r"commit/0+1-0+: "):
        ledger.latest()


def test_a_foreign_newest_record_is_not_passed_over(disk, ledger):
    ledger.write(0, Commit(0))
    disk.put(ledger.path(1), [seal("control", b"{}")])
    with pytest.raises(ForeignStateError, match="control"):
        ledger.latest()


@pytest.mark.parametrize("payload", [b'{"batch":"many"}', b"{}", b"not json", b"\xff"])
def test_a_whole_record_of_another_shape_is_not_passed_over(disk, ledger, payload):
    ledger.write(0, Commit(0))
    disk.put(ledger.path(1), [seal("commit", payload)])
    for look in (ledger.latest, lambda: ledger.read(1)):
        with pytest.raises(DamagedStateError, match="not a commit of this release"):
            look()


# Epochs: records of drivers that took the checkpoint one after the other


def of_epoch(disk, epoch):
    return Ledger(disk, folder="commit", kind="commit", type=Commit, epoch=epoch)


def test_of_one_number_the_highest_epoch_counts(disk):
    for epoch in (2, 10, 9):
        of_epoch(disk, epoch).write(3, Commit(epoch))
    assert of_epoch(disk, 1).latest() == (3, Commit(10))
    assert of_epoch(disk, 1).read(3) == Commit(10)
    assert of_epoch(disk, 1).read(3, 9) == Commit(9)


def test_of_one_number_the_highest_whole_epoch_counts(disk):
    for epoch in (1, 2):
        of_epoch(disk, epoch).write(3, Commit(epoch))
    disk.corrupt(of_epoch(disk, 2).path(3))
    assert of_epoch(disk, 2).latest() == (3, Commit(1))
    assert of_epoch(disk, 2).find(3) == Commit(1)
    assert of_epoch(disk, 2).torn() == [of_epoch(disk, 2).path(3)]


def test_what_a_driver_writes_that_lost_the_lease_does_not_count(disk):
    """The driver of epoch 1 commits batch 5 after that of epoch 2 has committed batch 4."""
    of_epoch(disk, 1).write(3, Commit(31))
    of_epoch(disk, 2).write(4, Commit(42))
    of_epoch(disk, 1).write(5, Commit(51))
    assert of_epoch(disk, 2).latest() == (4, Commit(42))
    assert of_epoch(disk, 2).numbers() == [3, 4]
    assert of_epoch(disk, 2).find(5) is None
    of_epoch(disk, 2).write(5, Commit(52))
    assert of_epoch(disk, 2).latest() == (5, Commit(52))


def test_a_torn_record_is_not_found_and_a_foreign_one_is_an_error(disk, ledger):
    assert ledger.find(0) is None
    ledger.write(0, Commit(0))
    disk.corrupt(ledger.path(0))
    assert ledger.find(0) is None
    disk.put(ledger.path(0), [seal("commit", b"{}")])
    with pytest.raises(DamagedStateError, match="not a commit of this release"):
        ledger.find(0)


def test_superseded_records_go(disk):
    """However often a batch was begun, one record of it is left; never one that is torn instead of one that is whole."""
    for epoch in range(1, 6):
        of_epoch(disk, epoch).write(7, Commit(epoch))
    disk.corrupt(of_epoch(disk, 5).path(7))
    of_epoch(disk, 6).drop_superseded()
    assert disk.list("commit") == [of_epoch(disk, e).path(7).partition("/")[2] for e in (4, 5)]
    assert of_epoch(disk, 6).latest() == (7, Commit(4))


def test_history_is_whole_or_an_error(disk, ledger):
    """All that is there up to the newest whole one; a torn newest record never counted."""
    for number in range(3, 8):
        ledger.write(number, Commit(batch=number))
    assert [number for number, _ in ledger.history()] == [3, 4, 5, 6, 7]
    assert [number for number, _ in ledger.history(after=5)] == [6, 7]
    assert [*ledger.history(after=7)] == []
    disk.put(ledger.path(7), [b"anab"])
    assert [number for number, _ in ledger.history(after=4)] == [5, 6]
    disk.put(ledger.path(5), [b"anab"])
    with pytest.raises(DamagedStateError, match=ledger.path(5)):
        [*ledger.history()]
    disk.delete(ledger.path(5))
    with pytest.raises(DamagedStateError, match=ledger.path(5)):
        [*ledger.history(after=4)]
    assert [number for number, _ in ledger.history(after=5)] == [6]
