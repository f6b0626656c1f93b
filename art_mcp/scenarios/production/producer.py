"""Produces scenarios: drafts are executed in waves, and tasks are made of those that worked, until there are enough."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from itertools import chain, islice, zip_longest

from art_mcp.canonical import canonical
from art_mcp.client.effects import words
from art_mcp.scenarios.coverage import OUT_OF_TIME
from art_mcp.scenarios.drafting.chains import Chains
from art_mcp.scenarios.drafting.draft import Draft, ExecutedDraft, pair_drafts, split_pair, to_executed
from art_mcp.scenarios.drafting.drafter import Drafter
from art_mcp.scenarios.drafting.explore import EMPTY, learn_failure
from art_mcp.scenarios.drafting.sequences import note_sequences
from art_mcp.scenarios.drafting.sql import Sql
from art_mcp.scenarios.drafting.values import Endless, NoValue
from art_mcp.scenarios.execute import StepFailed, is_act
from art_mcp.scenarios.lines import mentions
from art_mcp.scenarios.phrasing.language import VERBS
from art_mcp.scenarios.plan import HELD_OUT, Step
from art_mcp.scenarios.production.composer import Composer
from art_mcp.scenarios.production.emitter import Emitter
from art_mcp.scenarios.production.pool import Pool
from art_mcp.scenarios.production.quotas import ScenarioQuota
from art_mcp.scenarios.scenario_set import DroppedTask
from art_mcp.scenarios.trials import Trials

FIRST = 3
"""Calls of a tool that are executed first, at most."""

WAVE = 48
"""Drafts that are executed together, at most. Few scenarios need fewer."""

READING_WAVES = 3
"""Waves of calls that only read, for each wave of calls that act. One server answers them all, in little time."""

ACTING_WAVE = 8
"""The same for calls that act. In a world each has a server of its own, which takes time to start."""

FIRST_READING = 16
"""Tools that read whose first calls are executed together."""

FIRST_ACTING = 12
"""The same for tools that act."""

MAX_ACTING = 8
"""Pairs with a call that acts that are executed together."""

MAX_FAILING = 8
"""Drafts of calls that must fail that are executed together."""

MAX_HELD_PAIRS = 6
"""Pairs of a held-out combination with a call that acts that are executed, so that its tasks are not all the same."""

WAVES = 60
"""Waves of executions, at most."""

DRAWS = 8
"""Attempts to draft calls that were not drafted yet."""

MAX_CALLS = 60
"""Calls of a tool that are executed, at most."""

MAX_SLOW_CALLS = 3
"""Calls of a tool that takes long that are executed, at most."""

FAILING = 6
"""A tool, or a chain of two, of which so many drafts failed and none worked is not drafted any more."""

HELD_DRAFTS = 0.25
"""Share of the drafts that have a held-out value."""

SPARE = 0.1
"""Share of the time that is left for the last tasks, which are made of what was executed."""


class Producer:
    """Produces scenarios.

    Args:
        drafter: Drafts calls.
        sql: Drafts calls of tools that take SQL.
        composer: Puts them into words.
        quota: Keeps what is made.
        seed: Seed of the combinations that are held out.
    """

    def __init__(self, drafter: Drafter, sql: Sql, composer: Composer, quota: ScenarioQuota, seed: int) -> None:
        self._drafter = drafter
        self._sql = sql
        self._composer = composer
        self._kept = quota
        self._rng = drafter.rng
        self._names = list(drafter.tools)
        self._pool = Pool(seed, quota.earlier)
        self._emitter = Emitter(self._pool, composer, quota, drafter.rng)
        self._chains = Chains(drafter)
        self._drafted: set[str] = set()
        self._drawn: Counter[str] = Counter()
        self._held: Counter[str] = Counter()
        self._failed: Counter[tuple[str, ...]] = Counter()
        self._idle: set[str] = set()
        self._endless: dict[str, Endless] = {}
        self._late = False
        self.dropped_tasks: list[DroppedTask] = []

    async def produce(
        self, trials: Trials, time_left: Callable[[], float], on_wave: Callable[[], Awaitable[None]]
    ) -> None:
        """Makes scenarios until there are enough, the time is over, or nothing new can be drafted.

        Args:
            trials: Executes drafts.
            time_left: Tells the share of the time that is left.
            on_wave: Called after each wave of executions, and at the end.
        """
        await self._first_waves(trials)
        self._emitter.singles(part=0.2)
        for number in range(WAVES):
            await on_wave()
            self._late = time_left() < SPARE
            if self._late or self._emitter.full:
                break
            any_new = await self._wave(trials, self._more_impossible(), fail=True)
            for _ in range(READING_WAVES):
                any_new |= await self._wave(trials, [*self._more_singles(acting=False), *self._more_chains()])
            any_new |= await self._wave(trials, self._more_singles(acting=True))
            any_new |= await self._wave(trials, self._more_pairs())
            any_new |= await self._wave(trials, self._more_sequences())
            if number == 0:
                self._pool.hold(self._kept.held_out_size > 0)
            self._emitter.all(part=max(0.3, min(0.9, self._share_tried())))
            if not any_new:
                break
        self._pool.hold(self._kept.held_out_size > 0)
        self._emitter.all(part=1.0)
        await on_wave()

    async def _first_waves(self, trials: Trials) -> None:
        """Executes the first calls of each tool. Those that read and those that act take turns, a few at a time: when
        the time is over there is something of each. A tool that acts and has failed is tried once more: later waves of
        calls that read may leave no time for it."""
        begin = min(FIRST, self._enough())
        usable = self._drafter.values.graph.usable
        reading, acting = (
            sorted(self._open(acting=acting), key=lambda name: name not in usable) for acting in (False, True)
        )
        turns = max(-(-len(reading) // FIRST_READING), -(-len(acting) // FIRST_ACTING))
        for turn in range(turns):
            readers = reading[turn * FIRST_READING : (turn + 1) * FIRST_READING]
            await self._wave(trials, [draft for name in readers for draft in self._singles(name, begin)])
            actors = acting[turn * FIRST_ACTING : (turn + 1) * FIRST_ACTING]
            await self._wave(trials, [draft for name in actors for draft in self._singles(name, 1)])
        again = [name for name in acting if not self._pool.singles[name] and not self._needs_sequence(name)]
        await self._wave(trials, [draft for name in again[:FIRST_ACTING] for draft in self._singles(name, 1)])

    def draft_only(self) -> None:
        """Makes scenarios that were not executed, with single calls alone."""
        for name in self._names * (self._kept.total // max(len(self._names), 1) + 1):
            for draft in self._singles(name, 1):
                if len(self._kept.scenarios) < self._kept.total:
                    self._kept.add(self._composer.unexecuted_task(draft))

    def notes(self) -> list[str]:
        """Which held-out sets could not be made, which tools no call was made of, and why."""
        why = {
            "values": "no argument has several values that calls can take, so that some could be held out",
            "phrasings": "no task was made for training",
            "combinations": "no two tools can be asked for in one task",
        }
        if self._late:
            why |= dict.fromkeys(why, f"{OUT_OF_TIME} before any was made")
        if len(self._names) < 2:
            why["combinations"] = "only one tool may be called, and a combination needs two"
        missing = [name for name in HELD_OUT if self._kept.held_out_size and not self._kept.size(name)]
        without_calls = [f"no call of {name}: {why}" for name, why in self._endless.items() if not self._drawn[name]]
        return [*(f"no held-out {name}: {why[name]}" for name in missing), *without_calls]

    async def _wave(self, trials: Trials, drafts: Sequence[Draft], fail: bool = False) -> bool:
        """Executes drafts, and keeps those that worked. Returns whether there were any."""
        outcomes = await trials.run([draft.steps for draft in drafts], fail=fail)
        for draft, outcome in zip(drafts, outcomes, strict=True):
            last = draft.steps[-1].tool
            wrong = None
            if isinstance(outcome, StepFailed):
                wrong = (outcome.kind, str(outcome))
                if draft.kind == "single" and outcome.kind in ("error", "unstable"):
                    self._look_for_earlier(draft.steps[0], outcome.message)
                if draft.call is not None and outcome.kind == "error":
                    learn_failure(self._drafter.values, draft.call, outcome.message, log_text=outcome.log)
            else:
                if draft.parts:
                    self._pool.add_pair(*split_pair(draft, outcome, self._rng))
                    continue
                executed = to_executed(draft, outcome, self._rng)
                wrong = self._useless(executed)
                if draft.call is not None and not fail:
                    success = EMPTY if wrong or executed.is_empty else 1.0
                    self._drafter.values.graph.note(last, draft.call.arguments, success)
                if wrong is None:
                    self._pool.add(executed)
                    if draft.kind == "single" and not executed.acts:
                        self._chains.learn(last, draft.steps[0].arguments, executed.results[0])
                    continue
            if wrong[0] != "surplus":
                tools = [step.tool for step in draft.steps]
                self._failed[tuple(tools)] += not (fail or draft.parts)
                calls = ", ".join(f"{step.tool}({canonical(step.arguments)})" for step in draft.steps)
                self.dropped_tasks.append(
                    DroppedTask.model_validate({"task": calls, "tools": tools, "kind": wrong[0], "reason": wrong[1]})
                )
        return bool(drafts)

    def _look_for_earlier(self, step: Step, message: str) -> None:
        """Notes which calls of the exploration a failed one may need before it."""
        graph = self._drafter.values.graph
        if not self._pool.singles[step.tool]:
            calls = [(Step(tool=name, arguments=each[0]), each[1]) for name, of in graph.results.items() for each in of]
            note_sequences(graph, step, calls, message)

    def _useless(self, executed_draft: ExecutedDraft) -> tuple[str, str] | None:
        """Why no task can be made of executed calls. None: one can."""
        if (obstacle := executed_draft.draft.obstacle) is not None:
            if executed_draft.trial.changes:
                return "unstable", "it gave an error, and changed something"
            named = all(mentions(error, obstacle.value) for error in executed_draft.errors)
            return None if named or obstacle.noun else ("unstable", f"its error says nothing of {obstacle.value} now")
        if executed_draft.acts:
            removes = any(VERBS[word].removes for word in words(executed_draft.draft.steps[-1].tool) if word in VERBS)
            if removes and executed_draft.trial.changes == []:
                return "empty", "nothing was removed"
            name = executed_draft.trial.steps[-1].tool
            changes = self._pool.changes(name) or self._should_change(name)
            return ("empty", "nothing was changed") if changes and executed_draft.trial.changes == [] else None
        last = executed_draft.trial.steps[-1]
        if self._drafter.values.graph.is_stock(last.tool, last.arguments, executed_draft.results[-1]):
            return "error", str(executed_draft.results[-1])
        if not executed_draft.questions:
            return "empty", "the result has no short value that could be asked for"
        surplus = executed_draft.is_empty and not self._pool.has_room_for_empty(executed_draft)
        return ("empty", "the result says that there is nothing") if surplus else None

    def _should_change(self, name: str) -> bool:
        """Whether a call of a tool that acts should change the observed world: it was seen to, or its verb or
        annotations say so and others of the server do. A server that keeps all in its memory has none that do."""
        changing, hints = self._drafter.values.graph.changing, self._drafter.tools[name].annotations
        edits = any(VERBS[word].edits for word in words(name) if word in VERBS)
        local = hints.get("readOnlyHint") is False and hints.get("openWorldHint") is False
        return name in changing or (bool(changing) and (edits or local or bool(hints.get("destructiveHint"))))

    def _singles(self, name: str, count: int) -> list[Draft]:
        """New drafts of a tool, as many as can be drawn. Of each tool the wanted share has a held-out value, if any."""
        drafts: list[Draft] = []
        for _ in range(count):
            lacking = self._held[name] < HELD_DRAFTS * self._drawn[name]
            for attempt in range(DRAWS):
                own = lacking and attempt < DRAWS // 2
                try:
                    draft = self._sql.draft(name, own) if name in self._sql.tools else self._drafter.single(name, own)
                except Endless as error:
                    self._endless[name] = error
                    return drafts
                except NoValue:
                    continue
                if draft is not None and self._is_new(draft):
                    drafts.append(draft)
                    self._drawn[name] += 1
                    self._held[name] += bool(draft.held_values)
                    break
        return drafts

    def _is_new(self, draft: Draft) -> bool:
        key = canonical([[step.tool, step.arguments] for step in draft.steps])
        if key in self._drafted:
            return False
        self._drafted.add(key)
        return True

    def _acts(self, name: str) -> bool:
        return is_act(self._drafter.tools[name], self._drafter.values.graph.changing)

    def _open(self, acting: bool) -> list[str]:
        """The tools of which more calls are wanted. acting: those that change something."""
        return [
            name
            for name in self._names
            if name not in self._idle
            and self._acts(name) is acting
            and len(self._pool.singles[name]) < self._wanted_count(name)
            and not (self._failed[name,] >= FAILING and not self._pool.singles[name])
        ]

    def _more_singles(self, acting: bool) -> list[Draft]:
        """Drafts of the tools that have the fewest executed calls."""
        names, size = self._open(acting), ACTING_WAVE if acting else self._size()
        drafts: list[Draft] = []
        for name in sorted(names, key=lambda name: len(self._pool.singles[name])):
            if len(drafts) >= size:
                break
            new = self._singles(name, max(1 if acting else 2, size // len(names)))
            if not new:
                self._idle.add(name)
            drafts += new
        return drafts

    def _enough(self) -> int:
        """Executed calls of a tool that are enough for the number of scenarios."""
        total, tools = self._kept.total, max(len(self._names), 1)
        return min(MAX_CALLS, min(4, 1 + total // tools) + total // (4 * tools))

    def _size(self) -> int:
        """Drafts of a wave, for the number of scenarios."""
        return min(WAVE, max(ACTING_WAVE, 2 * self._kept.total))

    def _wanted_count(self, name: str) -> int:
        """Executed calls that are wanted of a tool. Those that act take longer, as each has a server of its own."""
        if name in self._drafter.values.graph.slow:
            return MAX_SLOW_CALLS
        return max(3, self._enough() // 2) if self._acts(name) else self._enough()

    def _share_tried(self) -> float:
        """The share of the wanted calls that were executed."""
        targets = {name: self._wanted_count(name) for name in self._names}
        have = sum(size if name in self._idle else len(self._pool.singles[name]) for name, size in targets.items())
        return have / max(1, sum(targets.values()))

    def _more_chains(self) -> list[Draft]:
        pairs = [
            pair
            for pair in self._chains.pairs
            if len(self._pool.chains[pair]) < self._enough()
            and not self._is_hopeless(pair)
            and not self._needs_sequence(pair[1])
        ]
        self._rng.shuffle(pairs)
        drafts = []
        for pair in pairs * DRAWS:
            draft = self._chains.draft(pair)
            if draft is not None and self._is_new(draft):
                drafts.append(draft)
            if len(drafts) >= self._size() // 2:
                break
        return drafts

    def _more_pairs(self) -> list[Draft]:
        """Drafts of pairs of which a call changes something. Pairs that only read need no execution of their own."""
        acting = [name for name in sorted(self._pool.singles) if any(draft.acts for draft in self._pool.singles[name])]
        others = sorted(name for name, drafts in self._pool.singles.items() if drafts)
        if len(others) < 2:
            return []
        pairs = [tools for tools, drafts in self._pool.acted_and_held() if len(drafts) < MAX_HELD_PAIRS]
        if sum(map(len, self._pool.acting_pairs.values())) < self._enough():
            sample = self._rng.sample(acting, min(len(acting), MAX_ACTING))
            pairs += [(name, self._rng.choice([each for each in others if each != name])) for name in sample]
        drafts = []
        for name, other in pairs[:MAX_ACTING]:
            first, second = (self._rng.choice(self._pool.singles[each]).draft for each in (name, other))
            draft = pair_drafts(first, second) if self._rng.random() < 0.5 else pair_drafts(second, first)
            if self._is_new(draft):
                drafts.append(draft)
        return drafts

    def _more_sequences(self) -> list[Draft]:
        """Drafts of tools that work after another call alone."""
        names = [name for name in self._names if self._needs_sequence(name)]
        drafts: list[Draft] = []
        acting = 0
        for name in self._rng.sample(names, len(names)) * 2:
            have = sum(len(executed) for (_, last), executed in self._pool.chains.items() if last == name)
            draft = self._drafter.sequence(name, have > 0) if have < max(2, self._enough() // 4) else None
            if draft is None or self._is_hopeless((draft.steps[0].tool, name)) or not self._is_new(draft):
                continue
            acting += any(self._acts(step.tool) for step in draft.steps)
            if acting <= MAX_ACTING:
                drafts.append(draft)
        return drafts

    def _needs_sequence(self, name: str) -> bool:
        """Whether a tool works after other calls, and no call of it alone has worked."""
        return bool(self._drafter.values.graph.sequences[name]) and not self._pool.singles[name]

    def _is_hopeless(self, pair: tuple[str, str]) -> bool:
        """Whether so many chains of two tools failed, and none worked: the first call may need others before it."""
        return self._failed[pair] >= FAILING and not self._pool.chains[pair]

    def _more_impossible(self) -> list[Draft]:
        """Drafts of calls that must fail: some with values that are there, the others with one that is not."""
        if len(self._pool.impossible) >= self._enough():
            return []
        names = [name for name in self._rng.sample(self._names, len(self._names)) if name not in self._sql.tools]
        by_turns = chain.from_iterable(zip_longest(*map(self._drafter.refusals, names)))
        drafts = list(islice(filter(self._is_new, filter(None, by_turns)), MAX_FAILING // 2))
        for name in names:
            if self._pool.singles[name] and len(drafts) < MAX_FAILING:
                try:
                    draft = self._drafter.missing(name)
                except NoValue:
                    continue
                if draft is not None and self._is_new(draft):
                    drafts.append(draft)
        return drafts
