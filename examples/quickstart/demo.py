"""The home of `art-langgraph demo`: a training that is made up, to look at the dashboard and the viewer without vLLM.

Its success by step is that of the run in picture.json. Scenarios, tools, rewards and the forms of all records are those
of the quickstart, and the ledger, the runs, the steps and the versions are written by the code that writes those of a
server. What the model says, how probable its tokens were, and what a step measures of them, is drawn by chance. Which
runs a step trains, and with which advantages, follows from their rewards as in a trainer.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from art_examples.quickstart.agent import SYSTEM
from art_examples.quickstart.picture import KEPT
from art_examples.quickstart.reward import reward
from art_examples.quickstart.scenarios import KINDS, held_out_scenarios, training_scenarios
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from art_langgraph import Scenario, Trajectory, TrajectoryStore
from art_langgraph.attempts import NodeRun
from art_langgraph.background.reports import trace_of
from art_langgraph.credit import group_refs
from art_langgraph.rewards import score
from art_langgraph.trajectory import CompletionCall, ToolCall, TrajectoryGroup
from trainer_server.common import Home
from trainer_server.jobs.queue import JobQueue
from trainer_server.ledger.run_repository import ReportedRun, RunRepository, SentReference
from trainer_server.ledger.sqlite import SQLiteBooks, SQLiteLedger
from trainer_server.ledger.step_tokens import CompletionInStep, StepTokens, write_step_tokens
from trainer_server.policies.store import AdapterStore
from trainer_server.process.files import server_id
from trainer_server.training.grpo.batch import Origin, Sample, gather_batch
from trainer_server.wire import (
    Completion,
    CompletionStatus,
    GRPOConfig,
    Job,
    JobStatus,
    PolicySpec,
    Sampling,
    StepRequest,
    StepResult,
    Version,
)

POLICY = "demo"
_GROUPS, _N = 6, 8
"""Scenarios of a step and runs of each, as the quickstart has them."""
_HELD_OUT, _REPEATS = 12, 4
"""Scenarios that are evaluated, and runs of each."""
_TOKENIZER = "demo"
_STEP_SECONDS = 15.0
_BASE = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 600, "hidden_size": 8}
_TOOLS = [kind.tool for kind in KINDS]
_VALUE = {kind.tool: kind.value for kind in KINDS}


def make_base(directory: Path) -> Path:
    """Writes the configuration and the tokenizer of a base model without weights, and returns its directory."""
    base = directory / "demo-model"
    base.mkdir(parents=True)
    (base / "config.json").write_text(json.dumps(_BASE))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    texts = [SYSTEM, *(_question(scenario) for scenario in (*training_scenarios(0), *held_out_scenarios())), *_TOOLS]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=_BASE["vocab_size"], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(base / "tokenizer.json"))
    return base


def fill(home: Home, base: Path) -> None:
    """Writes a training of ten steps, with the evaluation of its first and its last version.

    Args:
        home: An empty home.
        base: Directory of the base model, as `make_base` gives it.
    """
    home.make_private()
    asyncio.run(_Filling(home, base).write())


@dataclass(slots=True)
class _Part:
    """Runs of a version on some scenarios.

    Args:
        version: The version that answers.
        success: How probable a success is.
        started: Unix time of the first run.
        n: Runs of each scenario.
        evaluation: Whether they evaluate the version.
    """

    version: int
    success: float
    started: float
    n: int
    evaluation: bool = False


class _Filling:
    """Writes the home.

    Args:
        home: An empty home.
        base: Directory of the base model.
    """

    def __init__(self, home: Home, base: Path) -> None:
        self._home, self._base = home, base
        self._random = random.Random(0)
        self._tokenizer = Tokenizer.from_file(str(base / "tokenizer.json"))
        self._steps: list[dict[str, Any]] = json.loads(KEPT.read_text())["steps"]
        self._ledger = SQLiteLedger(home.ledger)
        self._runs = RunRepository(SQLiteBooks(home.rollouts))
        self._store = TrajectoryStore(home.store)
        self._policies = AdapterStore(home.policies)
        self._jobs = JobQueue(home.jobs)
        self._server_id = server_id(home)

    async def write(self) -> None:
        """Writes all of it, the oldest first."""
        last = len(self._steps)
        started = time.time() - _STEP_SECONDS * (last + 2)
        self._policies.register(PolicySpec(name=POLICY), self._base.name)
        self._publish(Version(policy=POLICY, version=0, created=started))
        held_out, training = held_out_scenarios(_HELD_OUT), training_scenarios(0)
        await self._make(held_out, _Part(0, self._steps[0]["success"], started, _REPEATS, evaluation=True))
        for at, step in enumerate(self._steps):
            began = started + _STEP_SECONDS * (at + 1)
            scenarios = training[_GROUPS * at : _GROUPS * (at + 1)]
            made = await self._make(scenarios, _Part(at, step["success"], began, _N))
            self._add_step(at, made, began)
        ended = started + _STEP_SECONDS * (last + 1)
        part = _Part(last, self._steps[-1]["success"], ended, _REPEATS, evaluation=True)
        await self._make(held_out, part)
        self._runs.follow(self._ledger.recorded(0, 100_000))
        self._ledger.close()

    def _add_step(self, at: int, made: Sequence[Trajectory], began: float) -> None:
        """A step that was sent these runs, and the version that it made."""
        groups, config = group_refs(TrajectoryGroup.by_scenario(made)), GRPOConfig()
        file = self._jobs.accept("step", POLICY, request=StepRequest(groups=groups, config=config))
        completions = self._ledger.read([call.id for run in made for call in run.completions if call.id])
        origin = Origin(self._base.name, _TOKENIZER, self._server_id)
        batch = gather_batch(groups, completions, config, policy=POLICY, version=at, origin=origin)
        tokens = StepTokens(completions=[self._trace(sample) for sample in batch.samples], left_out=batch.left_out)
        write_step_tokens(self._jobs.root / file.id, tokens)
        metrics = batch.metrics()
        trained = metrics["trajectories_trained"]
        self._jobs.use(file.id, trained)
        metrics |= {
            "trajectories_trained": len(trained),
            "tokens_trained": sum(sum(entry.trained) for entry in tokens.completions),
            "loss": round(self._random.gauss(0.0, 0.01), 4),
            "grad_norm": round(self._random.uniform(0.2, 0.6), 4),
            "entropy": statistics.fmean(value for entry in tokens.completions for value in entry.entropy),
            "logp_gap": statistics.fmean(
                abs(trainer - sampler)
                for entry in tokens.completions
                for trainer, sampler in zip(entry.logprobs, completions[entry.completion].logprobs, strict=True)
            ),
        }
        ended = began + _STEP_SECONDS * 0.9
        result = StepResult(version=at + 1, metrics=metrics, trajectories=trained)
        seconds = {"train": _STEP_SECONDS * 0.3, "swap": 0.2}
        job = Job(
            id=file.id, kind="step", policy=POLICY, status=JobStatus.succeeded, created=began, finished=ended,
            result=result, seconds=seconds,
        )  # fmt: skip
        self._jobs.finish(job)
        self._publish(
            Version(policy=POLICY, version=at + 1, created=ended, job_id=file.id, made_from=at, metrics=metrics)
        )
        self._runs.follow(self._ledger.recorded(0, 100_000))
        sent = [SentReference(str(run.rollout_id), run.id, run.reward) for run in made]
        self._runs.step(file.id, POLICY, sent)
        self._store.begin_step(POLICY, f"demo-step-{at + 1}", [run.id for run in made])
        self._store.end_step(POLICY, f"demo-step-{at + 1}", at + 1)

    def _trace(self, sample: Sample) -> CompletionInStep:
        """What a trainer computes of a completion: log-probs that are almost the sampler's, and entropies that are
        high where the sampled token was unlikely."""
        draw, sampler = self._random, sample.completion.logprobs
        logprobs = [value * draw.lognormvariate(0.0, 0.02) for value in sampler]
        return sample.in_step(logprobs, [0.01 - value * draw.uniform(0.5, 1.5) for value in sampler])

    def _publish(self, version: Version) -> None:
        aside = self._policies.staging(POLICY, version.version)
        save_file({"lora_A": np.zeros((1, 1), np.float32)}, aside / "adapter_model.safetensors")
        (aside / "adapter_config.json").write_text("{}")
        self._policies.publish(aside, version)

    async def _make(self, scenarios: Sequence[Scenario], part: _Part) -> list[Trajectory]:
        """Makes runs, and writes what the ledger, the server and the client keep of them."""
        made, rows = [], []
        for scenario in scenarios:
            for _ in range(part.n):
                answers, run = self._run(scenario, part)
                await score(run, reward)
                rows += answers
                made.append(run)
        with self._store.session() as session, session.batch() as batch:
            for run in made:
                batch.add(run)
        await self._ledger.add(*rows)
        self._runs.traces([ReportedRun(str(run.rollout_id), trace_of(run), run.final_text) for run in made])
        return made

    def _run(self, scenario: Scenario, part: _Part) -> tuple[list[Completion], Trajectory]:
        """The rows of the ledger and the trajectory of a run: a tool call, and an answer."""
        draw = self._random
        wanted = scenario.metadata
        tool, city = str(wanted["tool"]), str(wanted["arguments"]["city"])
        mistake = "" if draw.random() < part.success else draw.choice(("tool", "city", "value"))
        if mistake == "tool":
            tool = draw.choice([name for name in _TOOLS if name != tool])
        called = f"{city[:-2]}{city[-1]}" if mistake == "city" else city
        value = _VALUE[tool](called)
        said = _VALUE[tool](called[::-1]) if mistake == "value" else value
        rollout = f"ro-demo-{draw.getrandbits(64):016x}"
        started = part.started + draw.uniform(0.0, _STEP_SECONDS * 0.5)
        arguments = json.dumps({"city": called}, ensure_ascii=False)
        function = {"name": tool, "arguments": arguments}
        call = {"id": f"call-{rollout[-8:]}", "type": "function", "function": function}
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": _question(scenario)}]
        asking = {"role": "assistant", "content": None, "tool_calls": [call]}
        result = {"role": "tool", "tool_call_id": call["id"], "content": value}
        answer = {"role": "assistant", "content": f"It is {said} in {city}."}
        first = self._completion(rollout, part, started, messages, asking)
        second = self._completion(rollout, part, started + 0.9, [*messages, asking, result], answer)
        rows = [first, second.model_copy(update={"finish_reason": "stop"})]
        calls = [
            CompletionCall(
                id=row.id, model=POLICY, version=part.version, message=row.message, messages=row.request["messages"],
                node="model", path=["model"], namespace=f"model:{at}", attempt=f"{rollout}-{at}",
                started=row.created, seconds=0.6, prompt_tokens=len(row.prompt_token_ids),
                sampled_tokens=len(row.token_ids),
            )
            for at, row in zip((0, 2), rows, strict=True)
        ]  # fmt: skip
        asked = ToolCall(
            tool=tool, arguments={"city": called}, result=value, tool_call_id=call["id"], server="cities",
            node="tools", path=["tools"], namespace="tools:1", attempt=f"{rollout}-1",
            started=started + 0.7, seconds=0.1,
        )  # fmt: skip
        nodes = [
            NodeRun(
                node=name, path=[name], namespace=f"{name}:{at}", attempt=f"{rollout}-{at}", started=started + after,
                seconds=seconds,
            )
            for at, (name, after, seconds) in enumerate((("model", 0.0, 0.6), ("tools", 0.7, 0.1), ("model", 0.9, 0.6)))
        ]  # fmt: skip
        return rows, Trajectory(
            scenario=scenario, rollout_id=rollout, completions=calls, tool_calls=[asked], nodes=nodes,
            output=answer["content"], graph_id="quickstart", evaluation=part.evaluation, started=started, seconds=1.5,
        )  # fmt: skip

    def _completion(
        self, rollout: str, part: _Part, created: float, messages: list[dict[str, Any]], message: dict[str, Any]
    ) -> Completion:
        """A row of the ledger: a request, and its answer as tokens of the base model's tokenizer."""
        prompt, sampled = (self._tokenizer.encode(_text(some)).ids for some in (messages, [message]))
        return Completion(
            id=f"chatcmpl-{self._random.getrandbits(96):024x}", created=created, server_id=self._server_id,
            base_model=self._base.name, tokenizer=_TOKENIZER, policy=POLICY, version=part.version, model=POLICY,
            rollout=rollout, status=CompletionStatus.complete, finish_reason="tool_calls", sampling=Sampling(),
            prompt_token_ids=prompt, token_ids=sampled,
            logprobs=[-self._random.expovariate(1.5 + part.version) for _ in sampled],
            request={"messages": messages}, message=message,
        )  # fmt: skip


def _question(scenario: Scenario) -> str:
    return str(scenario.input["messages"][0][1])


def _text(messages: Sequence[dict[str, Any]]) -> str:
    """Messages as the text that is tokenized."""
    return "\n".join(_lines(messages))


def _lines(messages: Sequence[dict[str, Any]]) -> Iterator[str]:
    for message in messages:
        calls = [call["function"] for call in message.get("tool_calls") or []]
        yield (message["content"] or "") + "".join(f"{call['name']}({call['arguments']})" for call in calls)
