"""Gives scenarios of the grammar the words of a model: written for their plans, checked, and read back."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from art_langgraph.llm.trainer_model import TrainerModel
from art_mcp.client.connect import Server
from art_mcp.scenarios.catalog import CatalogTool
from art_mcp.scenarios.plan import MCPScenario
from art_mcp.scenarios.scenario_set import balance_scenarios
from art_mcp.scenarios.writing.manners import voice
from art_mcp.scenarios.writing.reading import Reader
from art_mcp.scenarios.writing.requests import Unusable, write_request
from trainer_server.wire import LLMError

PROBES = 10
"""Requests with which it is measured whether a model is capable of this."""

PROBE_SHARE = 0.5
"""Share of the time that they may take: a model that needs more would write few others."""

LEAST = 0.5
"""Share of them that must be usable. With less the grammar writes all."""

MOST = 480
"""Requests that are written, at most. Each takes a request to the model, and one or more to read it back."""

AT_ONCE = 32
"""Requests that are written and read back at the same time."""

FAILURES = 8
"""Requests that may fail in a row for want of an answer."""

LATE = "the time was over"


@dataclass(slots=True)
class Wordings:
    """Writes requests for plans that were executed.

    Args:
        model: Writes them, and reads them back.
        server: Executes reading calls that a plan does not have. None: nobody does.
        tools: The tools that may be called.
        seed: Seed of the voices, and of the manners that are held out.
        until: Time of the event loop after which the model is not asked any more.
        unsaid: Parameters whose values need not be in a request, by the name of the tool.

    Attributes:
        faults: How often a request could not be used, by what was wrong.
        error: Why the model gave no answer the last time.
    """

    model: TrainerModel
    server: Server | None
    tools: Sequence[CatalogTool]
    seed: int
    until: float
    unsaid: Mapping[str, str] = field(default_factory=dict)
    faults: Counter[str] = field(default_factory=Counter)
    error: str = ""
    _failures: int = 0
    _reader: Reader = field(init=False)

    def __post_init__(self) -> None:
        self._reader = Reader(self.model, self.server, self.tools)

    async def write(self, scenarios: list[MCPScenario], since: int, on_next: Callable[[int], None]) -> str:
        """Replaces the texts of scenarios where they are. What cannot be used stays as the grammar has it.

        The scenarios are put into another order first: the held-out phrasings, then all others, tools by turns.

        Args:
            scenarios: The scenarios.
            since: The first of them that gets other words.
            on_next: Called with the number of scenarios whose words are final, in their order.

        Returns:
            What came of it, for the reader of a report.
        """
        order = balance_scenarios(scenarios[since:])
        order.sort(key=lambda scenario: scenario.plan.split != "phrasings")
        scenarios[since:] = order
        name = self.model.model
        places = [at for at in range(since, len(scenarios)) if _is_writable(scenarios[at])][:MOST]
        if not places:
            return f"{name} wrote no request: no plan with calls was executed"
        wordings = {scenario.wording for scenario in scenarios}

        def put(at: int, draft: MCPScenario | None) -> bool:
            if draft is None or draft.wording in wordings:
                return False
            wordings.add(draft.wording)
            scenarios[at] = draft
            return True

        probes = places[:: max(1, len(places) // PROBES)][:PROBES]  # of all sets and kinds
        drafts: list[MCPScenario | None] = []
        now = asyncio.get_running_loop().time()
        await self._write_all([scenarios[at] for at in probes], drafts.append, now + PROBE_SHARE * (self.until - now))
        count = sum(draft is not None for draft in drafts)
        if count < LEAST * len(probes):
            return (
                f"the base model {name} wrote {count} of {len(probes)} requests that could be read back: the grammar "
                f"writes ({self._reasons()}); {self.model.usage}"
            )
        count = sum([put(at, draft) for at, draft in zip(probes, drafts, strict=True)])
        rest = [at for at in places if at not in probes]
        numbers = iter(rest)

        def put_next(draft: MCPScenario | None) -> None:
            nonlocal count
            at = next(numbers)
            count += put(at, draft)
            on_next(at + 1)

        await self._write_all([scenarios[at] for at in rest], put_next, self.until)
        reasons = f" ({self._reasons()})" if self.faults else ""
        return (
            f"written by {name} and read back: {count} of {len(scenarios) - since} requests; the grammar wrote the "
            f"others{reasons}; {self.model.usage}"
        )

    async def _write_all(
        self, scenarios: Sequence[MCPScenario], on_next: Callable[[MCPScenario | None], None], until: float
    ) -> None:
        """Writes requests, some at once. on_next: called with what came of each, in their order."""
        turns = asyncio.Semaphore(AT_ONCE)
        tasks = [asyncio.create_task(self._write_one(scenario, turns, until)) for scenario in scenarios]
        try:
            for task in tasks:
                on_next(await task)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _write_one(self, scenario: MCPScenario, turns: asyncio.Semaphore, until: float) -> MCPScenario | None:
        """The scenario in the model's words. None: the model gave none that can be used."""
        try:
            async with turns, asyncio.timeout_at(until):
                if self._failures >= FAILURES:
                    raise Unusable("the model was not asked any more")
                draft = await self._draft(scenario)
        except TimeoutError:
            self.faults[LATE] += 1
        except Unusable as fault:
            self.faults[fault.kind] += 1
        except LLMError as error:
            self._failures += 1
            self.error = str(error)
            malformed = error.kind == "malformed"
            self.faults["the answer could not be parsed" if malformed else "the model gave no answer"] += 1
        else:
            self._failures = 0
            return draft
        return None

    async def _draft(self, scenario: MCPScenario) -> MCPScenario:
        """The same. Raises Unusable, and LLMError where the model gave no answer."""
        rng = random.Random(f"wordings-{self.seed}-{scenario.id}")
        way = voice(rng, self.seed, scenario.plan.split == "phrasings")
        tools = {tool.name: tool for tool in self.tools}
        text = await write_request(self.model, scenario, tools, way, self.unsaid)
        *before, _ = [message["content"] for message in scenario.messages]
        history = list(zip(before[::2], before[1::2], strict=True))
        form = {"phrasing": f"{self.model.model} {way.manner}", "requests": []}
        draft = MCPScenario.make(text, scenario.plan.model_copy(update=form), history)
        if reason := await self._reader.disagreement(draft):
            raise Unusable(f"read back, {reason}")
        return draft

    def _reasons(self) -> str:
        """What was wrong with the requests that could not be used."""
        counts = ", ".join(f"{kind}: {count}" for kind, count in self.faults.most_common())
        return f"{counts}, the last: {self.error}" if self.error else counts


def _is_writable(scenario: MCPScenario) -> bool:
    """Whether a scenario has a plan with results, of which a model can write."""
    return bool(scenario.tools) and scenario.plan.executed
