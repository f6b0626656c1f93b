"""Reinforcement learning under any LangGraph agent: capture, rewards, training. Never imports torch."""

from art_langgraph.callback import ARTCallbackHandler
from art_langgraph.capture import install
from art_langgraph.chat_model import ChatART
from art_langgraph.client import TrainerClient
from art_langgraph.rollout import gather, rollout
from art_langgraph.store import TrajectoryStore
from art_langgraph.train import train
from art_langgraph.trajectory import Scenario, Trajectory, TrajectoryGroup
from trainer_server.wire import ARTError, GRPOConfig, StepResult

__all__ = [
    "ARTCallbackHandler",
    "ARTError",
    "ChatART",
    "GRPOConfig",
    "Scenario",
    "StepResult",
    "TrainerClient",
    "Trajectory",
    "TrajectoryGroup",
    "TrajectoryStore",
    "gather",
    "install",
    "rollout",
    "train",
]
