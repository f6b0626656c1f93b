"""The other trainers themselves read what `trajectories export --format` writes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from art_langgraph.exports import TrainerFormat
from art_langgraph.exports.export import Export
from testbed.environments import environment
from tests.support.runs.recorded_run import recorded_run
from tests.support.servers.trainer_server import TrainerServer

VERIFIERS = """
import json, sys
from pathlib import Path
from verifiers.v1.configs.agent import WireAgentConfig
from verifiers.v1.state import State
from verifiers.v1.task import WireTaskData
from verifiers.v1.trace import Trace
from verifiers.v1.utils.trace_store import read_episodes
(episode,) = read_episodes(Path(sys.argv[1]), Trace[WireTaskData, State, WireAgentConfig])
(trace,) = episode.traces
branches = [[branch.token_ids, branch.sampled_mask, branch.logprobs] for branch in trace.branches]
print(json.dumps({"reward": trace.reward, "branches": branches, "tools": [tool.name for tool in trace.tools],
                  "turns": trace.num_turns, "output": episode.num_output_tokens, "ok": episode.ok}))
"""


@pytest.mark.servers
def test_verifiers_reads_episodes_with_the_exact_tokens(connected: TrainerServer, tmp_path: Path) -> None:
    python = environment("verifiers", "verifiers==0.4.0", overlay=True) / "python"
    with connected.http() as http:
        run = recorded_run(http)
    Export(TrainerFormat.verifiers, tokens=True).write(tmp_path / "traces.jsonl", [run])
    done = subprocess.run(
        [str(python), "-c", VERIFIERS, str(tmp_path)], capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr
    read = json.loads(done.stdout.splitlines()[-1])
    rows = connected.app.state.server.ledger.read([call.id for call in run.completions if call.id])
    last = [rows[call.id] for call in run.completions if call.id][-1]
    assert (read["reward"], read["tools"], read["turns"], read["ok"]) == (0.5, ["weather", "add"], 2, True)
    ids, mask, logprobs = read["branches"][-1]
    assert ids == [*last.prompt_token_ids, *last.token_ids]
    sampled = len(last.token_ids)
    assert mask[-sampled:] == [True] * sampled
    assert logprobs[-sampled:] == pytest.approx(last.logprobs)
    assert read["output"] == sum(len(row.token_ids) for row in rows.values())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning", "ignore::DeprecationWarning")
def test_trl_takes_a_step_on_the_rows(connected: TrainerServer, base_model: Path, tmp_path: Path) -> None:
    datasets, trl = pytest.importorskip("datasets"), pytest.importorskip("trl")
    tokenizer = letters()
    with connected.http() as http:
        run = recorded_run(http)
    Export(TrainerFormat.trl, tokens=True).write(tmp_path / "rows.jsonl", [run])
    rows = datasets.load_dataset(
        "json", data_files=str(tmp_path / "rows.jsonl"), split="train", cache_dir=str(tmp_path / "cache")
    )
    config = trl.SFTConfig(
        output_dir=str(tmp_path / "out"), max_steps=1, per_device_train_batch_size=2, report_to="none", use_cpu=True,
        bf16=False, save_strategy="no", completion_only_loss=True,
    )  # fmt: skip
    trainer = trl.SFTTrainer(model=str(base_model), args=config, train_dataset=rows, processing_class=tokenizer)
    assert trainer.train().global_step == 1
    (_, second) = [tokenizer.decode(row["input_ids"]) for row in trainer.train_dataset]
    assert second.startswith("weather add system: Be brief.")
    assert 'assistant: add({"a": 1})' in second


def letters() -> Any:
    """A tokenizer with a token for each byte, and a chat template that shows tools and calls."""
    tokenizers, transformers = pytest.importorskip("tokenizers"), pytest.importorskip("transformers")
    level = tokenizers.pre_tokenizers.ByteLevel
    letters = {letter: number for number, letter in enumerate([*sorted(level.alphabet()), "<end>"])}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=letters, merges=[]))
    made.pre_tokenizer, made.decoder = level(add_prefix_space=False), tokenizers.decoders.ByteLevel()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end>", pad_token="<end>")
    tokenizer.chat_template = (
        "{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}"
        "{% for message in messages %}{{ message.role }}: {{ message.content or '' }}"
        "{% for call in message.tool_calls or [] %}{{ call.function.name }}({{ call.function.arguments | tojson }})"
        "{% endfor %}<end>{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
    )
    return tokenizer
