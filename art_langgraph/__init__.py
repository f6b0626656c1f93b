"""Reinforcement learning under any LangGraph agent: capture, rewards, training. Never imports torch.

Public names are imported when they are first used (PEP 562): `art-langgraph --help` loads no LangChain and no litellm.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from art_langgraph.auto_pilot.options import CanaryRules
    from art_langgraph.auto_pilot.pilot import Autopilot, autopilot
    from art_langgraph.auto_rl.autorl import AutoRLReport, autorl
    from art_langgraph.capture.handler import ARTCallbackHandler
    from art_langgraph.capture.process import install
    from art_langgraph.chat_model import ChatART
    from art_langgraph.client.client import TrainerClient
    from art_langgraph.client.demonstrations import SFTOptions, load_conversations
    from art_langgraph.client.jobs import StepOptions
    from art_langgraph.datasets import load_scenarios, save_scenarios
    from art_langgraph.judge.ruler import Ruler, ruler_score_group
    from art_langgraph.llm.llm import LLM, Usage
    from art_langgraph.loop.comparison import VersionComparison, compare_versions
    from art_langgraph.loop.evaluate import Evaluation, evaluate
    from art_langgraph.loop.executors.processes import ProcessExecutor
    from art_langgraph.loop.executors.ray import RayExecutor
    from art_langgraph.loop.failures import RolloutsFailed
    from art_langgraph.loop.hints import (
        HintCounts,
        Hints,
        first_hint,
        hint_errors,
        hint_judge,
        hint_reference,
        hint_tools,
    )
    from art_langgraph.loop.pins import PinIgnored
    from art_langgraph.loop.rollout import gather, rollout
    from art_langgraph.loop.sampling.dead_groups import DeadGroups, DeadScenario, dead_groups
    from art_langgraph.loop.sampling.informative import Exploration
    from art_langgraph.loop.sampling.samplers import LearnableSampler, Sampler, UniformSampler
    from art_langgraph.loop.train import train
    from art_langgraph.loop.watch.alarm_rules import AlarmRules
    from art_langgraph.loop.watch.held_out import HeldOut
    from art_langgraph.loop.watch.record import StepRecord
    from art_langgraph.loop.watch.stopping import Plateau, TargetReached, TimeBudget, TokenBudget
    from art_langgraph.middleware import ARTMiddleware
    from art_langgraph.programs.run import Run, current_run
    from art_langgraph.programs.session import session
    from art_langgraph.project.graph import load_graph
    from art_langgraph.rewards import NodeRewards, group_sum, weighted, when_undecided
    from art_langgraph.store import TrajectoryStore
    from art_langgraph.trajectory import Scenario, Trajectory, TrajectoryGroup
    from trainer_server.wire import ARTError, Conversation, Distillation, GRPOConfig, LLMError, SFTConfig, StepResult

_MODULES = {
    "art_langgraph.auto_pilot.options": ("CanaryRules",),
    "art_langgraph.auto_pilot.pilot": ("Autopilot", "autopilot"),
    "art_langgraph.auto_rl.autorl": ("AutoRLReport", "autorl"),
    "art_langgraph.capture.handler": ("ARTCallbackHandler",),
    "art_langgraph.capture.process": ("install",),
    "art_langgraph.chat_model": ("ChatART",),
    "art_langgraph.client.client": ("TrainerClient",),
    "art_langgraph.client.demonstrations": ("SFTOptions", "load_conversations"),
    "art_langgraph.client.jobs": ("StepOptions",),
    "art_langgraph.datasets": ("load_scenarios", "save_scenarios"),
    "art_langgraph.judge.ruler": ("Ruler", "ruler_score_group"),
    "art_langgraph.llm.llm": ("LLM", "Usage"),
    "art_langgraph.loop.comparison": ("VersionComparison", "compare_versions"),
    "art_langgraph.loop.evaluate": ("Evaluation", "evaluate"),
    "art_langgraph.loop.executors.processes": ("ProcessExecutor",),
    "art_langgraph.loop.executors.ray": ("RayExecutor",),
    "art_langgraph.loop.failures": ("RolloutsFailed",),
    "art_langgraph.loop.hints": (
        "HintCounts",
        "Hints",
        "first_hint",
        "hint_errors",
        "hint_judge",
        "hint_reference",
        "hint_tools",
    ),
    "art_langgraph.loop.pins": ("PinIgnored",),
    "art_langgraph.loop.rollout": ("gather", "rollout"),
    "art_langgraph.loop.sampling.dead_groups": ("DeadGroups", "DeadScenario", "dead_groups"),
    "art_langgraph.loop.sampling.informative": ("Exploration",),
    "art_langgraph.loop.sampling.samplers": ("LearnableSampler", "Sampler", "UniformSampler"),
    "art_langgraph.loop.train": ("train",),
    "art_langgraph.loop.watch.alarm_rules": ("AlarmRules",),
    "art_langgraph.loop.watch.held_out": ("HeldOut",),
    "art_langgraph.loop.watch.record": ("StepRecord",),
    "art_langgraph.loop.watch.stopping": ("Plateau", "TargetReached", "TimeBudget", "TokenBudget"),
    "art_langgraph.middleware": ("ARTMiddleware",),
    "art_langgraph.programs.run": ("Run", "current_run"),
    "art_langgraph.programs.session": ("session",),
    "art_langgraph.project.graph": ("load_graph",),
    "art_langgraph.rewards": ("NodeRewards", "group_sum", "weighted", "when_undecided"),
    "art_langgraph.store": ("TrajectoryStore",),
    "art_langgraph.trajectory": ("Scenario", "Trajectory", "TrajectoryGroup"),
    "trainer_server.wire": (
        "ARTError",
        "Conversation",
        "Distillation",
        "GRPOConfig",
        "LLMError",
        "SFTConfig",
        "StepResult",
    ),
}
"""Where each public name is defined: the imports above, for the interpreter."""
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "LLM",
    "ARTCallbackHandler",
    "ARTError",
    "ARTMiddleware",
    "AlarmRules",
    "AutoRLReport",
    "Autopilot",
    "CanaryRules",
    "ChatART",
    "Conversation",
    "DeadGroups",
    "DeadScenario",
    "Distillation",
    "Evaluation",
    "Exploration",
    "GRPOConfig",
    "HeldOut",
    "HintCounts",
    "Hints",
    "LLMError",
    "LearnableSampler",
    "NodeRewards",
    "PinIgnored",
    "Plateau",
    "ProcessExecutor",
    "RayExecutor",
    "RolloutsFailed",
    "Ruler",
    "Run",
    "SFTConfig",
    "SFTOptions",
    "Sampler",
    "Scenario",
    "StepOptions",
    "StepRecord",
    "StepResult",
    "TargetReached",
    "TimeBudget",
    "TokenBudget",
    "TrainerClient",
    "Trajectory",
    "TrajectoryGroup",
    "TrajectoryStore",
    "UniformSampler",
    "Usage",
    "VersionComparison",
    "autopilot",
    "autorl",
    "compare_versions",
    "current_run",
    "dead_groups",
    "evaluate",
    "first_hint",
    "gather",
    "group_sum",
    "hint_errors",
    "hint_judge",
    "hint_reference",
    "hint_tools",
    "install",
    "load_conversations",
    "load_graph",
    "load_scenarios",
    "rollout",
    "ruler_score_group",
    "save_scenarios",
    "session",
    "train",
    "weighted",
    "when_undecided",
]


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from trainer_server.common.extensions import load

    value = getattr(load(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
