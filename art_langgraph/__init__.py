"""Reinforcement learning under any LangGraph agent: capture, rewards, training. Never imports torch."""

from typing import TYPE_CHECKING, Any

from art_langgraph.autorl.autorl import AutoRLReport, autorl
from art_langgraph.capture.handler import ARTCallbackHandler
from art_langgraph.capture.process import install
from art_langgraph.chat_model import ChatART
from art_langgraph.client.client import TrainerClient
from art_langgraph.client.demonstrations import load_conversations
from art_langgraph.datasets import load_scenarios, save_scenarios
from art_langgraph.judge.ruler import Ruler, ruler, ruler_score_group
from art_langgraph.llm.llm import LLM, Usage
from art_langgraph.loop.comparison import VersionComparison, compare_versions
from art_langgraph.loop.evaluate import Evaluation, evaluate
from art_langgraph.loop.failures import RolloutsFailed
from art_langgraph.loop.rollout import gather, rollout
from art_langgraph.loop.train import train
from art_langgraph.rewards import NodeRewards, group_sum, weighted, when_undecided
from art_langgraph.store import TrajectoryStore
from art_langgraph.trajectory import Scenario, Trajectory, TrajectoryGroup
from trainer_server.wire import ARTError, Conversation, GRPOConfig, LLMError, SFTConfig, StepResult

if TYPE_CHECKING:
    from art_langgraph.middleware import ARTMiddleware

__all__ = [
    "LLM",
    "ARTCallbackHandler",
    "ARTError",
    "ARTMiddleware",
    "AutoRLReport",
    "ChatART",
    "Conversation",
    "Evaluation",
    "GRPOConfig",
    "LLMError",
    "NodeRewards",
    "RolloutsFailed",
    "Ruler",
    "SFTConfig",
    "Scenario",
    "StepResult",
    "TrainerClient",
    "Trajectory",
    "TrajectoryGroup",
    "TrajectoryStore",
    "Usage",
    "VersionComparison",
    "autorl",
    "compare_versions",
    "evaluate",
    "gather",
    "group_sum",
    "install",
    "load_conversations",
    "load_scenarios",
    "rollout",
    "ruler",
    "ruler_score_group",
    "save_scenarios",
    "train",
    "weighted",
    "when_undecided",
]


def __getattr__(name: str) -> Any:
    """ARTMiddleware needs the package `langchain`, which not every graph has."""
    if name == "ARTMiddleware":
        from art_langgraph.middleware import ARTMiddleware

        return ARTMiddleware
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
