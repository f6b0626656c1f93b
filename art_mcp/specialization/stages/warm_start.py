"""The warm start: the policy imitates the references of the training scenarios, until that helps no more."""

from __future__ import annotations

import json
import logging
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, count

from langchain_core.tools import BaseTool

from art_langgraph.client.client import TrainerClient
from art_langgraph.client.demonstrations import load_conversations
from art_mcp.scenarios.plan import MCPScenario
from art_mcp.scenarios.split import combination
from art_mcp.specialization.demonstrations import demonstrations
from art_mcp.specialization.settings import WarmStart
from art_mcp.specialization.stages.renamed import Renamer
from trainer_server.wire import Conversation, JobStatus, SFTConfig, StepResult

log = logging.getLogger("art_mcp")

RATE = 2e-3
"""Learning rate of a warm start of _RATED updates; see `learning_rate`."""
_RATED = 100
"""Updates of a warm start whose learning rate is RATE."""
_HIGHEST_RATE = 4e-3
"""Learning rate of very short warm starts: 50 updates learn most with it (docs/benchmarks/imitation.md)."""
UPDATES = 160
"""Optimizer updates that a warm start is planned for, if that is between 2 and EPOCHS passes."""
EPOCHS = 6
"""Passes over the demonstrations at most."""
PATIENCE = 3
"""Measurements of the held-out loss without a new least one, after which a warm start ends."""
SPEED = 500.0
"""Tokens per second that a warm start is expected to compute, forward or backward: what two cores do with 135 M
parameters (370 to 670, by processor)."""
_CHARACTERS = 4.0
"""Characters of a token, about."""
_SIZES = (2, 4, 8, 16)
"""Demonstrations of an update. What they have in common, the tools and the system prompt, is computed once in each,
forward alone: the size is the least at which that is less than half of the work. A token of tools has about twice as
many characters as others. Of the same demonstrations, small updates teach more than large ones
(docs/benchmarks/imitation.md)."""


@dataclass(frozen=True, slots=True)
class Imitation:
    """What a warm start imitates.

    Args:
        conversations: The demonstrations, those first that teach most in their time.
        validation: Demonstrations of which the loss is measured. Empty: none is.
        config: Settings of the SFT.
        scenarios: The scenarios whose references the demonstrations are, in the same order. Empty: they are a user's
            own.
        rated: Whether the learning rate is that of `config`. Otherwise it is chosen by the number of updates.
    """

    conversations: list[Conversation]
    validation: list[Conversation]
    config: SFTConfig
    scenarios: list[MCPScenario] = field(default_factory=list)
    rated: bool = False

    def config_in(self, seconds: float | None) -> SFTConfig:
        """The settings of the SFT: its learning rate is that for as many updates as there is time for.

        Args:
            seconds: The time of the warm start. None: there is no limit.
        """
        if self.rated or not self.conversations:
            return self.config
        passes = min(self._passes(seconds), self.config.num_train_epochs)
        shown = max(self._count(seconds), passes * len(self.conversations))
        rate = learning_rate(shown / self.config.per_device_train_batch_size)
        return self.config.model_copy(update={"lr": rate})

    def imitated_in(self, seconds: float | None) -> list[Conversation]:
        """The demonstrations to imitate: where there is no time for all, as many as there is time for.

        Args:
            seconds: The time of the warm start. None: there is no limit.
        """
        return self.conversations[: self._count(seconds)]

    def scenarios_in(self, seconds: float | None) -> list[str]:
        """Ids of the scenarios that these demonstrations show.

        Args:
            seconds: As that of `imitated_in`.
        """
        return [scenario.id for scenario in self.scenarios[: self._count(seconds)]]

    def measured_in(self, seconds: float | None) -> list[Conversation]:
        """The demonstrations to measure on, if there is time for a second pass. In the first one each update meets
        demonstrations that it has not seen: its own loss is as good as a held-out one, and costs nothing.

        Args:
            seconds: The time of the warm start. None: there is no limit.
        """
        return self.validation if self._passes(seconds) >= 2 else []

    def _count(self, seconds: float | None) -> int:
        if seconds is None:
            return len(self.conversations)
        within = sum(cost <= seconds for cost in accumulate(self._costs()))
        return min(within + 1, len(self.conversations))

    def _passes(self, seconds: float | None) -> float:
        """How many passes over all demonstrations there is time for, about."""
        return math.inf if seconds is None or not self.conversations else seconds / sum(self._costs())

    def _costs(self) -> list[float]:
        """Seconds that each demonstration takes in a pass, about."""
        if not self.conversations:
            return []
        shared, own = _lengths(self.conversations)
        passes = 1 if self.config.detach_prefix else 2
        common = passes * shared / self.config.per_device_train_batch_size
        return [(common + 2 * each) / _CHARACTERS / SPEED for each in own]

    @classmethod
    def of(
        cls,
        settings: WarmStart,
        training: Sequence[MCPScenario],
        selection: Sequence[MCPScenario],
        tools: Sequence[BaseTool],
        system: str,
        seed: int,
        held_out: Sequence[MCPScenario] = (),
    ) -> Imitation:
        """The demonstrations and the settings of a warm start.

        Args:
            settings: What was asked for.
            training: The scenarios whose references are imitated, unless the settings name conversations.
            selection: The scenarios on whose references the loss is measured then.
            tools: The tools of the agent.
            system: Its system prompt.
            seed: Seed of the order, unless the settings have their own.
            held_out: Held-out scenarios, whose values no demonstration may have.
        """
        if settings.conversations is not None:
            given = load_conversations(settings.conversations)
            return cls(given, [], settings.config or planned(given, seed), rated=settings.config is not None)
        executed = [scenario for scenario in varied(training) if scenario.plan.executed]
        shown = Renamer(tools, held_out, seed).rename(executed)
        imitated = [_answers_alone(conversation) for conversation in demonstrations(shown, tools, system)]
        measured = [_answers_alone(conversation) for conversation in demonstrations(selection, tools, system)]
        config = settings.config or planned(imitated, seed)
        return cls(imitated, measured, config, executed, rated=settings.config is not None)


def _answers_alone(demonstration: Conversation) -> Conversation:
    """The demonstration without a loss on what the assistant said before the last message of the user: in a follow-up
    that is history, which was answered without the calls that led to it."""
    messages = demonstration.messages
    asked = max((at for at, message in enumerate(messages) if message["role"] == "user"), default=0)
    marked = [
        {**message, "weight": 0} if message["role"] == "assistant" and at < asked else message
        for at, message in enumerate(messages)
    ]
    return demonstration.model_copy(update={"messages": marked})


def varied(training: Sequence[MCPScenario]) -> list[MCPScenario]:
    """Orders scenarios so that the first ones teach most in their time. However many are taken, each kind of task and
    each combination of tools has its share, and at least one, and of these all different calls come once before any
    comes twice, those with short results first.

    Args:
        training: The scenarios.
    """
    told: Counter[str] = Counter()
    alike: defaultdict[tuple[str, ...], list[tuple[int, int, int]]] = defaultdict(list)
    for index, scenario in enumerate(training):
        plan = scenario.plan
        length = sum(len(seen.text) for seen in plan.observations)
        alike[plan.kind, *combination(scenario)].append((told[plan.calls], length, index))
        told[plan.calls] += 1
    places = [
        (place / len(listed), index) for listed in alike.values() for place, (*_, index) in enumerate(sorted(listed))
    ]
    return [training[index] for _, index in sorted(places)]


def learning_rate(updates: float) -> float:
    """The learning rate of a warm start. It falls with the root of the number of updates: at a rate that is best for
    50 updates, those after some hundred unlearn to copy values that they have not seen.

    Args:
        updates: How many updates there will be, about.
    """
    return min(_HIGHEST_RATE, RATE * math.sqrt(_RATED / max(updates, 1.0)))


def planned(conversations: Sequence[Conversation], seed: int) -> SFTConfig:
    """Settings for demonstrations: updates of more demonstrations where tools and system prompt are long.

    Args:
        conversations: The demonstrations.
        seed: Seed of their order.
    """
    if not conversations:
        return SFTConfig(lr=RATE, seed=seed)
    shared, lengths = _lengths(conversations)
    own = statistics.fmean(lengths)
    size = next((size for size in _SIZES if shared / size <= 4 * own), _SIZES[-1])
    epochs = math.ceil(UPDATES * size / len(conversations))
    return SFTConfig(
        lr=RATE,
        num_train_epochs=min(EPOCHS, max(2, epochs)),
        per_device_train_batch_size=size,
        detach_prefix=True,
        patience=PATIENCE,
        seed=seed,
    )


def _lengths(conversations: Sequence[Conversation]) -> tuple[int, list[int]]:
    """Characters that all demonstrations share, tools and system prompt, and characters of each besides."""
    shared = len(json.dumps(conversations[0].tools)) + len(str(conversations[0].messages[0].get("content")))
    return shared, [len(json.dumps(conversation.messages[1:])) for conversation in conversations]


async def warm_start(
    client: TrainerClient,
    policy: str,
    imitation: Imitation,
    *,
    seconds: float | None,
    key: str,
    progress: bool,
) -> StepResult:
    """Lets the policy imitate the demonstrations. A warm start that the server accepted before a kill is waited for.

    Args:
        client: The trainer server.
        policy: The policy.
        imitation: What is imitated.
        seconds: The time. None: as long as the passes take.
        key: Name of the warm start at the server.
        progress: Whether to show a progress bar on a terminal.

    Raises:
        JobFailed: The warm start failed.
    """
    for attempt in count(1):
        name = key if attempt == 1 else f"{key}-attempt-{attempt}"
        job = await client.find_step(policy, name)
        if job is None:
            config = imitation.config_in(seconds)
            if seconds is not None and config.max_seconds is None:
                config = config.model_copy(update={"max_seconds": max(1.0, seconds)})
            return await client.sft(
                policy,
                imitation.imitated_in(seconds),
                config,
                validation=imitation.measured_in(seconds) or None,
                idempotency_key=name,
                progress=progress,
            )
        if job.status not in (JobStatus.failed, JobStatus.cancelled):
            return await client.result(job, progress=f"warm start of {policy}" if progress else None)
        log.warning("the warm start %s %s (%s); it is done again", job.id, job.status.value, job.error)
    raise AssertionError("count() does not end")
