"""Delivery: in order within a query, and no query waits for another."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from time import sleep
from unittest import mock

import msgspec
import pyarrow as pa
import pytest

from anabranch.control.ledger import commits_in, deliveries_in
from anabranch.control.records import Commit, ExecutionRecord, QueryCommit, SlotCommit
from anabranch.drive.delivery import LEAST_BYTES, MOST_CALLS, MOST_SLOW, Delivery, Results
from anabranch.drive.staging import FOLDER, Staging, read_staged, staged_name
from anabranch.errors import CheckpointBusyError, DamagedStateError, SinkError, StateError
from anabranch.storage.filesystem import MemoryFilesystem
from tests.support.feeding import wait_until


@dataclass
class Outlet:
    """Notes what it gets; `before` is called first, and may wait or fail."""

    before: Callable[[Results], None] = lambda results: None
    taken: list[int] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    takes_files: bool = False
    name: str = "a test's sink"

    def take(self, results: Results) -> None:
        self.calls.append(results.batch)
        self.before(results)
        self.taken.append(results.batch)


class World:
    """Batches of two queries, whose results are in the slots that are named."""

    def __init__(self, patience_s: float | None = 10.0, most_bytes: int = 1 << 30, **outlets: Outlet) -> None:
        self.disk, self.outlets = MemoryFilesystem(), outlets
        self.commits = commits_in(self.disk)
        self.delivery = Delivery(self.disk, outlets, patience_s, most_bytes)  # type: ignore[arg-type]

    def batch(self, number: int, **slots: tuple[int, ...]) -> None:
        every = {slot for own in slots.values() for slot in own}
        for slot in every:
            found = [(name, rows(number)) for name, own in slots.items() if slot in own]
            Staging(self.disk).stage(staged_name(number, "token", slot, f"a{slot}"), found)
        plan = ExecutionRecord("(a b)")
        queries = {name: QueryCommit("", "", 0, plan, slots=own, staged_bytes=1) for name, own in slots.items()}
        won = {str(slot): SlotCommit(f"a{slot}", None) for slot in every}
        commit = Commit(number, number, queries, slots=won, token="token")
        self.commits.write(number, commit)
        self.delivery.offer(commit)

    def again(self, patience_s: float | None = 10.0) -> Delivery:
        """As the next driver would."""
        self.delivery.stop()
        self.delivery = Delivery(self.disk, self.outlets, patience_s, calls=self.delivery.calls)  # type: ignore[arg-type]
        self.delivery.open(self.commits)
        return self.delivery

    @property
    def staged(self) -> list[str]:
        return self.disk.list(FOLDER)


def rows(number: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"x": [number]})


@pytest.mark.parametrize("patience_s", [10.0, None])
def test_files_go_when_the_last_of_their_queries_has_been_served(patience_s: float | None) -> None:
    """q has results in slot 0, r in slots 1 and 2, s nowhere."""
    world = World(patience_s, q=Outlet(), r=Outlet(), s=Outlet())
    for number in range(3):
        world.batch(number, q=(0,), r=(1, 2), s=())
        wait_until(lambda: not world.staged)
    assert world.outlets["q"].taken == world.outlets["r"].taken == [0, 1, 2]
    assert not world.outlets["s"].calls
    assert world.delivery.first_waiting is None
    assert len(world.disk.list("delivered/q")) == 1


def test_a_slow_sink_is_called_once_and_holds_up_nobody() -> None:
    go_on = threading.Event()
    world = World(0.05, q=Outlet(lambda results: wait(go_on)), r=Outlet())
    for number in range(3):
        world.batch(number, q=(0,), r=(0,))
    assert world.outlets["r"].taken == [0, 1, 2]
    assert world.outlets["q"].calls == [0], "not a second time while it runs, and no later batch"
    assert world.delivery.first_waiting == 0
    assert len(world.staged) == 3
    go_on.set()
    world.delivery.finish()
    assert world.outlets["q"].taken == [0, 1, 2]
    assert not world.staged


def wait(event: threading.Event) -> None:
    assert event.wait(30)


def test_a_sink_that_fails_is_called_again_in_order() -> None:
    left = [3]

    def fails(results: Results) -> None:
        if results.batch == 1 and left[0]:
            left[0] -= 1
            raise OSError("down")

    world = World(q=Outlet(fails), r=Outlet())
    for number in range(3):
        world.batch(number, q=(0,), r=(0,))
    world.delivery.finish()
    assert world.outlets["q"].calls == [0, 1, 1, 1, 1, 2]
    assert world.outlets["q"].taken == world.outlets["r"].taken == [0, 1, 2]
    assert not world.delivery.failing


def fails(results: Results) -> None:
    raise OSError("down")


def test_at_the_bound_a_sink_that_fails_stops_the_pipeline() -> None:
    world = World(most_bytes=2 * LEAST_BYTES, q=Outlet(fails), r=Outlet())
    world.batch(0, q=(0,), r=(0,))
    world.batch(1, q=(0,), r=(0,))
    assert isinstance(world.delivery.failing["q"], OSError)
    told = pytest.raises(SinkError, match=r"query q \(a test's sink\) has failed .* in batch 0: OSError: down\nwhat waits")
    with mock.patch("anabranch.drive.delivery.TRIED_S", 0.0), told:
        world.batch(2, q=(0,), r=(0,))
    world.outlets["q"].before = lambda results: None
    world.again().finish()
    assert world.outlets["q"].taken == world.outlets["r"].taken == [0, 1, 2], "the next start does the rest"


def fails_until(event: threading.Event) -> Callable[[Results], None]:
    """Fails in batch 2, until something has happened."""

    def take(results: Results) -> None:
        if results.batch == 2 and not event.is_set():
            raise OSError("down for a moment")

    return take


def test_at_the_bound_a_sink_that_has_just_failed_is_tried_again() -> None:
    """What waits for q, which is slow, is at the bound when a call of r fails, and another may do."""
    go_on, is_up = threading.Event(), threading.Event()
    world = World(0.05, 2 * LEAST_BYTES, q=Outlet(lambda results: wait(go_on)), r=Outlet(fails_until(is_up)))
    world.delivery.leaves = ["r"]
    for number in range(2):
        world.batch(number, q=(0,), r=(0,))
    third = threading.Thread(target=lambda: world.batch(2, q=(), r=(0,)))
    third.start()
    wait_until(lambda: "r" in world.delivery.failing)
    is_up.set()
    third.join(30)
    assert not third.is_alive()
    assert not world.delivery.leaving
    go_on.set()
    world.delivery.finish()
    assert world.outlets["r"].taken == [0, 1, 2]


def test_at_the_bound_a_sink_that_fails_is_not_to_blame_for_what_waits_for_others() -> None:
    """r fails for good, and little waits for it: the pipeline waits for q, for which too much does."""
    go_on, is_up = threading.Event(), threading.Event()
    world = World(0.05, 2 * LEAST_BYTES, q=Outlet(lambda results: wait(go_on)), r=Outlet(fails_until(is_up)))
    world.delivery.leaves = ["r"]
    for number in range(2):
        world.batch(number, q=(0,), r=(0,))
    third = threading.Thread(target=lambda: world.batch(2, q=(0,), r=(0,)))
    with mock.patch("anabranch.drive.delivery.TRIED_S", 0.0):
        third.start()
        wait_until(lambda: len(world.outlets["r"].calls) > 4)
        assert third.is_alive()
        assert not world.delivery.leaving
        is_up.set()
        wait_until(lambda: world.outlets["r"].taken == [0, 1, 2])
        go_on.set()
        third.join(30)
    world.delivery.finish()
    assert world.outlets["q"].taken == world.outlets["r"].taken == [0, 1, 2]


def test_at_the_bound_a_slow_sink_is_waited_for() -> None:
    go_on = threading.Event()
    world = World(0.05, 2 * LEAST_BYTES, q=Outlet(lambda results: wait(go_on)))
    world.batch(0, q=(0,))
    world.batch(1, q=(0,))
    third = threading.Thread(target=lambda: world.batch(2, q=(0,)))
    third.start()
    third.join(0.3)
    assert third.is_alive()
    go_on.set()
    third.join(30)
    assert not third.is_alive()
    world.delivery.finish()


def test_when_input_has_ended_retries_end_too() -> None:
    world = World(q=Outlet(fails))
    world.batch(0, q=(0,))
    with pytest.raises(SinkError, match=r"sink of query q .* has failed .* in batch 0"):
        world.delivery.finish(within_s=0.3)
    assert world.outlets["q"].calls[:2] == [0, 0]


def test_a_stopped_delivery_makes_no_more_calls() -> None:
    world = World(0.01, q=Outlet(fails))
    world.batch(0, q=(0,))
    world.delivery.stop()
    wait_until(lambda: not world.delivery.lines["q"].is_served)
    made = len(world.outlets["q"].calls)
    world.batch(1, q=(0,))
    assert len(world.outlets["q"].calls) == made


def test_files_of_attempts_that_lost_go() -> None:
    world = World(q=Outlet())
    Staging(world.disk).stage(staged_name(0, "token", 0, "loser"), [("q", rows(0))])
    Staging(world.disk).stage(staged_name(9, "token", 0, "later"), [("q", rows(0))])
    world.batch(0, q=(0,))
    world.again()
    assert world.staged == [staged_name(9, "token", 0, "later")]


def test_a_damaged_file_is_told() -> None:
    disk = MemoryFilesystem()
    Staging(disk).stage("f", [("q", rows(0)), ("q", rows(1)), ("r", rows(2))])
    assert [piece.to_pydict() for piece in read_staged(disk, "f", "r")] == [{"x": [2]}]
    assert [x for piece in read_staged(disk, "f", "q") for x in piece.column(0).to_pylist()] == [0, 1]
    assert not list(read_staged(disk, "f", "s"))
    whole = disk.get(f"{FOLDER}/f").to_pybytes()
    for content in (whole[:-1], whole[:40], b"", bytes(len(whole)), whole[:100] + b"?" + whole[101:]):
        disk.put(f"{FOLDER}/f", [content])
        with pytest.raises(DamagedStateError, match="staged/f"):
            list(read_staged(disk, "f", "q"))
    disk.delete(f"{FOLDER}/f")
    with pytest.raises(DamagedStateError, match="it holds results that were not delivered yet, and is missing"):
        list(read_staged(disk, "f", "q"))


def test_a_record_of_an_arrival_that_a_crash_has_torn_is_none() -> None:
    """Also if it is the first of all, and not of batch 0: earlier batches had no results."""
    world = World(q=Outlet(), r=Outlet(fails))
    for number in range(3):
        world.batch(number, r=(0,))
    world.batch(3, q=(0,), r=(0,))
    (name,) = world.disk.list("delivered/q")
    whole = world.disk.get(f"delivered/q/{name}").to_pybytes()
    world.disk.put(f"delivered/q/{name}", [whole[:-5]])
    world.again()
    assert world.outlets["q"].taken == [3, 3], "it is delivered again"


def test_results_may_arrive_when_a_commit_has_just_said_that_they_wait() -> None:
    """Their commit may be gone then; if they have not arrived it must be there. Of a query that has left nobody knows."""
    world = World(q=Outlet(), r=Outlet())
    world.batch(0, q=(0,), r=(0,))
    commit = world.commits.read(0)
    of_q = {"q": commit.queries["q"]}
    world.commits.write(1, msgspec.structs.replace(commit, batch=1, queries=of_q, waits_from={"q": 0, "r": 0}))
    world.commits.prune(1)
    world.disk.delete(deliveries_in(world.disk, "r").path_of(0))
    world.again()
    world.disk.delete(deliveries_in(world.disk, "q").path_of(max(deliveries_in(world.disk, "q").numbers())))
    with pytest.raises(DamagedStateError, match="results of q in it have not arrived"):
        world.again()


def test_slow_sinks_have_a_bound_of_threads_and_leave_some_to_others() -> None:
    """As many as there are threads may be in their first calls; then it is known that they are slow."""
    gates = [threading.Event(), threading.Event()]
    slow = {f"slow{n}": Outlet(lambda results: wait(gates[results.batch])) for n in range(MOST_CALLS)}
    quick = {f"quick{n}": Outlet() for n in range(5)}
    world = World(0.05, **slow, **quick)

    def in_calls() -> int:
        return sum(len(each.calls) > len(each.taken) for each in slow.values())

    world.batch(0, **dict.fromkeys(world.outlets, (0,)))
    wait_until(lambda: in_calls() == MOST_CALLS)
    assert not any(each.calls for each in quick.values())
    sleep(0.1)  # all of these calls outlast the patience
    gates[0].set()
    world.delivery.finish()
    world.batch(1, **dict.fromkeys(world.outlets, (0,)))
    wait_until(lambda: all(each.taken == [0, 1] for each in quick.values()))
    wait_until(lambda: in_calls() == MOST_SLOW)
    assert world.delivery._threads <= MOST_CALLS
    world.batch(2, quick0=(0,))
    wait_until(lambda: quick["quick0"].taken == [0, 1, 2])
    assert in_calls() == MOST_SLOW
    gates[1].set()
    world.delivery.finish()
    assert all(each.taken == each.calls == [0, 1] for each in slow.values())
    wait_until(lambda: not world.delivery._threads)


def test_a_sink_that_fails_has_no_thread_between_its_tries() -> None:
    world = World(0.05, **{f"q{n}": Outlet(fails) for n in range(2 * MOST_CALLS)}, r=Outlet())
    world.batch(0, **dict.fromkeys(world.outlets, (0,)))
    wait_until(lambda: world.delivery._threads == 0 and len(world.delivery._paused) == 2 * MOST_CALLS)
    assert world.outlets["r"].taken == [0]
    for outlet in world.outlets.values():
        outlet.before = lambda results: None
    world.delivery.finish()
    assert all(outlet.taken == [0] for outlet in world.outlets.values())


def test_a_line_is_served_a_batch_at_a_time() -> None:
    """What waits of one query does not hold up another, although one thread serves both."""
    order, go_on = list[tuple[str, int]](), threading.Event()

    def noted(name: str) -> Callable[[Results], None]:
        def note(results: Results) -> None:
            wait(go_on)
            order.append((name, results.batch))

        return note

    world = World(0.01, q=Outlet(noted("q")), r=Outlet(noted("r")))
    with mock.patch("anabranch.drive.delivery.MOST_CALLS", 1):
        for number in range(3):
            world.batch(number, q=(0,), r=(0,))
        go_on.set()
        world.delivery.finish()
    assert order == [(name, number) for number in range(3) for name in "qr"]


def test_a_driver_that_has_lost_its_checkpoint_calls_no_sink() -> None:
    is_held = threading.Event()

    def require_held() -> None:
        if not is_held.is_set():
            raise StateError("another driver has taken the checkpoint over")

    world = World(0.05, q=Outlet())
    world.delivery.require_held = require_held
    world.batch(0, q=(0,))
    assert not world.outlets["q"].calls
    assert world.delivery.first_waiting == 0
    is_held.set()
    world.delivery.finish()
    assert world.outlets["q"].taken == [0]


def test_a_call_that_outlasts_its_delivery_is_not_made_a_second_time_while_it_runs() -> None:
    """A pipeline is started anew, for a query that comes, while a sink is called."""
    go_on = threading.Event()
    world = World(0.05, q=Outlet(lambda results: wait(go_on)), r=Outlet())
    world.batch(0, q=(0,), r=(0,))
    world.again(0.05)
    world.batch(1, q=(0,), r=(0,))
    assert world.outlets["q"].calls == [0]
    assert world.outlets["r"].taken == [0, 1], "it holds up nobody"
    stopped, world.delivery = world.delivery, world.again(0.05)
    go_on.set()
    world.delivery.finish()
    assert world.outlets["q"].calls == [0, 0, 1], "the first has noted nothing, the second was stopped before it made a call"
    assert not stopped.lines["q"].is_served
    world.delivery.forget(["q", "r"])
    assert not world.delivery.calls


def test_a_driver_that_loses_its_checkpoint_in_a_long_call_leaves_results_to_the_next() -> None:
    """The next driver may read the same files while the first one is in its call."""

    def lost() -> None:
        raise CheckpointBusyError("another driver has taken the checkpoint over")

    def takes_long(results: Results) -> None:
        world.delivery.require_held = lost
        sleep(0.02)

    world = World(0.01, q=Outlet(takes_long))
    world.batch(0, q=(0,))
    wait_until(lambda: bool(world.delivery.failing))
    assert world.outlets["q"].taken == [0]
    assert world.staged
    assert not world.disk.list("delivered/q")


def test_what_cannot_be_deleted_is_left_and_delivery_goes_on() -> None:
    """The store is away for a moment, right after results have arrived."""
    world, delete = World(10.0, q=Outlet()), MemoryFilesystem.delete
    failed: list[str] = []

    def away_once(disk: MemoryFilesystem, path: str) -> None:
        if path.startswith("delivered") and not failed:
            failed.append(path)
            raise OSError("the store is away")
        delete(disk, path)

    with mock.patch.object(MemoryFilesystem, "delete", away_once):
        for number in range(4):
            world.batch(number, q=(0,))
        world.delivery.finish(within_s=5.0)
    assert failed
    assert world.outlets["q"].taken == [0, 1, 2, 3]
    assert len(world.disk.list("delivered/q")) == 2
    world.again()
    world.batch(4, q=(0,))
    world.delivery.finish(within_s=5.0)
    assert len(world.disk.list("delivered/q")) == 1
    assert not world.staged


def test_a_function_that_asks_its_thread_to_exit_has_failed() -> None:
    def leaves(results: Results) -> None:
        world.outlets["q"].before = lambda results: None
        raise SystemExit("enough")

    world = World(10.0, q=Outlet(leaves))
    world.batch(0, q=(0,))
    world.delivery.finish(within_s=5.0)
    assert world.outlets["q"].calls == [0, 0]
    assert world.outlets["q"].taken == [0]


def test_what_arrives_after_a_stop_is_not_noted() -> None:
    """The next driver may have begun to deliver the same: it is told by nobody else that it has arrived."""
    world = World(None, q=Outlet(lambda results: world.delivery.stop()))
    world.batch(0, q=(0,))
    assert world.outlets["q"].taken == [0]
    assert not world.disk.list("delivered/q")
    assert world.staged
    world.outlets["q"].before = lambda results: None
    world.again(None).finish()
    assert world.outlets["q"].taken == [0, 0]
    assert len(world.disk.list("delivered/q")) == 1


@pytest.mark.parametrize("patience_s", [10.0, None])
def test_a_query_that_no_batch_has_left_out_has_not_left(patience_s: float | None) -> None:
    """The bound is reached in the last batch: nobody would tell that results of the query lie undelivered."""
    world = World(patience_s, q=Outlet(fails), r=Outlet())
    world.delivery = Delivery(world.disk, world.outlets, patience_s, 1, leaves=["q"])  # type: ignore[arg-type]
    with mock.patch("anabranch.drive.delivery.TRIED_S", 0.0):
        world.batch(0, q=(0,), r=(0,))
    assert list(world.delivery.leaving) == ["q"]
    with pytest.raises(SinkError, match=r"sink of query q .* has failed .* in batch 0"):
        world.delivery.finish(within_s=0.1)
    world.delivery.leave()  # a batch runs without it, and tells so
    world.delivery.finish(within_s=0.1)
    assert world.delivery.first_waiting == 0
    world.outlets["q"].before = lambda results: None
    world.delivery.finish()
    assert world.outlets["q"].taken == world.outlets["r"].taken == [0]
