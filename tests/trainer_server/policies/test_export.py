"""A version to take away: what other programs load computes what the policy computes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import torch
from gguf import GGUFReader
from peft import PeftModel
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Gemma2Config,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)
from typer.testing import CliRunner

from art_langgraph import TrainerClient
from art_langgraph.cli.main import build
from tests.support.homes.jobs import finish, groups
from tests.support.homes.versions import publish
from tests.support.servers.trainer_server import TrainerServer, trainer_server_on
from tests.support.training.models import SIZES
from trainer_server.common import Home
from trainer_server.engines.served_model import ServedModel
from trainer_server.policies.export import Exports
from trainer_server.policies.retention import Retention
from trainer_server.policies.store import AdapterStore
from trainer_server.server.errors import answer
from trainer_server.training.export.gguf import write_gguf
from trainer_server.wire import ConfigError, ExportFormat, NotFound, PolicySpec, ServerError

pytestmark = pytest.mark.slow

TEXT = "Whoever says seventy-seven times seven, says 539. <|end|> It's 2026!"
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}<|end|>{% endfor %}"
IDS = torch.arange(5, 25)[None]


def write_tokenizer(where: Path, size: int = 300) -> None:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        [TEXT] * 4, trainers.BpeTrainer(vocab_size=size - 8, special_tokens=["<|end|>"], initial_alphabet=alphabet)
    )
    whole = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|end|>")
    whole.chat_template = TEMPLATE
    whole.save_pretrained(where)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("with-tokenizer") / "small"
    torch.manual_seed(0)
    config = LlamaConfig(**{**SIZES, "vocab_size": 300}, eos_token_id=0, bos_token_id=None)
    AutoModelForCausalLM.from_config(config).save_pretrained(where)
    write_tokenizer(where)
    return where


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, base: Path) -> Iterator[TrainerServer]:
    """Two steps of the policy `p`, far enough to be seen in logits."""
    with trainer_server_on(tmp_path_factory.mktemp("exports"), base) as server, server.http() as http:
        http.post("/api/policies", json={"name": "p"})
        for _ in range(2):
            body = {"groups": groups(http, 1.0, 0.0), "config": {"lr": 1e-2, "max_logp_gap": None}}
            assert finish(http, http.post("/api/policies/p/steps", json=body))["status"] == "succeeded"
        yield server


def export(server: TrainerServer, out: Path, format: ExportFormat, version: int = 2) -> Path:
    async def run() -> Path:
        async with TrainerClient(server.url, "test-token") as trainer:
            return await trainer.export("p", version, out / format, format)

    return asyncio.run(run())


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(IDS).logits
    return found


@pytest.fixture(scope="module")
def expected(trained: TrainerServer, base: Path) -> torch.Tensor:
    """What the trainer's adapter computes on the base model."""
    plain = AutoModelForCausalLM.from_pretrained(base)
    before = logits(plain)
    after = logits(PeftModel.from_pretrained(plain, str(trained.home.policies / "p/versions/2")))
    assert (after - before).abs().max() > 1e-2
    return after


def test_an_adapter_loads_in_peft(trained: TrainerServer, base: Path, expected: torch.Tensor, tmp_path: Path) -> None:
    out = export(trained, tmp_path, "peft")
    names = ["README.md", "adapter_config.json", "adapter_model.safetensors"]
    assert sorted(path.name for path in out.iterdir()) == names
    assert json.loads((out / "adapter_config.json").read_text())["base_model_name_or_path"] == "small"
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), str(out))
    assert torch.equal(logits(model), expected)


def test_a_merged_model_is_whole(trained: TrainerServer, base: Path, expected: torch.Tensor, tmp_path: Path) -> None:
    out = export(trained, tmp_path, "merged")
    assert (logits(AutoModelForCausalLM.from_pretrained(out)) - expected).abs().max() < 1e-4
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (out / name).read_bytes() == (base / name).read_bytes()
    assert AutoTokenizer.from_pretrained(out)(TEXT) == AutoTokenizer.from_pretrained(base)(TEXT)


def test_a_gguf_holds_weights_tokenizer_and_template(
    trained: TrainerServer, base: Path, expected: torch.Tensor, tmp_path: Path
) -> None:
    out = export(trained, tmp_path, "gguf")
    assert GGUFReader(out / "model.gguf").fields["general.name"].contents() == "p@2"
    model = AutoModelForCausalLM.from_pretrained(out, gguf_file="model.gguf")
    assert (logits(model) - expected).abs().max() < 1e-4
    found, before = AutoTokenizer.from_pretrained(out, gguf_file="model.gguf"), AutoTokenizer.from_pretrained(base)
    assert found(TEXT)["input_ids"] == before(TEXT)["input_ids"]
    assert found.chat_template == TEMPLATE


def test_the_model_card_says_what_it_is(trained: TrainerServer, tmp_path: Path) -> None:
    import yaml

    card = (export(trained, tmp_path, "peft") / "README.md").read_text()
    _, front, text = card.split("---\n", 2)
    found = yaml.safe_load(front)
    assert (found["base_model"], found["library_name"]) == ("small", "peft")
    assert "# p@2" in text
    assert "| version | reward_mean |" in text
    assert "| 1 | 0.5 |" in text
    assert "rank 8" in text
    assert str(trained.home.root) not in card
    assert "Not trained yet" in (export(trained, tmp_path / "0", "peft", 0) / "README.md").read_text()


def test_versions_are_managed_from_the_command_line(
    trained: TrainerServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ART_BASE_URL", trained.url)
    monkeypatch.setenv("ART_API_KEY", "test-token")

    def run(*line: str) -> str:
        done = CliRunner().invoke(build(), line)
        assert done.exit_code == 0, done.output
        return done.output

    run("export", "p@1", "--output", str(tmp_path / "one"))
    assert "# p@1" in (tmp_path / "one" / "README.md").read_text()
    run("export", "p", "--output", str(tmp_path / "newest"))
    assert "# p@2" in (tmp_path / "newest" / "README.md").read_text()
    assert "new@0 is p@1" in run("fork", "p@1", "new")
    assert "new@0 is p@1" in run("fork", "p@1", "new")
    run("score-version", "p@1", "0.75")
    with trained.http() as http:
        found = http.get("/api/policies/p/versions/1").json()
    assert (found["score"], found["scored_by"]) == (0.75, "evaluation")
    failed = CliRunner().invoke(build(), ["export", "p@newest"])
    assert isinstance(failed.exception, ConfigError)


def test_nothing_is_left_on_the_server(trained: TrainerServer, tmp_path: Path) -> None:
    export(trained, tmp_path, "peft")
    assert list((trained.home.root / "exports").glob("*")) == []


def test_what_cannot_be_exported_leaves_nothing_behind(trained: TrainerServer, tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="no version 9"):
        export(trained, tmp_path, "peft", 9)
    with trained.http() as http:
        assert http.get("/api/policies/p/versions/2/export", params={"format": "../x"}).status_code == 422
    assert list(tmp_path.iterdir()) == []


async def test_a_version_that_is_deleted_meanwhile_is_not_found(tmp_path: Path) -> None:
    home = Home(tmp_path)
    store = AdapterStore(home.policies)
    store.register(PolicySpec(name="p"), "base")
    for number in range(2):
        publish(store, "p", number)

    class Deleting(Retention):
        def __init__(self) -> None:
            pass

        @contextmanager
        def hold(self, key: tuple[str, int]) -> Iterator[None]:
            yield
            store.delete(*key)

    async def gone() -> bool:
        return False

    exports = Exports(home, ServedModel("base", str(tmp_path)), store, Deleting())
    with pytest.raises(NotFound, match="p@0 was deleted meanwhile") as error:
        await exports.make("p", 0, "peft", gone)
    assert (error.value.code, answer(error.value).status_code) == ("not_found", 404)
    assert list((tmp_path / "exports").glob("*")) == []


def test_only_a_server_that_trains_deletes_exports_of_an_earlier_one(tmp_path: Path) -> None:
    home = Home(tmp_path)
    left = tmp_path / "exports" / "0123" / "peft"
    left.mkdir(parents=True)
    parts = (home, ServedModel("base", str(tmp_path)), AdapterStore(home.policies), cast(Retention, None))
    exports = Exports(*parts)
    assert left.exists(), "another server of the fleet may be sending it"
    exports.discard_all()
    assert not left.exists()


def test_a_client_that_goes_away_ends_the_merging(trained: TrainerServer) -> None:
    with trained.http() as http, pytest.raises(httpx.ReadTimeout):
        http.get("/api/policies/p/versions/2/export", params={"format": "merged"}, timeout=0.5)
    for _ in range(1000):
        if not list((trained.home.root / "exports").glob("*")):
            break
        asyncio.run(asyncio.sleep(0.05))
    assert list((trained.home.root / "exports").glob("*")) == []
    assert not (trained.home.logs / "export.pid").exists()


FAMILIES: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**SIZES, rope_parameters={"rope_type": "default", "rope_theta": 5e5}),
    "llama_tied": LlamaConfig(**SIZES, tie_word_embeddings=True),
    "llama_bias": LlamaConfig(**SIZES, attention_bias=True),
    "mistral": MistralConfig(**SIZES, sliding_window=None),
    "qwen2": Qwen2Config(**SIZES),
    "qwen3": Qwen3Config(**{**SIZES, "head_dim": 16}),
}


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_families_that_a_gguf_holds(family: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = FAMILIES[family].__class__(**{**FAMILIES[family].to_dict(), "vocab_size": 300})
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                weight.add_(torch.randn_like(weight) * 0.1)
    write_tokenizer(tmp_path)
    write_gguf(model, tmp_path, tmp_path / "model.gguf", name="p@1")
    # What the file says of head sizes and biases, transformers does not read yet; llama.cpp does.
    known = {"config": config} if family in ("llama_bias", "qwen3") else {}
    again = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="model.gguf", dtype=torch.float32, **known)
    assert (logits(again) - logits(model)).abs().max() < 1e-4


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (Gemma2Config(**SIZES), "gemma2"),
        (MistralConfig(**SIZES, sliding_window=16), "sliding window of 16"),
        (LlamaConfig(**SIZES, rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}), "linear"),
    ],
)
def test_what_a_gguf_cannot_hold_is_said(config: PretrainedConfig, reason: str, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_config(config)
    with pytest.raises(ConfigError, match=f"{reason}.*convert_hf_to_gguf"):
        write_gguf(model, tmp_path, tmp_path / "model.gguf", name="p@1")
    assert not (tmp_path / "model.gguf").exists()
