"""Planning without Spark: the declared sources and queries, a plan for each query, and `explain`.

`Session` and `anabranch explain` plan and explain by this. Nothing here, nor in what it imports, needs pyspark (`make lint`
checks it), so that plans can be looked at where there is no Spark, and before one is started.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from anabranch.adapt.handover import MadeUp, made_up
from anabranch.balance.together import choose_together, restored
from anabranch.control.completeness import LeftOut, together
from anabranch.control.holding import Holding
from anabranch.control.pace import Pace
from anabranch.control.pipelines import KnownPipeline, known_pipelines
from anabranch.control.progress import read_progress
from anabranch.control.query_texts import QueryTexts, text_of
from anabranch.control.records import QueryCommit
from anabranch.control.spark_streams import read_streams, spark_name, why_fixed
from anabranch.cost.facts import EMPTY, Facts, Given
from anabranch.cost.units import DEFAULT, unit_costs
from anabranch.errors import FactsError, LocationError, NoQualifiedPlanError, SessionError, known_names
from anabranch.optimize.group_placement import choose_groups
from anabranch.optimize.planner import Bounds, decide
from anabranch.place.calibrate import remembered
from anabranch.place.capabilities import DUCKDB
from anabranch.place.choice import AS_CALIBRATED, Choice, choose_places
from anabranch.place.databases.embedded import DUCK, is_installed, open_embedded
from anabranch.place.reading import LookupCosts, at_pace, lookup_costs_of
from anabranch.place.statement_of import Places, placed
from anabranch.place.tree import group_keys, joining_blocks
from anabranch.place.wishes import Databases, places_kept, wished_places
from anabranch.plan.defeated import defeated
from anabranch.plan.distribution import Distribution
from anabranch.plan.eager import Forms
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import parse
from anabranch.plan.migration import Execution
from anabranch.plan.names import same_name
from anabranch.plan.overload import Overload
from anabranch.plan.partial import check_overload
from anabranch.plan.query import Derived, Enriched, Query, Stream, Table
from anabranch.plan.statement import FAIL, FAILURES
from anabranch.plan.warned import warnings_of
from anabranch.plan.workload import Workload
from anabranch.session_budget import budget_json, budget_text
from anabranch.session_sharing import Planned, Together, plan_beside, plan_session
from anabranch.settings import Budget
from anabranch.share.canonical import MOST_MEMBERS, companies
from anabranch.share.join_load import JoinLoad
from anabranch.share.joint_budget import NOTHING
from anabranch.share.pipeline_chains import ASSUMED, Known, first_chains, pipeline_joins
from anabranch.share.source_chain import BYTE_CORES, SourceChain
from anabranch.share.taking_in import Pricing
from anabranch.show.as_json import priced_json
from anabranch.show.chains import (
    PipelineShown,
    ShownSharing,
    held_in,
    known_of,
    seen_in,
    sharing_json,
    sharing_lines,
    sharing_text,
    started_with,
    way_json,
    way_text,
)
from anabranch.show.contained import taking_in_json, taking_in_text
from anabranch.show.explain import Explanation, PricedPlan, explained
from anabranch.show.figures import listed
from anabranch.show.lookups import CostsOf, lookups_json, lookups_text
from anabranch.show.measured import Batches, batches_of
from anabranch.show.overload import overload_json, overload_text
from anabranch.show.placement import placement_json, placement_text
from anabranch.show.routes import block_grids, routes_json, routes_text, times_json, times_text
from anabranch.show.spread import Origin, Slots, spread_json, spread_text
from anabranch.sql import BoundQuery, Catalog, Script
from anabranch.storage.location import Folder


class Planning:
    """The declared sources and queries of a session, each query with its plan.

    Plans are chosen by `facts`, unless they are pinned: those of all queries together within `budget`, if there is one.
    `slots` is how many were asked for, and `checkpoint` where queries keep their state, once they have run.

    >>> from anabranch.sql import parse_script
    >>> planning = Planning(slots=4)
    >>> planning.add_script(parse_script('''
    ...     CREATE STREAM a (k BIGINT, ts TIMESTAMP) TIME ts;
    ...     CREATE STREAM b (k BIGINT, ts TIMESTAMP) TIME ts;
    ...     CREATE QUERY pairs AS SELECT a.k FROM a, b WHERE a.k = b.k WINDOW 5 SECONDS;
    ... '''))
    >>> planning.explain("pairs")  # doctest: +ELLIPSIS
    <plan of pairs: (a b), ... cores, ... kept (assumed)>
    """

    def __init__(
        self,
        budget: Budget | None = None,
        facts: Given = EMPTY,
        slots: int | None = None,
        checkpoint: Folder | None = None,
        overload: Overload | None = None,
        database_failure: str = FAIL,
    ) -> None:
        if database_failure not in FAILURES:
            raise SessionError(
                f"database_failure says what becomes of a block whose database fails: {' or '.join(FAILURES)}, not "
                f"{database_failure!r}"
            )
        if slots is not None and (type(slots) is not int or slots < 1):
            raise SessionError(f"slots is a number of tasks, 1 or more: not {slots!r}")
        self.budget, self.facts, self.units = budget or Budget(), facts, unit_costs()
        self.slots, self.checkpoint = slots, checkpoint
        self.catalog = Catalog(databases=open_embedded)
        self.queries: dict[str, Planned] = {}
        self.alone: set[str] = set()
        """The queries that are not to share a pipeline with others."""
        self.overload = overload or Overload()
        """What queries do under overload, but for those of which something else is said."""
        self.overloads: dict[str, Overload] = {}
        self.databases: Databases = {DUCK: DUCKDB} if is_installed() else {}
        """The databases that run blocks of queries."""
        self.database_failure = database_failure
        """What becomes of a statement of theirs that fails."""
        self.changing: set[str] = set()
        """The stored tables that are read again while queries run."""
        self.source_names: dict[str, tuple[str, ...]] = {}
        """What Spark calls the sources of streams, of those that our reader does not read."""
        self._known_together: Together | None = None
        self._shown: tuple[Together | None, dict[tuple[str, ...], PipelineShown]] = None, {}
        """How pipelines share what they read, by their queries, as long as these stay as they are."""
        self._at_most = NOTHING
        """No more is taken by all queries, if none of them shares a state that was not shared when it was last looked at."""

    def add_script(self, script: Script) -> None:
        """Declares what a script creates, over the catalog that it was read with: all of it or, with an error, nothing."""
        locations = {source.name: script.catalog.location(source.name) for source in script.catalog}
        changing = self.changing | {name for name, at in locations.items() if at is not None and at.refresh_us}
        queries = [replace(bound, query=self.placed(bound.query, changing)) for bound in script.queries]
        for bound in queries:
            check_overload(bound.query, bound.overload or self.overload, changing)
        planned = [self._plan(bound) for bound in queries]
        self._require_room(planned)
        self._require_fit(planned)
        self.catalog, self.changing = script.catalog, changing
        self.queries |= {p.name: p for p in planned}
        self.overloads |= {bound.query.name: bound.overload for bound in script.queries if bound.overload is not None}

    def add_query(self, bound: BoundQuery, is_settled: bool = False) -> None:
        """Declares a query over the sources of the catalog; one that `is_settled` runs where it says, or as its state
        does."""
        bound = bound if is_settled else replace(bound, query=self.placed(bound.query))
        check_overload(bound.query, bound.overload or self.overload, self.changing)
        planned = self._plan(bound)
        self._require_room([planned])
        self._require_fit([planned])
        self.queries[bound.query.name] = planned
        if bound.overload is not None:
            self.overloads[bound.query.name] = bound.overload

    def overload_of(self, name: str) -> Overload:
        """What a query does under overload."""
        return self.overloads.get(name, self.overload)

    def check_facts(
        self, rates: str = "rates", table_rows: str = "table_rows", distinct: str = "distinct", passing: str = "passing"
    ) -> None:
        """Refuses facts of what nobody declared: with a name mistyped, a plan would be one for assumed rates. The words are
        what errors call the facts."""
        blocks = [block for planned in self.queries.values() for block in planned.forms.written.blocks]
        sources = [*self.catalog, *(i.source for block in blocks for i in block.inputs if isinstance(i.source, Derived))]
        streams = [source.name for source in sources if isinstance(source, Stream)]
        tables = [source.name for source in sources if isinstance(source, Table)]
        keys = [str(term) for block in blocks for terms in JoinGraph(block).classes for term in terms]
        keys += [key for block in blocks for key in group_keys(block)]
        joins = [block.name for block in blocks if len(block.inputs) > 1]
        for option, given, known, what in (
            (rates, self.facts.rates, streams, "there is no such stream"),
            (table_rows, self.facts.table_rows, tables, "there is no such table"),
            (distinct, self.facts.distinct, keys, "no query joins or groups by such a key"),
            (passing, self.facts.passing, joins, "there is no such block that joins"),
        ):
            for name in given:
                if name not in known:
                    raise FactsError(f"{option} {name}: {what}; {known_names(name, dict.fromkeys(known))}")

    def query(self, name: str) -> Planned:
        """A query that was declared, with what it starts with: the plan of another query, if both run one join."""
        if name not in self.queries:
            raise SessionError(f"there is no query {name}; {known_names(name, self.queries)}")
        return self._together().query(name)

    def left_for(self, name: str) -> Bounds:
        """What a query may take, with those that run its join, if all others take what they are planned for."""
        plans = self._together().plans
        return self.budget.bounds if plans is None else plans.left_for(name)

    def _together(self) -> Together:
        known, queries, alone = self._known_together, tuple(self.queries.values()), frozenset(self.alone)
        overloads = tuple(map(self.overload_of, self.queries))
        if known is None or (known.queries, known.alone, known.overloads) != (queries, alone, overloads):
            known = plan_session(queries, alone, overloads, self.pricing, self.budget.bounds)
            if self.budget.strict:
                known.require_fit()
            self._known_together = known
        return known

    @property
    def pricing(self) -> Pricing:
        """What costs are worked out from."""
        return Pricing(self.facts, self.units, self.byte_cores)

    def _require_fit(self, planned: Sequence[Planned]) -> None:
        """Refuses queries that do not fit into a strict budget beside those that there are. Where each could have states of
        its own beside what is known to be taken, that need not be looked at: it is when plans are first asked for."""
        if not self.budget.strict:
            return
        added = sum((each.decision.cost for each in planned if each.decision is not None), NOTHING)
        self._at_most += added
        is_sure = all(each.decision is not None for each in planned)
        if not is_sure or not self._at_most.within(self.budget.bounds.cpu, self.budget.bounds.memory):
            try:
                queries = (*self.queries.values(), *planned)
                overloads = tuple(self.overload_of(each.name) for each in queries)
                alone, bounds = frozenset(self.alone), self.budget.bounds
                self._at_most = plan_beside(queries, alone, overloads, self.pricing, bounds).require_fit()
            except NoQualifiedPlanError:
                self._at_most -= added
                raise

    def _require_room(self, planned: Sequence[Planned]) -> None:
        """Refuses the first query of more than can run one join together."""
        if len(self.queries) + len(planned) <= MOST_MEMBERS:
            return
        there = Counter(each.join_text for name, each in self.queries.items() if name not in self.alone)
        for each in planned:
            there[each.join_text] += 1
            if each.join_text is not None and there[each.join_text] > MOST_MEMBERS:
                query = each.forms.written
                streams = ", ".join(dict.fromkeys(i.source.name for i in query.inputs))
                raise SessionError(
                    f"query {query.name} joins {streams} as {MOST_MEMBERS:,} others do, and no more queries run one join: "
                    "drop one of them, or run this one in a session of its own"
                )

    def _plan(self, bound: BoundQuery) -> Planned:
        if taken := next((name for name in self.queries if same_name(name, bound.query.name)), None):
            raise SessionError(f"there is a query {taken} already: give this one another name than {bound.query.name}")
        forms = Forms(bound.query)
        if bound.plan:
            return Planned(forms, Execution(parse(bound.plan, forms.graphs[None])))
        chosen = choose_groups(forms, self.facts, self.units, self.budget.bounds, self.budget.strict)
        execution = Execution(chosen.decision.plan, grouped_input=chosen.grouped_input)
        return Planned(forms, execution, chosen.decision)

    def explain(self, name: str, parallelism: Slots | None = None, verbose: bool = False) -> Explanation:
        """What a query does and costs under its plan, and why it has that plan; with `verbose`, what rows of each input do,
        when they are late, and how they are spread.

        The slots are those that were asked for, else those of the checkpoint, if it holds a commit of the query, else
        `parallelism`, which is this machine's cores where nothing else is known."""
        priced, written = self.priced(name), self.query(name).forms.written
        shown = self.sharing(name)
        shares = [sharing_text(shown, verbose)] if shown is not None else []
        more = [*self._company(name), *self._fixed_text(name), *shares, *self._budgeted(name)]
        overloaded = overload_text(written, self.overload_of(name), self._apart(name), self._left_out(name))
        if overloaded is not None:
            more.append(overloaded)
        if (places := self._placement_text(name, verbose)) is not None:
            more.append(places)
        if (found := lookups_text(written, self._lookup_costs(name))) is not None:
            more.append(found)
        if verbose:
            distribution, slots = self._spread(written, parallelism)
            more.append(routes_text(priced.plan, priced.graph, block_grids(written, distribution)))
            more += [times_text(written), spread_text(written, distribution, slots)]
        return explained(priced, more, sharing_lines(shown))

    def explain_json(self, name: str, parallelism: Slots | None = None) -> dict[str, Any]:
        """What `explain` shows as plain values."""
        priced, written = self.priced(name), self.query(name).forms.written
        return {
            **routes_json(priced.plan, priced.graph),
            **priced_json(priced),
            "times": times_json(written),
            "spread": spread_json(written, *self._spread(written, parallelism)),
            "together": self._others(name),
            "fixed": self._why_fixed(name) or None,
            "sharing": sharing_json(self.sharing(name)),
            "way": way_json(self._together().ways.get(name)),
            "contained": taking_in_json(self.query(name).taking_in),
            "budget": self._budget_json(name),
            "overload": overload_json(written, self.overload_of(name), self._apart(name), self._left_out(name)),
            "placement": self._placement_json(name),
            "lookups": lookups_json(written, self._lookup_costs(name)),
        }

    def placed(self, query: Query, changing: Collection[str] | None = None) -> Query:
        """A query whose blocks run where hints want them, else where they ran, else where they are cheapest. `changing` are
        the stored tables that are read again, if others than so far."""
        places = wished_places(query, self.databases, self.changing if changing is None else changing)
        has_groups = any(block.grouping is not None for block in query.blocks)
        if not places and has_groups and any(remembered(each) is not None for each in self.databases):
            places = self._chosen_places(query)
        return placed(query, places, self.database_failure) if places else query

    def _chosen_places(self, query: Query) -> Places:
        """The databases of a query's blocks: where its state is, if it has run; else by what they cost."""
        choice = self.choose_places(query, self.facts)
        if choice is None:
            return {}
        if self.checkpoint is not None and (own := self._committed(query.name)) is not None:
            return places_kept(query, QueryTexts(self.checkpoint).read(own.text).places)
        ours = {block.name for block in query.blocks if block.statement is None}
        return dict.fromkeys(choice.blocks & ours, choice.database)

    def placement(self, name: str) -> Choice | None:
        """Where the operators of a query run, if there is a database that may run some: the one that it is placed in, else
        the first that leaves a choice. A query that has run is shown as its newest commit has it."""
        written, own = self.query(name).forms.written, self._committed(name)
        known, home = frozenset(written.places), frozenset[str]()
        if own is not None:
            known, home = known | {each.block for each in own.execution.woken}, frozenset(own.execution.home)
        return self.choose_places(written, self._measured(name), known - home, known, self.paces(name))

    def _measured(self, name: str) -> Given:
        """The facts, and what batches of a query have measured of its blocks."""
        own = self._committed(name)
        return self.facts if own is None else self.facts.with_figures(own.figures)

    def _shown_placed(self, name: str) -> Query:
        """A query as it runs: with the statements of blocks that a database may run since somebody asked for that."""
        written, own = self.query(name).forms.written, self._committed(name)
        there = {block.name for block in written.blocks}
        woken = [] if own is None else [each for each in own.execution.woken if each.block in there]
        if not woken:
            return written
        places = {**written.places, **{each.block: each.database for each in woken}}
        return placed(written, places, woken[0].failure)

    def paces(self, name: str) -> Mapping[str, Pace]:
        """How long databases took for the sake of a query, beside what was calibrated, when its newest batch began."""
        own = self._committed(name)
        return {} if own is None else own.paces

    def _placement_text(self, name: str, verbose: bool) -> str | None:
        return placement_text(self.placement(name), self._shown_placed(name), verbose, self._folding(name), self.paces(name))

    def _placement_json(self, name: str) -> dict[str, Any] | None:
        return placement_json(self.placement(name), self._shown_placed(name), self._folding(name), self.paces(name))

    def _lookup_costs(self, name: str) -> CostsOf:
        """What lookups take for rows of a stream, by what was calibrated of their database and by what its batches
        measured."""
        paces = self.paces(name)

        def costs_of(source: Enriched) -> LookupCosts | None:
            costs = lookup_costs_of(source.table.database)
            return None if costs is None else at_pace(costs, paces, source.name)

        return costs_of

    def _folding(self, name: str) -> dict[str, MadeUp]:
        """What it takes the engine to join and to fold the window of a block that a database may run, where enough is known
        of its streams."""
        query, facts = self._shown_placed(name), self._measured(name)
        blocks = (block for block in query.blocks if block.name in query.places)
        found = {block.name: made_up(block, facts, self.units) for block in blocks}
        return {name: each for name, each in found.items() if each is not None}

    def moving_places(self, query: Query) -> bool:
        """Whether blocks of a query may go to a database or to the engine by themselves: there is one that no hint keeps
        where it is, and the database was measured."""
        if query.places:
            return bool(query.places.keys() - query.hinted)
        choice = self.choose_places(query, self.facts, frozenset())
        return choice is not None and choice.decision is not None and bool(choice.movable)

    def choose_places(
        self,
        query: Query,
        facts: Given,
        ran: frozenset[str] | None = None,
        logged: frozenset[str] = frozenset(),
        paces: Mapping[str, Pace] = AS_CALIBRATED,
    ) -> Choice | None:
        """Where operators run best by some facts; or, if blocks `ran` in the database, that beside what would be best. Rows
        of blocks that are `logged` are kept anyway. `paces` are those that databases have for blocks."""
        used = set(query.places.values())
        named = {each: abilities for each, abilities in self.databases.items() if not used or each in used}
        joins = dict(joining_blocks(query)) if named else {}
        join_cpu = {each: decide(JoinGraph(b), facts, self.units).cost.cpu for each, b in joins.items()}
        slots = self.slots or machine_slots().count
        choices = (
            choose_places(query, facts, self.units, join_cpu, each, abilities, remembered(each), slots, ran, logged, paces)
            for each, abilities in named.items()
        )
        return next(filter(None, choices), None)

    def _committed(self, name: str) -> QueryCommit | None:
        """What the newest commit of the checkpoint says of a query, if it has run."""
        known = self._known(name)
        return known.commit.queries.get(name) if known is not None and known.commit is not None else None

    def _left_out(self, name: str) -> LeftOut | None:
        """What the newest batches of a query left out, as far as progress tells."""
        if self.checkpoint is None or (known := self._known(name)) is None:
            return None
        return together([step.left_out for step in read_progress(self.checkpoint.below(known.name)).get(name, [])])

    def draw(self, name: str) -> str:
        """The plan of a query as SVG."""
        return self.priced(name).draw(sharing_lines(self.sharing(name)))

    def priced(self, name: str) -> PricedPlan:
        """The plan that a query starts with, or goes on with, and its costs: by what its batches measured, else by what is
        given or assumed."""
        found, bounds = self.query(name), self.budget.bounds
        plan, graph, decision, batches = found.execution.plan, found.graph, found.decision, self._batches(found)
        if batches is not None:
            graph = found.forms.graphs[batches.execution.grouped_input]
            plan = parse(batches.execution.plan, graph)
            decision = decide(graph, batches.facts(plan, self.facts), self.units, bounds)
        if decision is None:
            decision = decide(graph, self.facts, self.units, bounds)
        warnings = tuple(defeated(found.forms.written))
        return PricedPlan(
            plan, graph, decision, found.is_pinned, batches, self.units != DEFAULT, warnings, found.lead, found.is_joint
        )

    def _batches(self, planned: Planned) -> Batches | None:
        """What a query measured under the plan that it would go on with; None if it has not run, or not under that one."""
        written = planned.forms.written
        if self.checkpoint is None or (known := self._known(written.name)) is None:
            return None
        found = batches_of(self.checkpoint.below(known.name), written.name, text_of(written).state_digest)
        if found is None or not planned.is_pinned:
            return found
        ran = found.execution
        is_pinned = ran.grouped_input is None and parse(ran.plan, planned.graph) == planned.execution.plan
        return found if is_pinned else None

    def warn(self) -> None:
        """Tells on the terminal what people are warned of in the queries; their journals say so when they run."""
        for planned in self.queries.values():
            warn_of(planned.forms.written)

    def pipelines(self) -> list[Workload]:
        """Which queries run together, if none has run yet."""
        return self._together().pipelines

    def _others(self, name: str) -> list[str]:
        """The queries that run together with one."""
        known = self._known(name)
        if known is not None:
            return [other for other in known.layouts if other != name]
        (own,) = [each for each in self.pipelines() if any(query.name == name for query in each.queries)]
        return [query.name for query in own.queries if query.name != name]

    def may_lose(self, name: str) -> bool:
        """Whether the policy of a query may lose results."""
        return self.overload_of(name).policy.may_lose

    def _apart(self, name: str) -> list[str]:
        """The queries over streams of a query that do something else under overload."""
        own = {source.name for source in self.query(name).forms.written.base_sources if isinstance(source, Stream)}
        found = []
        for other, planned in self.queries.items():
            streams = {s.name for s in planned.forms.written.base_sources if isinstance(s, Stream)}
            if own & streams and self.overload_of(other) != self.overload_of(name):
                found.append(other)
        return found

    def _company(self, name: str) -> list[str]:
        others, joining, way = self._others(name), self._joining(name), self._together().ways.get(name)
        several = f"\n  {way_text(way, name)}" if way is not None and way.joins > 1 else ""
        shown = f"together\n  with {', '.join(others)}: one scan of each stream, and one state. A batch lasts as long as its"
        shared = f"\n  its join is run once for it and {listed(joining)}" if joining else ""
        decided = self.query(name).taking_in
        contained = "" if decided is None else f"\n  {taking_in_text(decided)}"
        if not others:
            return [f"apart{several}"] if several else []
        return [f"{shown} slowest query{shared}{several}{contained}"]

    def _why_fixed(self, name: str) -> str:
        """Why no stream can be added to those of a query's pipeline while it runs; "" if one can."""
        if self.checkpoint is not None and (known := self._known(name)) is not None:
            noted = read_streams(self.checkpoint.below(known.name))
            return noted.fixed if noted is not None else ""
        (own,) = [each for each in self.pipelines() if any(query.name == name for query in each.queries)]
        return why_fixed({stream: self.source_names.get(stream, (spark_name(stream),)) for stream in own.streams})

    def _fixed_text(self, name: str) -> list[str]:
        if not (why := self._why_fixed(name)):
            return []
        return [f"streams\n  are fixed: {why}.\n  A query that is added and reads another one gets a pipeline of its own"]

    def started_with(self, name: str) -> dict[str, Any] | None:
        """How a query that starts runs the join that it has in common with others, and what that saves."""
        return started_with(self._together().ways.get(name))

    def sharing(self, name: str) -> ShownSharing | None:
        """How the streams of a query are cut into slices, and its join is shared: by what its pipeline measured, if it has
        run; None if there is nothing to share."""
        together = self._together()
        if self._shown[0] is not together:
            self._shown = together, {}
        names = (name, *self._others(name))
        others = tuple(sorted(n for n in names if n in self.queries))
        if others not in self._shown[1]:
            self._shown[1][others] = self._pipeline_shown(others)
        return self._shown[1][others].of(self.query(name).forms.written)

    def _pipeline_shown(self, names: Sequence[str]) -> PipelineShown:
        slices, known, held = None, ASSUMED, list[Holding]()
        queries = [self.query(n).forms.written for n in names]
        if self.checkpoint is not None and (pipeline := self._known(names[0])) is not None:
            folder = self.checkpoint.below(pipeline.name)
            seen, slices = seen_in(folder)
            known, held = known_of(seen) or ASSUMED, held_in(folder, queries)
        joins = self.joins(names, known, is_measured=known is not ASSUMED)
        return PipelineShown(joins, queries, self.units, self.byte_cores, known, slices, self._together().ways, held)

    @property
    def apart(self) -> frozenset[str]:
        """The queries that have pipelines of their own: because that is asked, or because it costs less."""
        return frozenset(self.alone) | self._together().unshared

    @property
    def byte_cores(self) -> float:
        """What a byte of state is worth in cores: by the budget, if it bounds both."""
        bounds = self.budget.bounds
        return BYTE_CORES if float("inf") in (bounds.cpu, bounds.memory) else bounds.cpu / bounds.memory

    def joins(self, queries: Sequence[str], known: Known = ASSUMED, is_measured: bool = False) -> list[JoinLoad]:
        """The joins that some queries of a pipeline run when they start; by what they measured, if that is asked."""
        running = self._together().running(queries)

        def facts_of(query: str) -> Facts:
            planned = self.query(query)
            batches = self._batches(planned) if is_measured else None
            return self.facts if batches is None else batches.facts(planned.execution.plan, self.facts)

        return pipeline_joins(running, facts_of, self.units, known)

    def first_chains(self, queries: Sequence[str]) -> list[SourceChain]:
        """How rows of the streams of some queries of a pipeline are cut before anything is measured."""
        return first_chains(self.joins(queries), self.units, self.byte_cores)

    def _budgeted(self, name: str) -> list[str]:
        """What a query takes of the budget of its session, and what all take."""
        plans = self._together().plans
        return [] if plans is None else [budget_text(plans, name)]

    def _budget_json(self, name: str) -> dict[str, Any] | None:
        plans = self._together().plans
        return None if plans is None else budget_json(plans, name)

    def _joining(self, name: str) -> list[str]:
        """The queries that start with the same join as one, and so run it together."""
        own = next(each for each in self.pipelines() if any(query.name == name for query in each.queries))
        for company in companies(self._together().running(query.name for query in own.queries)):
            if name in company.names:
                return [other for other in company.names if other != name]
        return []

    def _spread(self, written: Query, parallelism: Slots | None) -> tuple[Distribution, Slots]:
        """How rows of a query are spread, beside those of the queries that run with it."""
        known = self._known(written.name)
        committed = None if known is None else max(len(layout.slots) for layout in known.layouts.values())
        if self.slots is not None:
            slots = Slots(self.slots, Origin.ASKED, committed)
        elif committed is not None:
            slots = Slots(committed, Origin.CHECKPOINT, committed)
        else:
            slots = parallelism or machine_slots()
        if known is not None and slots.count == committed:
            return restored(Workload((written,)), known.layouts, slots.count)[written.name], slots
        workload = next(each for each in self.pipelines() if written in each.queries)
        return choose_together(workload, slots.count)[written.name], slots

    def _known(self, name: str) -> KnownPipeline | None:
        """The pipeline of the checkpoint that a query runs in, if it has a commit."""
        if self.checkpoint is None:
            return None
        try:
            known = known_pipelines(self.checkpoint)
        except OSError as error:
            raise LocationError(f"the checkpoint {self.checkpoint} cannot be used: {error}") from error
        return next((each for each in known if each.is_committed and name in each.layouts), None)


def warn_of(query: Query) -> list[str]:
    """Tells on the terminal what people are warned of in a query, and gives it."""
    texts = warnings_of(query)
    for text in texts:
        print(f"anabranch: warning: query {query.name}: {text}", file=sys.stderr)
    return texts


def machine_slots() -> Slots:
    """A slot for each core that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return Slots(len(os.sched_getaffinity(0)), Origin.MACHINE)
    return Slots(os.cpu_count() or 1, Origin.MACHINE)
