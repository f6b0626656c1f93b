"""What server and clients share: the contract of the HTTP API, errors, where a server leaves its address, the guard of
child processes; and what every part of the server may need: code from outside that an option names (plugins.py).
Imports the standard library and pydantic only."""

from trainer_server.wire.completions import Completion, CompletionStatus, RolloutCalls, Sampling
from trainer_server.wire.errors import (
    ARTError,
    ConfigError,
    Conflict,
    EngineError,
    JobFailed,
    LLMError,
    MCPError,
    NotFound,
    NotStored,
    Refusal,
    ServerError,
    ServerUnreachable,
    TrainingError,
    Unprocessable,
)
from trainer_server.wire.home import DEFAULT_URL, Connection, Home
from trainer_server.wire.policies import NAME_PATTERN, TARGETS, ExportFormat, Fork, Policy, PolicySpec, Score, Version
from trainer_server.wire.sft import Conversation, SFTConfig, SFTRequest
from trainer_server.wire.steps import (
    GroupRef,
    GRPOConfig,
    Job,
    JobKind,
    JobList,
    JobStatus,
    StepRequest,
    StepResult,
    TrajectoryRef,
)

__all__ = [
    "DEFAULT_URL",
    "NAME_PATTERN",
    "TARGETS",
    "ARTError",
    "Completion",
    "CompletionStatus",
    "ConfigError",
    "Conflict",
    "Connection",
    "Conversation",
    "EngineError",
    "ExportFormat",
    "Fork",
    "GRPOConfig",
    "GroupRef",
    "Home",
    "Job",
    "JobFailed",
    "JobKind",
    "JobList",
    "JobStatus",
    "LLMError",
    "MCPError",
    "NotFound",
    "NotStored",
    "Policy",
    "PolicySpec",
    "Refusal",
    "RolloutCalls",
    "SFTConfig",
    "SFTRequest",
    "Sampling",
    "Score",
    "ServerError",
    "ServerUnreachable",
    "StepRequest",
    "StepResult",
    "TrainingError",
    "TrajectoryRef",
    "Unprocessable",
    "Version",
]
