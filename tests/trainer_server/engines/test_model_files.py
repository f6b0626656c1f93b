"""What a model's directory says of it without its weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.homes.model_directories import model_directory
from trainer_server.engines.model_files import ModelFiles
from trainer_server.wire import ConfigError


@pytest.mark.parametrize(
    ("config", "tokens"),
    [
        ({"max_position_embeddings": 4096}, 4096),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 2.0}}, 8192),
        ({"max_position_embeddings": 4096, "rope_parameters": {"rope_type": "dynamic", "factor": 4.0}}, 16384),
        ({"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 131072),
        ({"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, 131072),
        (
            {
                "max_position_embeddings": 131072,
                "original_max_position_embeddings": 4096,
                "rope_scaling": {"type": "longrope"},
            },
            4096,
        ),
        ({"text_config": {"max_position_embeddings": 512}}, 512),
        ({"n_positions": 1024}, 1024),
        ({}, None),
    ],
)
def test_the_context_is_that_of_the_configuration(tmp_path: Path, config: dict[str, Any], tokens: int | None) -> None:
    assert ModelFiles(model_directory(tmp_path, **config)).context == tokens


def test_a_template_of_its_own_file_counts_more_than_that_of_the_tokenizer(tmp_path: Path) -> None:
    where = model_directory(tmp_path, None)
    assert ModelFiles(where).template == ""
    (where / "tokenizer_config.json").write_text(json.dumps({"chat_template": "old {{ tools }}"}))
    assert ModelFiles(where).template == "old {{ tools }}"
    assert ModelFiles(where).shows_tools
    (where / "chat_template.jinja").write_text("new {{ message.tool_calls }}")
    assert ModelFiles(where).template == "new {{ message.tool_calls }}"
    assert not ModelFiles(where).shows_tools, "calls of earlier turns are no tools that can be called"
    assert ModelFiles(where, "given").template == "given"


def test_tokens_are_added_ones_and_those_of_the_vocabulary(tmp_path: Path) -> None:
    where = model_directory(tmp_path, tokens=["<think>"])
    assert (ModelFiles(where).has_token("<think>"), ModelFiles(where).has_token("</think>")) == (True, False)
    (where / "tokenizer.json").write_text(json.dumps({"model": {"vocab": [["</think>", -1.0]]}}))
    assert ModelFiles(where).has_token("</think>")
    (where / "tokenizer.json").unlink()
    assert ModelFiles(where).has_token("<think>") is None, "a tokenizer in another format is not read"


def test_answers_end_with_tokens_of_both_configurations(tmp_path: Path) -> None:
    where = model_directory(tmp_path, eos_token_id=2)
    (where / "generation_config.json").write_text('{"eos_token_id": [7, 8]}')
    assert ModelFiles(where).end_tokens == {2, 7, 8}


def test_a_file_that_is_no_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"config\.json is not JSON"):
        _ = ModelFiles(tmp_path).config
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ConfigError, match=r"config\.json holds no JSON object"):
        _ = ModelFiles(tmp_path).config


def test_linear_layers_are_those_of_the_weights(tmp_path: Path) -> None:
    def layers(names: dict[str, list[int]], **config: Any) -> tuple[str, ...]:
        header = {name: {"dtype": "BF16", "shape": shape, "data_offsets": [0, 0]} for name, shape in names.items()}
        content = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
        where = model_directory(tmp_path, **config)
        (where / "model.safetensors").write_bytes(len(content).to_bytes(8, "little") + content)
        return ModelFiles(where).linear_layers

    text = {
        "model.layers.0.self_attn.q_proj.weight": [8, 8],
        "model.layers.1.linear_attn.in_proj_qkv.weight": [8, 8],
        "model.layers.1.linear_attn.conv1d.weight": [8, 1, 4],
        "model.layers.0.input_layernorm.weight": [8],
        "model.layers.0.self_attn.kv_b_proj.weight": [8, 8],
        "model.layers.0.mlp.mix.weight": [8, 8],
        "model.embed_tokens.weight": [99, 8],
    }
    assert layers(text) == ("q_proj", "in_proj_qkv", "mix")
    assert layers({**text, "model.visual.blocks.0.attn.proj.weight": [8, 8]}) == ("q_proj", "in_proj_qkv", "mix")
    assert layers({**text, "model.layers.0.mlp.experts.0.up_proj.weight": [8, 8]}) == ("q_proj", "in_proj_qkv")
    assert layers({"lm_head.weight": [9, 8]}) == ()
    assert ModelFiles(tmp_path / "none").linear_layers == ()


def test_a_model_that_reads_videos_is_told_by_its_tokens(tmp_path: Path) -> None:
    assert ModelFiles(model_directory(tmp_path, video_token_id=7)).reads_videos
    assert not ModelFiles(model_directory(tmp_path, image_token_id=7)).reads_videos
