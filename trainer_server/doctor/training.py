"""Checks whether the trainer can train a model. A process of the trainer examines it, since that needs torch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer_server.common import Home
from trainer_server.doctor.finding import Finding, State
from trainer_server.engines.model_files import ModelFiles
from trainer_server.engines.vllm.command import experts_obstacle
from trainer_server.engines.vllm.parsers import Parsers
from trainer_server.process.child import inherited_environment
from trainer_server.wire.policies import EXPERTS, RECURRENT_TARGETS

_TRAIN = "train"
_TIMEOUT = 600.0
"""Seconds for examining a model. Importing torch takes most of it; a mixture of many experts takes a minute."""


def check_training(
    files: ModelFiles,
    parsers: Parsers,
    home: Home,
    *,
    rank: int,
    trust_remote_code: bool,
    engine_args: Sequence[str] = (),
    gpus: bool = False,
) -> list[Finding]:
    """Checks whether a model can be trained, and what its chat template shows.

    Args:
        files: The model's files; weights are not needed.
        parsers: The chosen parsers: with a parser of tool calls, the template must show tools.
        home: The server's home: what its trainer found when it tried rows of several completions counts.
        rank: LoRA rank of policies.
        trust_remote_code: Whether Python code in the directory may run.
        engine_args: `--engine-args` of `serve`.
        gpus: Whether vLLM computes on GPUs.
    """
    directory = files.directory
    line = [sys.executable, "-m", "trainer_server.training.examine", str(directory), "--rank", str(rank)]
    line += ["--trust-remote-code"] if trust_remote_code else []
    env = {**inherited_environment(), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    try:
        process = subprocess.run(line, capture_output=True, text=True, check=False, env=env, timeout=_TIMEOUT)
        examination = json.loads(process.stdout.splitlines()[-1])
    except (OSError, ValueError, IndexError, subprocess.TimeoutExpired) as error:
        words = str(error) if isinstance(error, OSError | subprocess.TimeoutExpired) else process.stderr[-500:]
        return [Finding(_TRAIN, "model", State.failed, f"the model could not be examined: {words}")]
    obstacle = None
    if not examination["untrainable"] and examination["experts"]:
        obstacle = experts_obstacle(files.model_type, examination["targets"], engine_args, gpus=gpus)
    findings = _model(examination, rank, _read_trial(home, directory), obstacle)
    return [*findings, *_template(examination["template"], parsers)]


def _experts(examination: dict[str, Any], obstacle: str | None) -> Finding:
    """Whether policies can adapt the experts of a mixture. obstacle: as that of `_model`."""
    recurrent = " and recurrent layers" if set(examination["targets"]) & set(RECURRENT_TARGETS) else ""
    names, adaptable = ", ".join(examination["targets"]), examination["adaptable_experts"]
    if adaptable and obstacle is None:
        text = f"experts get an adapter where `targets` of a policy has `{EXPERTS}`; by default"
        return Finding(_TRAIN, "experts", State.ok, f"{text} only attention{recurrent} does: {names}")
    why = f" ({obstacle})" if adaptable and obstacle else ""
    text = f"experts, routers and MLPs get no adapter{why}; only attention{recurrent} does: {names}"
    return Finding(_TRAIN, "experts", State.warning, text)


def _read_trial(home: Home, directory: Path) -> dict[str, Any]:
    """What the last trainer of a home found out about shared rows of this model: its metrics; empty: nothing."""
    try:
        about = json.loads((home.root / "trainer.json").read_text())
        return dict(about) if Path(about["model"]).resolve() == directory.resolve() else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _model(examination: dict[str, Any], rank: int, trial: dict[str, Any], obstacle: str | None = "") -> list[Finding]:
    """What is adapted, and whether rows are shared. obstacle: why vLLM applies no adapter to experts; None: it applies
    them; empty: it was not asked."""
    if why := examination["untrainable"]:
        remedy = (
            "read the code in its directory; if you trust it, serve with --trust-remote-code"
            if "trust_remote_code" in why  # what `examine` says of such models
            else "take a decoder with a language-model head that transformers knows"
        )
        return [Finding(_TRAIN, "model", State.failed, why, remedy)]
    text = (
        f"{examination['architecture']}: a LoRA of rank {rank} adapts {examination['adapted']} layers, with "
        f"{examination['parameters'] / 1e6:.1f} M parameters: {', '.join(examination['targets'])}"
    )
    findings = [Finding(_TRAIN, "model", State.ok, text)]
    findings += [_experts(examination, obstacle)] if examination["experts"] else []
    if why := examination["separate"] or trial.get("rows_unshared_because"):
        text = f"completions do not share rows, which costs time and changes no result: {why}"
        findings.append(Finding(_TRAIN, "shared rows", State.warning, text))
    else:
        text = "nothing in the configuration keeps completions from sharing rows; the trainer tries it when it starts"
        if trial.get("rows_shared"):
            text = "completions share rows, as the trainer of this home found by trial"
        findings.append(Finding(_TRAIN, "shared rows", State.ok, text))
    return findings


def _template(rendering: dict[str, Any], parsers: Parsers) -> list[Finding]:
    """What the tokenizer's template renders. vLLM renders some families without it, which the parsers' reason says."""
    if rendering["error"]:
        text = f"the tokenizer renders no conversation: {rendering['error']}"
        if parsers.tools.name and "family" in parsers.tools.why:
            return [Finding(_TRAIN, "chat template", State.ok, f"{text}; vLLM renders this family itself")]
        remedy = "give a template to vLLM: --engine-args '--chat-template FILE'"
        return [Finding(_TRAIN, "chat template", State.failed, text, remedy)]
    parts = {
        "the tools of a request": "tools",
        "tool calls of earlier turns": "calls",
        "results of tools": "results",
    }
    lacking = [words for words, part in parts.items() if not rendering[part]]
    if parsers.tools.name and lacking:
        text = f"the chat template does not show {', '.join(lacking)}"
        remedy = "agents with tools will not see them: give another template by --engine-args '--chat-template FILE'"
        return [Finding(_TRAIN, "chat template", State.warning, text, remedy)]
    features = "renders tools, their calls and results" if not lacking else "renders conversations"
    thoughts = " and thoughts of the last turn" if rendering["thoughts"] else ""
    return [Finding(_TRAIN, "chat template", State.ok, f"it {features}{thoughts}")]
