"""The contract of the trainer server's HTTP API. Imports the standard library and pydantic only."""

from trainer_server.wire.completions import Completion, CompletionStatus, Sampling
from trainer_server.wire.errors import (
    ARTError,
    ConfigError,
    EngineError,
    JobFailed,
    LLMError,
    MCPError,
    ServerError,
    ServerUnreachable,
    TrainingError,
)
from trainer_server.wire.home import DEFAULT_URL, Connection, Home
from trainer_server.wire.policies import NAME_PATTERN, TARGETS, Policy, PolicySpec, Version
from trainer_server.wire.steps import (
    GroupRef,
    GRPOConfig,
    Job,
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
    "Connection",
    "EngineError",
    "GRPOConfig",
    "GroupRef",
    "Home",
    "Job",
    "JobFailed",
    "JobStatus",
    "LLMError",
    "MCPError",
    "Policy",
    "PolicySpec",
    "Sampling",
    "ServerError",
    "ServerUnreachable",
    "StepRequest",
    "StepResult",
    "TrainingError",
    "TrajectoryRef",
    "Version",
]
