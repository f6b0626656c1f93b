"""Settings of `specialize`, a class for each stage, all options of a call, and their fingerprint."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal

from langchain_core.language_models import BaseChatModel
from langchain_core.tools import BaseTool
from pydantic import BaseModel

from art_langgraph.client.client import TrainerClient
from art_langgraph.client.demonstrations import load_conversations
from art_langgraph.llm.llm import LLM, Model
from art_langgraph.loop.rollout import Graph
from art_langgraph.loop.sampling.informative import Exploration
from art_mcp.client.connect import Server, WorldOptions
from art_mcp.options import AgentOptions, SetOptions, TrainingOptions
from art_mcp.scenarios.drafting.tables import Resources
from art_mcp.scenarios.scenario_set import ScenarioSet
from trainer_server.wire import ConfigError, GRPOConfig, SFTConfig

SYSTEM = "You do tasks with tools. First call the right tools, then answer with what they gave."
"""System prompt of the default agent."""
MINUTES = 20.0
"""Minutes for a specialization, unless others are asked for."""
STEPS = 8
"""Training steps where neither a time nor a number of steps is given."""
TEMPERATURE = 0.7
"""Sampling temperature of the runs that are trained on, and of those that measure difficulty. At 1 a policy that was
warmed up fails by slips that it does not make at temperature 0, at which it is measured."""

Agent = Callable[[list[BaseTool]], Graph]
"""Takes the server's tools and returns a graph that uses them and asks the policy through ChatART."""


@dataclass(frozen=True, kw_only=True)
class GenerationSettings(SetOptions):
    """How scenarios are generated: arguments of `generate_scenarios`.

    Args:
        model: Language model that writes scenarios ("provider/name", an LLM, or a LangChain chat model). None drafts
            them from schemas. "policy" does so too, and then the policy's base model writes the requests.
        paraphrase: Language model that rewrites their texts; "policy" is the policy's base model. None leaves them as
            they are.
        resources: Values of arguments by the name of the parameter, or files of them. None gives no values.
        foreign: A JSONL file of `ScenarioSet.save` with requests that the generator did not write. They are measured
            and reported apart, whatever set their plans name. None: there are none.
    """

    held_out: float = 0.3
    model: Model | None = None
    paraphrase: Model | None = None
    resources: Resources | None = None
    foreign: str | Path | None = None


@dataclass(frozen=True, kw_only=True)
class WarmStart:
    """Supervised fine-tuning (SFT) before the reinforcement learning.

    Args:
        conversations: A JSONL file of conversations to imitate. None takes the references of the training scenarios.
        lr: Learning rate. None chooses it by the number of updates.
        epochs: Most passes over the demonstrations. None chooses them by their number.
        config: Settings of the SFT; then `lr` and `epochs` have no effect. None chooses them by the number and the
            length of the demonstrations, with the seed of `specialize`.
    """

    conversations: str | Path | None = None
    lr: float | None = None
    epochs: int | None = None
    config: SFTConfig | None = None


@dataclass(frozen=True, kw_only=True)
class TrainingSettings(TrainingOptions):
    """How the policy is trained with GRPO.

    Args:
        config: Settings of all steps in place of `lr` and `loss_aggregation`, or a function from the number of a step
            to its settings. None: the defaults of GRPOConfig otherwise, but rewards are not scaled by their deviation.
        dynamic_sampling: How often a step runs further scenarios in place of those whose runs all got the same reward.
        explore: Runs such scenarios again at a higher temperature. None: never.
        hints: Whether scenarios that no run solves are run once more with a hint: what the server's errors say, or what
            its schemas ask for. The policy then learns from itself with the hint.
        judge: Language model that compares the runs of a scenario (`Ruler`), as "provider/name" or an LLM. None: the
            reward is that of `verify` alone.
        judge_weight: Weight of the judge's score, which is added to the reward of `verify`.
    """

    config: GRPOConfig | Callable[[int], GRPOConfig] | None = None
    dynamic_sampling: int = 1
    explore: Exploration | None = None
    hints: bool = True
    judge: Model | None = None
    judge_weight: float = 0.3

    @property
    def watched(self) -> bool:
        """Whether the training measures itself on the selection scenarios."""
        return self.steps != 0 and (self.evaluate_every is not None or self.patience is not None)


@dataclass(frozen=True, kw_only=True)
class RunSettings(AgentOptions):
    """How the agent is run, both for measurements and for training.

    Args:
        system: System prompt of `build_agent`, and of the references that a warm start imitates.
        max_concurrency: Maximum number of runs at the same time.
        timeout: Seconds for each run. A run that takes longer has raised.
    """

    system: str = SYSTEM
    max_concurrency: int = 48
    timeout: float = 120.0


@dataclass(frozen=True, kw_only=True)
class SpecializeOptions(WorldOptions):
    """Arguments of `specialize`. A run that is resumed must have the same, but for those that are not compared.

    Args:
        server: A connected server, or the command or the URL of one.
        policy: Name of the policy. It is created if it is missing.
        client: Client of the trainer server. None finds the running server.
        minutes: Time for everything. It is divided among the stages, and what a stage leaves goes to the next ones.
            None: no limit; each stage takes what its settings say.
        scenarios: Maximum number of scenarios to generate, or a set of scenarios, or a JSONL file of
            `ScenarioSet.save`. None: as many good ones as there is time for.
        graph: Makes your agent from the server's tools. None takes `build_agent`.
        generation: How scenarios are generated.
        warm_start: Conversations that the policy imitates before training: "reference" (the references of the training
            scenarios, with the prompt of `build_agent`), a JSONL file of conversations, or a WarmStart, which also has
            an SFTConfig. None: no warm start. "auto": the references for `build_agent`, and none for an agent of yours.
        training: How the policy is trained.
        runs: How the agent is run.
        seed: Seed of the scenarios, their split, the order of training, and the warm start.
        output: Directory for the report, the scenarios, the journal and the adapter, all of which are written as they
            come. None writes nothing.
        resume: Continues the run in `output` that was killed, or begins one if the directory is empty. Stages that have
            ended are not done again.
        progress: Whether to show progress bars on a terminal.
        on_stage: Called with a line of text when a stage begins, and with its results.
        worlds: Paths of what the server works on, each `PATH` or `NAME=PATH`: each run gets a copy, all tools may be
            called, and the reward compares what a run changed with what it should have changed. A connected server has
            it.
        reset: Resets the server before each run: a command, a URL, or a function. A connected server has it.
    """

    server: Server | str | Sequence[str] = field(compare=False, kw_only=False)
    policy: str
    client: TrainerClient | None = field(default=None, compare=False)
    minutes: float | None = MINUTES
    scenarios: int | ScenarioSet | str | Path | None = None
    graph: Agent | None = None
    generation: GenerationSettings = GenerationSettings()
    warm_start: WarmStart | Literal["auto", "reference"] | str | Path | None = "auto"
    training: TrainingSettings = TrainingSettings()
    runs: RunSettings = RunSettings()
    seed: int = 0
    output: str | Path | None = field(default=None, compare=False)
    resume: bool = field(default=False, compare=False)
    progress: bool = field(default=True, compare=False)
    on_stage: Callable[[str], None] = field(default=lambda stage: None, compare=False)

    def check(self) -> None:
        """Raises ConfigError if one of them is invalid."""
        if self.minutes is not None and not 0 < self.minutes < math.inf:
            raise ConfigError(f"minutes={self.minutes} must be above 0; None sets no limit")
        if self.imitation is not None and self.imitation.conversations is not None:
            load_conversations(self.imitation.conversations)  # before minutes of work: whether it can be read
        if self.generation.foreign is not None:
            ScenarioSet.load(self.generation.foreign)
        if isinstance(self.scenarios, int) and self.scenarios <= self.groups:
            raise ConfigError(self._too_few(f"scenarios={self.scenarios}"))

    @property
    def imitation(self) -> WarmStart | None:
        """The warm start that `warm_start` asks for. None: there is none."""
        if self.warm_start is None or isinstance(self.warm_start, WarmStart):
            return self.warm_start
        if self.warm_start == "auto":
            return None if self.graph is not None else WarmStart()
        return WarmStart(conversations=None if self.warm_start == "reference" else self.warm_start)

    @property
    def groups(self) -> int:
        """Scenarios of a training step. 0: there is no step."""
        return self.training.groups_per_step if self.training.steps != 0 else 0

    def check_sizes(self, scenarios: ScenarioSet) -> None:
        """Raises ConfigError if there are too few training scenarios for a step, or no held-out ones."""
        if len(scenarios.train) < max(self.groups, 1) or not scenarios.held_out:
            sizes = f"{len(scenarios.train)} scenarios to train on and {len(scenarios.held_out)} held out"
            raise ConfigError(self._too_few(sizes))

    def _too_few(self, sizes: str) -> str:
        return (
            f"{sizes} are too few for steps of {self.groups}: take more scenarios (scenarios=, --scenarios), fewer of "
            "them in a step (groups_per_step=, --groups), or give values for arguments (resources=, --resource)"
        )

    def fingerprint(self, server: Server) -> dict[str, Any]:
        """What a run that is resumed must have in common with this one, by name, as JSON values."""
        names = {entry.name for entry in fields(self) if entry.compare} - {"worlds", "reset"}  # those are of the server
        options = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name in names}
        if isinstance(self.scenarios, ScenarioSet):
            options["scenarios"] = f"{len(self.scenarios)} scenarios"
        worlds = sorted(str(place.original) for place in server.world.places) if server.world else None
        return fingerprint(server=f"{server.name} {server.version}".strip(), worlds=worlds, **options)


def fingerprint(**settings: Any) -> dict[str, Any]:
    """The settings by name, those of a class as `name.field`.

    Args:
        **settings: Values, dataclasses of values, models, functions. Of a function there is its name, of a language
            model the name of the model.
    """
    plain: dict[str, Any] = {}
    for name, value in settings.items():
        if is_dataclass(value) and not isinstance(value, type | LLM):
            plain |= {f"{name}.{entry.name}": _plain(getattr(value, entry.name)) for entry in fields(value)}
        else:
            plain[name] = _plain(value)
    return json.loads(json.dumps(plain))  # type: ignore[no-any-return]


def _plain(value: Any) -> Any:
    """A value as JSON."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, LLM | BaseChatModel):  # not the settings of a chat model, which may have keys
        return LLM.of(value).model
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Sequence):
        return [_plain(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {entry.name: _plain(getattr(value, entry.name)) for entry in fields(value)}
    return _name(value)


def _name(value: Any) -> str:
    """The name of a function, or of the class of an object."""
    owner: Callable[..., Any] | type = value if hasattr(value, "__qualname__") else type(value)
    return f"{owner.__module__}.{owner.__qualname__}"
