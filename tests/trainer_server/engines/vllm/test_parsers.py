"""Which of vLLM's parsers a model gets: by what its chat template writes, by its family, or as the user says."""

from __future__ import annotations

import dataclasses
import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.homes.model_directories import TOOLS_SHOWN, VLLM, installed_vllm, model_directory
from trainer_server.engines.model_files import ModelFiles
from trainer_server.engines.vllm.parser_table import FAMILIES
from trainer_server.engines.vllm.parsers import argument, check_parser_names, choose_parsers, parsers_of
from trainer_server.wire import ConfigError, EngineError

HERMES = "<tool_call>{{ call | tojson }}</tool_call>"
JSON_BLOCK = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ name }}\n```json\n{{ args }}\n```"
XML = "<tool_call><function={{ name }}><parameter={{ key }}>{{ value }}</parameter></function></tool_call>"
THINK = "<think>{{ thought }}</think>"
HYBRID = "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
OPENED = "{% if add_generation_prompt %}<|assistant|><think>\n{% endif %}"

FAMILY_TEMPLATES = [
    ("qwen2", HERMES, "hermes", None),
    ("qwen3", HERMES + THINK + HYBRID, "hermes", "qwen3"),
    ("qwen3_moe", HERMES, "hermes", None),  # the instruct models of July 2025 do not think
    ("qwen3_moe", XML, "qwen3_coder", None),
    ("qwen3_5", XML + THINK, "qwen3_coder", "qwen3"),
    ("qwen2", HERMES + "</think>" + OPENED, "hermes", "deepseek_r1"),  # QwQ
    ("llama", '{"name": "{{ name }}", "parameters": {{ args }}}', "llama3_json", None),
    ("llama4", '<|python_start|>{"name": "{{ name }}", "parameters": {{ args }}}', "llama4_json", None),
    ("llama4", "<|python_start|>[{{ call }}]<|python_end|>", "llama4_pythonic", None),
    ("llama", HERMES, "hermes", None),  # Hermes 3 has another template than its base
    ("llama", JSON_BLOCK + "</think>" + OPENED, "deepseek_v3", "deepseek_r1"),  # a distillation of R1
    ("deepseek_v3", JSON_BLOCK, "deepseek_v3", None),
    ("deepseek_v3", "<｜tool▁calls▁begin｜>{{ name }}<｜tool▁sep｜>{{ args }}" + THINK, "deepseek_v31", "deepseek_v3"),
    ("mistral", "[TOOL_CALLS][{{ call | tojson }}]", "mistral", None),
    ("mistral3", "[TOOL_CALLS]{{ name }}[ARGS]{{ args }}[THINK]{{ thought }}[/THINK]", "mistral", "mistral"),
    (
        "gemma3_text",
        "<start_function_call>call:{{ name }}{% raw %}{}{% endraw %}<end_function_call>",
        "functiongemma",
        None,
    ),
    ("gemma4", "<|tool_call>call:{{ name }}<tool_call|><|channel>thought\n{{ thought }}<channel|>", "gemma4", "gemma4"),
    ("granite", "<|tool_call|>{{ calls | tojson }} Here is my thought process:", "granite", "granite"),
    ("granitemoehybrid", HERMES, "granite4", None),
    ("phi3", "<|tool|>{{ message.tools }}<|/tool|>", "phi4_mini_json", None),
    ("phi3", THINK + OPENED, None, "deepseek_r1"),  # Phi-4-reasoning
    ("glm4_moe", "<tool_call>{{ name }}<arg_key>{{ key }}</arg_key></tool_call>" + THINK, "glm47", "glm45"),
    ("kimi_k2", "<|tool_calls_section_begin|>{{ calls }}<|tool_calls_section_end|>", "kimi_k2", None),
    ("smollm3", HERMES + THINK + HYBRID, "hermes", "qwen3"),
    (
        "minimax_m2",
        "<minimax:tool_call><invoke name={{ name }}></minimax:tool_call>" + THINK,
        "minimax_m2",
        "minimax_m2",
    ),
    ("hunyuan_v1_moe", "<tool_calls>{{ calls }}</tool_calls>" + THINK, "hunyuan_a13b", "hunyuan_a13b"),
    ("jamba", "<tool_calls>{{ calls }}</tool_calls>", "jamba", None),
    ("ernie4_5_moe", HERMES + THINK, "ernie45", "ernie45"),
    ("seed_oss", "<seed:tool_call>{{ call }}</seed:tool_call><seed:think>", "seed_oss", "seed_oss"),
    ("olmo3", "<function_calls>{{ calls }}</function_calls>" + THINK, "olmo3", "olmo3"),
    ("lfm2", "<|tool_call_start|>[{{ call }}]<|tool_call_end|>" + THINK, "lfm2", None),
    ("nemotron_h", XML + THINK, "qwen3_coder", "nemotron_v3"),
    ("llama", "make calls in a single JSON array", "xlam", None),
    ("llama", "[func_name1(params_name1=params_value1), func_name2(params)]", "pythonic", None),
]
"""(model_type, what the template writes, parser of tool calls, parser of thoughts)."""


def files(where: Path, template: str | None, **config: object) -> ModelFiles:
    return ModelFiles(model_directory(where, template, **config))


@pytest.mark.parametrize(("kind", "template", "tools", "reasoning"), FAMILY_TEMPLATES)
def test_what_the_template_writes_decides(
    tmp_path: Path, kind: str, template: str, tools: str | None, reasoning: str | None
) -> None:
    chosen = choose_parsers(files(tmp_path, TOOLS_SHOWN + template, model_type=kind), VLLM)
    assert (chosen.tools.name, chosen.reasoning.name) == (tools, reasoning)


def test_gpt_oss_needs_no_template(tmp_path: Path) -> None:
    chosen = choose_parsers(files(tmp_path, None, model_type="gpt_oss"), VLLM)
    assert chosen.lines() == [
        "tools: openai, since the model is of the family gpt-oss",
        "reasoning: openai_gptoss, since the model is gpt_oss",
    ]


def test_the_choice_says_why(tmp_path: Path) -> None:
    chosen = choose_parsers(files(tmp_path, TOOLS_SHOWN + HERMES, model_type="llama"), VLLM)
    assert chosen.lines() == [
        "tools: hermes, since the chat template writes <tool_call>",
        "reasoning: none, since the chat template writes no thoughts",
    ]
    assert chosen.flags == ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]


@pytest.mark.parametrize(
    ("template", "why"),
    [
        (None, "the model has no chat template"),
        ("{{ messages }}", "the chat template does not show tools to the model"),
        ("{{ tools }} CALL! {{ name }}", "a form that is not in our table; --tool-call-parser names one"),
    ],
)
def test_a_model_of_an_unknown_family_starts_without(tmp_path: Path, template: str | None, why: str) -> None:
    chosen = choose_parsers(files(tmp_path, template, model_type="heron"), VLLM)
    assert (chosen.tools.name, chosen.flags, chosen.family) == (None, [], None)
    assert chosen.tools.why.endswith(why)


def test_a_parser_that_the_installed_vllm_lacks_falls_back_with_a_sentence(tmp_path: Path) -> None:
    old = dataclasses.replace(VLLM, version="0.1", tool_parsers={"hermes": ()})
    granite = files(tmp_path, TOOLS_SHOWN + HERMES, model_type="granite")
    assert str(choose_parsers(granite, old).tools) == (
        "hermes, since the chat template writes <tool_call>; granite4 would fit better, and the installed vLLM 0.1 "
        "does not have it"
    )
    mistral = files(tmp_path / "mistral", TOOLS_SHOWN + "[TOOL_CALLS]", model_type="mistral")
    assert str(choose_parsers(mistral, old).tools).endswith("the installed vLLM 0.1 has no parser for it (mistral)")


def test_a_parser_whose_tokens_the_tokenizer_lacks_is_not_taken(tmp_path: Path) -> None:
    """vLLM would not start with it."""
    template = TOOLS_SHOWN + '"parameters": ' + THINK + OPENED
    for tokens, tools, reasoning in (
        ((), None, None),
        (("<|python_tag|>", "<think>", "</think>"), "llama3_json", "deepseek_r1"),
    ):
        found = ModelFiles(model_directory(tmp_path / str(len(tokens)), template, tokens=tokens, model_type="llama"))
        chosen = choose_parsers(found, VLLM)
        assert (chosen.tools.name, chosen.reasoning.name) == (tools, reasoning)
        if not tokens:
            assert "<|python_tag|> is no token of the tokenizer" in chosen.tools.why


def test_a_named_parser_whose_tokens_the_tokenizer_lacks_is_refused(tmp_path: Path) -> None:
    llama = ModelFiles(model_directory(tmp_path, TOOLS_SHOWN, tokens=["<think>"], model_type="llama"))
    said = r"--tool-call-parser llama3_json: this parser needs the token <\|python_tag\|>, which the model's tokenizer"
    for asked in ({"tools": "llama3_json"}, {"args": ("--tool-call-parser", "llama3_json")}):
        with pytest.raises(ConfigError, match=said):
            choose_parsers(llama, VLLM, **asked)  # type: ignore[arg-type]  # mypy reads one type for both
    with pytest.raises(ConfigError, match="--reasoning-parser deepseek_r1: this parser needs the token </think>"):
        choose_parsers(llama, VLLM, reasoning="deepseek_r1")
    plugged = choose_parsers(llama, VLLM, args=("--tool-call-parser=llama3_json", "--tool-parser-plugin=ours.py"))
    assert plugged.tools.name == "llama3_json"


def test_thoughts_that_may_be_missing_are_left_in_the_text(tmp_path: Path) -> None:
    """A parser would take whole answers without a thought for thoughts."""
    chosen = choose_parsers(files(tmp_path, HERMES + "{{ text.split('</think>')[-1] }}", model_type="qwen2"), VLLM)
    assert chosen.reasoning.name is None
    assert "--reasoning-parser names one" in chosen.reasoning.why


def test_the_user_decides(tmp_path: Path) -> None:
    model = files(tmp_path, TOOLS_SHOWN + HERMES + THINK, model_type="qwen3")
    named = choose_parsers(model, VLLM, tools="pythonic", reasoning="deepseek_r1")
    assert named.flags == [
        "--enable-auto-tool-choice",
        "--tool-call-parser",
        "pythonic",
        "--reasoning-parser",
        "deepseek_r1",
    ]
    assert choose_parsers(model, VLLM, tools="none", reasoning="none").flags == []
    by_args = choose_parsers(model, VLLM, args=("--tool-call-parser=mistral", "--seed", "1"))
    assert str(by_args.tools) == "mistral, since --engine-args name it"
    assert argument(("--a", "1", "--a", "2"), "--a") == "2"


def test_whether_a_grammar_constrains_all_calls_is_known(tmp_path: Path) -> None:
    model = files(tmp_path, TOOLS_SHOWN + HERMES, model_type="qwen3")
    assert not choose_parsers(model, VLLM).constrains_calls
    assert choose_parsers(model, VLLM, tools="glm47").constrains_calls
    assert choose_parsers(model, VLLM, args=("--tool-strict-level", "function")).constrains_calls
    assert not choose_parsers(model, VLLM, args=("--tool-strict-level=auto",)).constrains_calls


def test_a_template_in_the_engine_args_decides_too(tmp_path: Path) -> None:
    model = files(tmp_path / "model", "{{ messages }}", model_type="gemma3_text")
    other = tmp_path / "pythonic.jinja"
    other.write_text(TOOLS_SHOWN + "[func_name1(")
    assert choose_parsers(model, VLLM, args=("--chat-template", str(other))).tools.name == "pythonic"
    with pytest.raises(ConfigError, match=r"--chat-template .*none\.jinja: No such file"):
        choose_parsers(model, VLLM, args=("--chat-template", str(tmp_path / "none.jinja")))


def test_an_unknown_name_is_answered_with_the_list(tmp_path: Path) -> None:
    installed_vllm(tmp_path)
    check_parser_names(tmp_path, tools="auto", reasoning="none")
    with pytest.raises(ConfigError) as refused:
        check_parser_names(tmp_path, tools="herms", reasoning="auto")
    assert "--tool-call-parser herms: the installed vLLM has no such parser. Did you mean hermes?" in str(refused.value)
    assert "llama3_json, llama4_json" in str(refused.value)
    with pytest.raises(ConfigError, match="--reasoning-parser hermes: the installed vLLM has no such parser"):
        check_parser_names(tmp_path, tools="hermes", reasoning="hermes")


def test_a_vllm_that_does_not_say_its_names_gets_the_best_choice(tmp_path: Path) -> None:
    installed_vllm(tmp_path, script="echo what?")
    (tmp_path / "engine" / "art-registry.json").unlink()
    where = model_directory(tmp_path / "model", TOOLS_SHOWN + HERMES, model_type="llama")
    assert parsers_of(where, tmp_path).tools.name == "hermes"
    with pytest.raises(EngineError, match="does not say which parsers and models it knows"):
        parsers_of(where, tmp_path, tools="pythonic")


def test_of_several_templates_that_for_tools_counts(tmp_path: Path) -> None:
    where = model_directory(tmp_path, None, model_type="llama")
    templates = [{"name": "default", "template": "{{ messages }}"}, {"name": "tool_use", "template": HERMES}]
    (where / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))
    assert choose_parsers(ModelFiles(where), VLLM).tools.name == "hermes"


REAL = {
    "deepseek_r1_distill": ("qwen2", "deepseek_v3", "deepseek_r1"),
    "deepseekv3": ("deepseek_v3", "deepseek_v3", "deepseek_r1"),
    "gemma3": ("gemma3_text", None, None),
    "glm4moe": ("glm4_moe", "glm47", "glm45"),
    "gptoss": ("gpt_oss", "openai", "openai_gptoss"),
    "llama3": ("llama", None, None),
    "llama3_1": ("llama", "llama3_json", None),
    "llama3_2": ("llama", "llama3_json", None),
    "qwen2_5": ("qwen2", "hermes", None),
    "qwen3": ("qwen3", "hermes", "qwen3"),
    "qwen3_instruct_2507": ("qwen3", "hermes", None),
}
"""Chat templates of real models that TRL carries: (model_type, parser of tool calls, parser of thoughts)."""


@pytest.mark.parametrize("name", REAL)
def test_real_templates_are_recognized(tmp_path: Path, name: str) -> None:
    spec = find_spec("trl")
    assert spec
    assert spec.submodule_search_locations
    template = Path(spec.submodule_search_locations[0]) / "chat_templates" / f"{name}.jinja"
    if not template.exists():
        pytest.skip(f"this version of TRL has no {template.name}")
    kind, tools, reasoning = REAL[name]
    chosen = choose_parsers(files(tmp_path, template.read_text(), model_type=kind), VLLM)
    assert (chosen.tools.name, chosen.reasoning.name) == (tools, reasoning)


def test_entries_of_the_table_can_be_reached() -> None:
    """An entry after one that fits everything that it fits is dead."""
    for at, later in enumerate(FAMILIES):
        for earlier in FAMILIES[:at]:
            wider = not earlier.models or (later.models and set(later.models) <= set(earlier.models))
            assert not (wider and later.writes and earlier.writes and set(earlier.writes) <= set(later.writes)), (
                f"{earlier.name} hides {later.name}"
            )
