"""What is written beside the state: what a batch starts from (`Control`) and what it left behind (`Commit`).

A slot's state is lists of files' parts (`SlotState`). The log is the truth, and so are the partial rows of groups, which
outlive the rows they were folded from; runs and views derive from the log, and what is missing or damaged of them is derived
again. A commit names the manifest of each slot, in which all of that is told: recovery reads one commit, and each slot its
manifest (`anabranch.control.manifest`).
"""

from __future__ import annotations

import msgspec

from anabranch.control.pace import Pace, Took
from anabranch.plan.query import BEGINNING_US, FOREVER_US
from anabranch.plan.statement import FAIL
from anabranch.storage.container import Segment


class LogSegment(msgspec.Struct, frozen=True, array_like=True):
    """The accepted rows of one source in one batch: one Arrow IPC stream."""

    source: str
    batch: int
    rows: int
    start_max_us: int
    data: Segment
    passed: int = 0
    """The predicates that all rows have passed: a place in `SlotState.predicates`."""
    watermarks: dict[str, int] = msgspec.field(default_factory=dict)
    """For the streams of each query for which some of the rows were late (`anabranch.plan.identity.streams_key`), the
    query's watermark: queries over the same streams have the same."""
    first: int = 0
    """The position of the first row among the rows that the slot has of the source and batch. Row ids are made of the batch
    and the position, so that they can stay unique when a slot reads a segment that another one wrote, after its own. No
    slot does so far: another position than 0 is refused."""
    slices: tuple[tuple[int, int, int, str], ...] = ()
    """Rows that are kept equally long stand together (`anabranch.engine.slices.Slice`)."""
    kept: float = 1.0
    """The share of the stream's rows that the batch kept; others were shed."""


class RunSegment(msgspec.Struct, frozen=True, array_like=True):
    """One run of an index; the fields are those of `anabranch.engine.run.SortedRun`."""

    index: str
    tier: int
    first_batch: int
    last_batch: int
    lo: int
    hi: int
    prefix_bits: int
    rows: int
    narrow: bool
    has_end: bool
    offset_bits: int
    base_start_us: int
    start_max_us: int
    end_max_us: int
    entries: Segment
    directory: Segment
    retention_us: int = 0
    """How long rows of its slice are kept; 0 for a view, whose rows have ends of their own."""
    unwanted_by: str = ""
    """By whom they are not wanted (`anabranch.engine.slices.Keeping`)."""


class ViewSegment(msgspec.Struct, frozen=True, array_like=True):
    """The combined rows that one batch added to a view: for each of its inputs the row ids, as int64."""

    view: str
    batch: int
    rows: int
    end_max_us: int
    parts: Segment


class PartialSegment(msgspec.Struct, frozen=True, array_like=True):
    """What the rows of one batch are to aggregates, folded by group and by the instants at which they count: one Arrow IPC
    stream. `table` tells the folding: by the keys alone, or by the keys and the argument of a COUNT DISTINCT."""

    block: str
    """Of which query, in which form, or of which subquery."""
    table: str
    batch: int
    rows: int
    last: int
    """The first instant at which none of them counts any more."""
    data: Segment


class ViewBuild(msgspec.Struct, frozen=True, array_like=True):
    """A view that does not hold all combined rows yet, in a migration under way. Rows of which some part came in batch
    `since` or later are there. Of the others, those are there whose part of the inputs `seed` (places in its key) stands in
    a segment after `batch`, or in that one at `row` or later. A view without a seed is that of a parallel track: it has
    combinations of new rows only.
    """

    view: str
    since: int
    seed: tuple[int, ...] = ()
    batch: int = -1
    row: int = -1


class SlotState(msgspec.Struct, frozen=True):
    """All that a slot's state consists of."""

    logs: tuple[LogSegment, ...] = ()
    runs: tuple[RunSegment, ...] = ()
    views: tuple[ViewSegment, ...] = ()
    kept_views: tuple[str, ...] = ()
    """The views that the plan keeps, also those that have no rows."""
    partials: tuple[PartialSegment, ...] = ()
    builds: tuple[ViewBuild, ...] = ()
    """The views that are being built."""
    prepared: dict[str, int] = msgspec.field(default_factory=dict)
    """The indexes that only the target of a gradual migration needs, and the batch up to which each has been derived."""
    versions: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    """For each query the batch in which each stored table was last read for it."""
    predicates: tuple[tuple[str, ...], ...] = ()
    """Sets of predicates that the rows of log segments have passed."""
    folded: dict[str, int] = msgspec.field(default_factory=dict)
    """For each block on its way from a database to the engine the batch from which on all that came is in its groups."""

    def files(self) -> frozenset[str]:
        """The files that hold it."""
        return (
            frozenset(s.data.file for s in self.logs)
            | frozenset(s.entries.file for s in self.runs)
            | frozenset(s.parts.file for s in self.views)
            | frozenset(s.data.file for s in self.partials)
        )


class Held(msgspec.Struct, frozen=True, array_like=True):
    """Rows of a log, by what a watermark that lags has to do with them."""

    waiting: int = 0
    """They would be over if it did not lag."""
    free: int = 0
    """Nobody wants them by it: they are in slices of their own, and do not wait for it."""

    def __add__(self, other: Held) -> Held:
        return Held(self.waiting + other.waiting, self.free + other.free)


class SourceStatistics(msgspec.Struct):
    """What a batch brought from one source, as one query counts it, and what the source's log holds. A row that goes to
    several slots is counted once; only `stored_rows`, those that the query keeps or uses, are counted in each."""

    rows: int = 0
    late_rows: int = 0
    early_rows: int = 0
    """Rows that are too far ahead of the driver's clock: like late ones, they are turned away."""
    untimed_rows: int = 0
    stale_rows: int = 0
    """Rows older than the query may have them in a result; those too old for all queries of the source go no further."""
    shed_rows: int = 0
    """Rows that were dropped before the exchange: they are among `rows`."""
    skipped_rows: int = 0
    """Rows that could not be read and were set aside: they are not among `rows`."""
    skipped_files: int = 0
    """Files that are damaged as a whole and were set aside."""
    stored_rows: int = 0
    wanted_rows: dict[int, int] = msgspec.field(default_factory=dict)
    """Rows that are kept, by the longest window, in microseconds, of all queries that want them: told once for each source,
    of one of the queries that read it, where windows differ."""
    slice_rows: dict[int, int] = msgspec.field(default_factory=dict)
    """The rows in its log by the length of the slice that they are in, where windows differ: told as `wanted_rows` are."""
    held: dict[str, Held] = msgspec.field(default_factory=dict)
    """By the streams of each watermark that lags (`anabranch.engine.slices.lagging`): told of the first query that reads the
    source in a slot."""
    state_rows: int = 0
    state_bytes: int = 0
    largest_time_us: int | None = None


class StepStatistics(msgspec.Struct):
    """One probe of a route: `probes` rows came, made `lookups` in runs, found `candidates` with the same hash (or in
    their range) and valid together, of which `matches` have equal keys and pass the residual predicates."""

    route: str
    target: str
    probes: int = 0
    lookups: int = 0
    candidates: int = 0
    matches: int = 0
    cpu_ns: int = 0


class KeySample(msgspec.Struct, array_like=True):
    """The new rows of an input whose key has a hash below `limit`: the hashes that occur (uint64) and how often (uint32).

    All inputs are sampled by the same hash, so that a key is in two samples or in none of them: the lesser limit of the
    two tells which share of all keys they speak for."""

    term: str
    limit: int
    rows: int
    """All new rows."""
    hashes: bytes
    counts: bytes


class StateStatistics(msgspec.Struct):
    """Rows and bytes of an index or a view, among them rows that are no longer valid (`expired` files lag behind)."""

    name: str
    kind: str
    """`index`, `view` or `groups`."""
    rows: int = 0
    bytes: int = 0
    runs: int = 0
    sources: tuple[str, ...] = ()
    """Whose rows it has: the source of each input that is combined in it; of groups nothing is told."""

    @property
    def inputs(self) -> int:
        """So many inputs' rows are combined in it."""
        return len(self.sources)

    def is_index_over(self, source: str) -> bool:
        """Whether it is an index over the rows of a source."""
        return self.kind == "index" and self.sources == (source,)


class Preparing(msgspec.Struct):
    """What a step did for a migration under way: the pieces of state it recomputed, and what is left (0: the new plan can
    take over)."""

    left: int = 0
    pieces: int = 0
    rows: int = 0
    """Combined rows that were recomputed."""
    cpu_ns: int = 0
    slowest_ns: int = 0
    """Of several slots: what it took in the slot where it took longest."""
    unfolded: int = 0
    """Segments that must still become groups before the engine can run a block that a database has run."""


class Limited(msgspec.Struct):
    """What became of rows of one input at the join that gives results, where only some may look up their partners."""

    rows: int = 0
    """Rows that came there: of the input itself, or combined with others on their way."""
    probed: int = 0
    """Those that looked up their partners."""
    results: int = 0
    """What they found that was delivered."""
    estimated: float = 0.0
    """How many results all rows would have found: each result counts for as many as it was likely to be missed."""
    variance: float = 0.0
    """The square of the standard error of that."""
    cpu_ns: int = 0
    """What looking up, and what was made of it, took."""
    arrived: int = 0
    """Rows of the input itself, after filters: an allowance counts these."""
    covariance: float = 0.0
    """How much more the sum of what is estimated and of the estimates of the batches before varies: rows that were shed are
    missing in all."""


STAGE = "stage"
"""What encoding and writing results took of a task's CPU: the engine has no part in it."""


class Border(msgspec.Struct):
    """What went over the border between the engine and a database, for one stream or one block of a query."""

    database: str
    calls: int = 0
    rows_sent: int = 0
    """Distinct keys that were looked up; rows of windows that a block was run over."""
    bytes_sent: int = 0
    """An embedded database scans them where they lie."""
    rows_back: int = 0
    bytes_back: int = 0
    seconds: float = 0.0
    """How long the database took, by the clock; of several slots, all of it."""
    failed: int = 0
    """Calls that failed, and whose groups the engine made instead."""
    instants: int = 0
    """The instants at which a block was run, several of which may be one call; of a join without groups the batch. Of
    several slots, as many as in the one that had most: they run it at the same ones."""

    def count(self, sent: tuple[int, int], back: tuple[int, int], seconds: float, instants: int = 0) -> None:
        """Counts one call: the rows and the bytes that were sent, and that came back, and the instants that it was for."""
        self.add(Border(self.database, 1, *sent, *back, seconds))
        self.instants += instants

    def __str__(self) -> str:
        sent = f"{self.rows_sent:,} rows ({self.bytes_sent:,} bytes) sent"
        back = f"{self.rows_back:,} ({self.bytes_back:,} bytes) came back"
        return f"{sent}, {back}, {self.seconds:.3f} s in {self.calls:,} {'call' if self.calls == 1 else 'calls'}"

    def add(self, other: Border) -> None:
        """Counts what another slot did."""
        self.calls += other.calls
        self.rows_sent += other.rows_sent
        self.bytes_sent += other.bytes_sent
        self.rows_back += other.rows_back
        self.bytes_back += other.bytes_back
        self.seconds += other.seconds
        self.failed += other.failed
        self.instants = max(self.instants, other.instants)


class Probed(msgspec.Struct):
    """What probes and samples of keys tell of the block of a subquery: how many of its rows meet."""

    steps: list[StepStatistics] = msgspec.field(default_factory=list)
    samples: list[KeySample] = msgspec.field(default_factory=list)


class Grouped(msgspec.Struct):
    """The groups that the engine has handed out of a block, and at how many instants."""

    instants: int = 0
    groups: int = 0
    """Of all these instants together."""

    def add(self, other: Grouped) -> None:
        """Counts what another slot did, at the same instants."""
        self.instants = max(self.instants, other.instants)
        self.groups += other.groups


class BlockFigures(msgspec.Struct, frozen=True):
    """What batches have measured of a block: remembered while they do not tell, for a database does the work."""

    distinct: dict[str, float] = {}
    """How many values the keys of its join have, by what lookups found: fewer meet, or do not pass its other predicates,
    where there are more."""
    groups: float | None = None
    """How many groups it has at an instant."""


class Statistics(msgspec.Struct):
    """What a step measured."""

    sources: dict[str, SourceStatistics] = msgspec.field(default_factory=dict)
    steps: list[StepStatistics] = msgspec.field(default_factory=list)
    states: list[StateStatistics] = msgspec.field(default_factory=list)
    samples: list[KeySample] = msgspec.field(default_factory=list)
    """Of the keys whose selectivity probes alone do not tell."""
    cpu_ns: dict[str, int] = msgspec.field(default_factory=dict)
    slowest_ns: dict[str, int] = msgspec.field(default_factory=dict)
    """Of several slots: what each part took in the slot where it took longest."""
    results: int = 0
    stale_results: int = 0
    """Results that were suppressed because a row in them is older than its freshness allows."""
    limited: dict[str, Limited] = msgspec.field(default_factory=dict)
    """By input, what came of limits; also of inputs that are not limited, if the query may be."""
    files_written: int = 0
    bytes_written: int = 0
    preparing: Preparing = msgspec.field(default_factory=Preparing)
    borders: dict[str, Border] = msgspec.field(default_factory=dict)
    """What databases were asked: by the stream for whose rows, and by the block that they ran. What queries have in common
    is told of each."""
    blocks: dict[str, Probed] = msgspec.field(default_factory=dict)
    """Of the subqueries that join, by block; `steps` and `samples` are of the query itself."""
    grouped: dict[str, Grouped] = msgspec.field(default_factory=dict)
    """Of the blocks whose groups the engine makes, by block."""
    took: dict[str, Took] = msgspec.field(default_factory=dict)
    """How long databases took beside what was calibrated, by what tells that in tasks: the ways of lookups."""

    @property
    def engine_cpu_ns(self) -> int:
        """What the engine spent, without Spark: neither clocks of whole parts count, nor what becomes of results."""
        parts = sum(ns for what, ns in self.cpu_ns.items() if what != STAGE and not what.startswith("wall"))
        return parts + sum(step.cpu_ns for step in (*self.steps, *(s for b in self.blocks.values() for s in b.steps)))

    def spent(self, what: str, cpu_ns: int) -> None:
        """Counts what a part of the work took."""
        self.cpu_ns[what] = self.cpu_ns.get(what, 0) + cpu_ns

    def add_cpu(self, other: Statistics) -> None:
        """Counts what something else spent."""
        for name, spent_ns in other.cpu_ns.items():
            self.spent(name, spent_ns)


class Manifest(msgspec.Struct, frozen=True, array_like=True):
    """Where what a slot's state consists of is told (`anabranch.control.manifest`)."""

    own: Segment
    base: Segment | None = None
    """The whole manifest that it is the difference from; None if it is whole itself."""
    whole_batch: int = 0
    """The batch that wrote the whole one."""


class Failure(msgspec.Struct, frozen=True):
    """An error of a query's own expressions or rows."""

    kind: str
    """The class of the error."""
    text: str


class Attempt(msgspec.Struct, frozen=True):
    """What a task that ran one batch of one slot reports."""

    slot: int
    token: str
    """Names the attempt: in its files, and in the worker that may still have the boxes."""
    manifest: Manifest | None
    """None: the slot keeps nothing."""
    statistics: dict[str, Statistics]
    """What was measured, by query."""
    staged: dict[str, int] = msgspec.field(default_factory=dict)
    """The queries that have results in the slot, and how many bytes of staged files they take."""
    dropped: tuple[str, ...] = ()
    """Files that the state it began with needed, and the state it left does not."""
    failed: dict[str, Failure] = msgspec.field(default_factory=dict)
    """Queries that failed by themselves. The attempt has done nothing else then: the batch runs again without them."""
    gone: str = ""
    """What a database said that is gone for the time being. The attempt has done nothing then."""


class SlotCommit(msgspec.Struct, frozen=True, array_like=True):
    """What a commit keeps of the attempt that won in a slot."""

    token: str
    manifest: Manifest | None
    dropped: tuple[str, ...] = ()
    left: int = 0
    """What the slot has still to prepare for migrations."""
    rows: int = 0
    state_bytes: int = 0
    cpu_ns: int = 0
    limited: dict[str, dict[str, Limited]] = {}
    """What came of limits in the slot, by query and input: each slot has limits of its own."""


def slot_commit(attempt: Attempt) -> SlotCommit:
    """What stays of an attempt. Queries that share rows or states each count them: of a source the most rows count that a
    query has of it, and of states each once."""
    rows: dict[str, int] = {}
    state_bytes: dict[tuple[str, str], int] = {}
    left = cpu_ns = 0
    for counted in attempt.statistics.values():
        for name, source in counted.sources.items():
            rows[name] = max(rows.get(name, 0), source.rows)
            state_bytes["log", name] = source.state_bytes
        for state in counted.states:
            state_bytes[state.kind, state.name] = state.bytes
        cpu_ns += counted.engine_cpu_ns
        left += counted.preparing.left
    sizes = sum(rows.values()), sum(state_bytes.values()), cpu_ns
    limited = {query: counted.limited for query, counted in attempt.statistics.items() if counted.limited}
    return SlotCommit(attempt.token, attempt.manifest, attempt.dropped, left, *sizes, limited)


class Layout(msgspec.Struct, frozen=True):
    """How rows of a query are spread: the grid, as its dimensions and shares, and the slot that owns each cell."""

    dimensions: tuple[str, ...] = ()
    shares: tuple[int, ...] = ()
    slots: tuple[int, ...] = (0,)
    is_exchanged: bool = True
    """Whether rows cross to the slots; else they are good wherever they come in."""


class MigrationRecord(msgspec.Struct, frozen=True):
    """A migration under way: see `anabranch.plan.migration.Migration`."""

    target: str
    strategy: str
    since: int
    pause_us: int = 0


class LeavingRecord(msgspec.Struct, frozen=True):
    """The form that a query leaves: see `anabranch.plan.migration.Leaving`."""

    grouped_input: str | None
    plan: str
    until_us: int
    since: int


class SelectRecord(msgspec.Struct, frozen=True):
    """A select that stands above a join: see `anabranch.plan.selects.Raised`."""

    above: str
    until_us: int | None = None


class WokenRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A block that a database may run since somebody asked for that: see `anabranch.plan.migration.Woken`."""

    block: str
    database: str
    since: int = 0
    until_us: int | None = None
    """None: all that its windows reach back to is there."""
    is_going: bool = False
    failure: str = FAIL


class ProbationRecord(msgspec.Struct, frozen=True):
    """A block whose database has failed: see `anabranch.plan.migration.Probation`."""

    block: str
    times: int
    until: int


class FoldingRecord(msgspec.Struct, frozen=True):
    """A block on its way from a database to the engine: see `anabranch.plan.migration.Folding`."""

    block: str
    since: int
    pause_us: int = 0


class ExecutionRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a batch runs of a query: see `anabranch.plan.migration.Execution`."""

    plan: str
    migration: MigrationRecord | None = None
    grouped_input: str | None = None
    """The input whose rows are grouped before they are joined; None: groups stand above the join."""
    leaving: LeavingRecord | None = None
    selects: dict[str, SelectRecord] = msgspec.field(default_factory=dict)
    """The predicates of single inputs that are evaluated above a join, by their texts."""
    company: str = ""
    """Queries that name different ones run their joins apart, whatever they have in common."""
    home: tuple[str, ...] = ()
    """The blocks that the engine runs, of those that a database may."""
    woken: tuple[WokenRecord, ...] = ()
    """The blocks that a database may run since somebody asked for that."""
    probation: tuple[ProbationRecord, ...] = ()
    """The blocks whose database has failed."""
    folding: tuple[FoldingRecord, ...] = ()
    """The blocks on their way from a database to the engine."""


class Limit(msgspec.Struct, frozen=True, omit_defaults=True):
    """How many rows of an input may look up their partners at the join that gives results, in a batch and slot."""

    share: float | None = None
    """This share of them, in every slot."""
    rows: dict[int, int] = msgspec.field(default_factory=dict)
    """Or so many, by slot; in a slot that is not named all of them."""


class QueryRecord(msgspec.Struct, frozen=True):
    """What records of a batch say of a query, before the batch and after it."""

    identity: str
    """The digest of what its state depends on, and `text` that of the whole query (`anabranch.control.query_texts`)."""
    text: str
    watermark_us: int
    execution: ExecutionRecord
    layout: Layout = Layout()
    tables: dict[str, str] = msgspec.field(default_factory=dict)
    """The files of stored tables: of a control record those that the batch takes in (the first batch does, and one that
    reads a table again), of a commit those that each table was last read from."""
    tables_read_us: dict[str, int] = msgspec.field(default_factory=dict)
    """The watermark at which each table that changes was last read."""
    since: int = 0
    """The first batch whose rows of streams are its own: it may have been added while others ran."""
    declared: str = ""
    """Of a query that was altered while it ran: how it was written before (`QueryText.sql_digest`). A script that still has
    it so has not changed."""
    clock_us: int = BEGINNING_US
    """The clock that the freshness of results is told by."""
    limits: dict[str, Limit] = msgspec.field(default_factory=dict)
    """By input, which rows may look up their partners where results are found; of an input that is not named, all."""
    command: str = ""
    """The command by which it came, or was altered last (`anabranch.control.commands`): one that was carried out, and not
    answered, is known by it."""
    paces: dict[str, Pace] = msgspec.field(default_factory=dict)
    """How long databases have taken of late, beside what was calibrated: for blocks, and for the ways of lookups."""
    figures: dict[str, BlockFigures] = msgspec.field(default_factory=dict)
    """What batches have measured of its blocks, where a database may run some, by block."""


class QueryControl(QueryRecord, frozen=True):
    """What a batch starts from, of one query."""

    own_folder: str = ""
    """Where tasks write files for its sink, if it came while the dataflow was running, which cannot know: a folder that
    this machine sees."""


BY_REQUEST = "by request"
"""Why a query has left that a user had dropped."""


class Ended(msgspec.Struct, frozen=True):
    """A query that has left its pipeline: its results are not computed from a batch on."""

    batch: int
    reason: str
    layout: Layout = Layout()
    """How its rows were spread: results of it may still wait for its sink."""
    command: str = ""
    """The command by which it left; or else by which it came, or was altered."""


class Control(msgspec.Struct, frozen=True):
    """What a batch starts from, written before it runs. A batch that runs again starts from the same.

    `trigger` is the number under which the source handed the rows out; closing steps repeat the one before them.
    """

    batch: int
    trigger: int
    queries: dict[str, QueryControl]
    token: str = ""
    """Names the batch: drawn when its first control record is written, and kept in those that supersede it. The commit and
    what is published carry it."""
    epoch: int = 0
    """That of the driver that wrote this record, and `base_epoch` of the one that wrote the commit that the batch starts
    from."""
    base_epoch: int = 0
    runs: int = 1
    """How often the batch was begun."""
    planned_us: int = FOREVER_US
    """The driver's clock when the batch was first planned, in microseconds since the epoch: it tells which rows are early
    and which streams are idle. Nobody who runs the batch looks at a clock."""
    ended: dict[str, Ended] = msgspec.field(default_factory=dict)
    """The queries that have left the pipeline, while results of theirs may be on their way (`anabranch.control.left`)."""
    parted: tuple[str, ...] = ()
    """The sources whose rows may be in a slot for the sake of one query and not of another
    (`anabranch.plan.distribution.parted_sources`), also of one that has left: its rows are in the logs still, and Spark may
    go on sending them."""
    slices: dict[str, tuple[int, ...]] = msgspec.field(default_factory=dict)
    """How rows that come in the batch are cut (`anabranch.engine.slices`): for how long those of each slice are kept, in
    microseconds, by source. Of a source that is not named, windows that differ by much have slices."""
    salt: int = 0
    """Drawn with the token: by it rows are chosen that look up their partners, or that are shed."""
    shed: dict[str, float] = msgspec.field(default_factory=dict)
    """The share of rows of each stream that is kept, by a hash of all its columns; of a stream that is not named, all."""
    may_lose: bool = False
    """Whether the policy of the pipeline may lose results: then queries share no routes, and what each direction of a join
    gives is counted."""


class QueryCommit(QueryRecord, frozen=True):
    """What a batch left behind, of one query."""

    slots: tuple[int, ...] = ()
    """The slots that have results of it, in files that wait to be delivered."""
    staged_bytes: int = 0
    """What these results take in the files."""
    has_own_files: bool = False
    """Whether the files are the query's alone, in the folder of its sink; else results of several queries share them."""
    statistics: Statistics = msgspec.field(default_factory=Statistics)
    """What all slots measured."""
    missing_until_us: int = BEGINNING_US
    """Rows that were shed might be in its results as long as its watermark is below this
    (`anabranch.control.completeness.missing_until_us`)."""


class SetAside(msgspec.Struct, frozen=True):
    """Rows of a stream that a batch set aside and that are kept: they are published as results are."""

    slots: tuple[int, ...] = ()
    """The slots that have them in files, which wait to be published."""
    staged_bytes: int = 0

    @property
    def has_own_files(self) -> bool:
        """Whether the files are in the folder that the rows go to."""
        return True


class Commit(msgspec.Struct, frozen=True):
    """What a batch left behind: the files that won in every slot, and the largest event time each stream has shown."""

    batch: int
    trigger: int
    queries: dict[str, QueryCommit]
    largest_time_us: dict[str, int] = msgspec.field(default_factory=dict)
    slots: dict[str, SlotCommit] = msgspec.field(default_factory=dict)
    token: str = ""
    """That of the control record that the batch ran from."""
    epoch: int = 0
    last_seen_us: dict[str, int] = msgspec.field(default_factory=dict)
    """For each stream the `planned_us` of the batch that last brought rows of it; of the first batch if none has."""
    ended: dict[str, Ended] = msgspec.field(default_factory=dict)
    """As in the control record."""
    set_aside: dict[str, SetAside] = msgspec.field(default_factory=dict)
    """For each stream of which rows were set aside and kept, under the name by which these are delivered
    (`anabranch.drive.staging.set_aside_of`), where they are."""
    parted: tuple[str, ...] = ()
    """As in the control record, and so are `slices` and `shed`."""
    slices: dict[str, tuple[int, ...]] = msgspec.field(default_factory=dict)
    shed: dict[str, float] = msgspec.field(default_factory=dict)
    waits_from: dict[str, int] = msgspec.field(default_factory=dict)
    """For each name under which results of earlier batches had not arrived when this was written, the first such batch: its
    commit stays until they have."""

    def staged(self, name: str) -> QueryCommit | SetAside | None:
        """What there is to deliver under a name: that of a query, or of the rows of a stream that were set aside."""
        return self.queries.get(name) or self.set_aside.get(name)


class Delivered(msgspec.Struct, frozen=True):
    """The results of a query in a batch, and in all before it, have arrived where they go."""

    batch: int
    token: str
