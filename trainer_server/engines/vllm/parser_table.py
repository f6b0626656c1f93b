"""Which of vLLM's parsers reads the tool calls and thoughts of which family of models: one entry a family.

What the chat template writes decides more than the family's name: a fine-tune often has another template than its base.
To support another family, add an entry. The first entry that fits a model counts, so specific ones stand first.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainer_server.engines.model_files import ModelFiles


@dataclass(frozen=True, slots=True)
class Family:
    """How models of one family write tool calls and thoughts.

    Args:
        name: Names the family in messages and in docs/models/parsers.md.
        writes: Texts that the chat template must have, all of them.
        models: Beginnings of `model_type` that belong to the family; empty: any model.
        rendered_by_vllm: Whether vLLM renders these models itself, so that no chat template is needed.
        tools: Parsers of tool calls, the best first; a later one is used if the installed vLLM lacks the earlier ones.
        thinks: A text in the chat template that tells of thoughts; empty: the model's type alone does.
        reasoning: Parsers of thoughts, the best first. None: decided by `THOUGHTS`. Empty: never parsed by default,
            because models of this family with the same template may think or not.
    """

    name: str
    writes: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    rendered_by_vllm: bool = False
    tools: tuple[str, ...] = ()
    thinks: str = "</think>"
    reasoning: tuple[str, ...] | None = None

    def fits(self, files: ModelFiles) -> bool:
        """Whether a model belongs to the family."""
        if self.models and not files.model_type.startswith(self.models):
            return False
        return self.rendered_by_vllm or all(text in files.template for text in self.writes)


@dataclass(frozen=True, slots=True)
class Thoughts:
    """How models that no family speaks for write thoughts.

    Args:
        writes: Texts that the chat template must have, all of them.
        prompted: Whether the template must open the thought itself, at the start of each answer. Without that, answers
            of a model that thinks only sometimes would be taken for thoughts as a whole.
        reasoning: Parsers of thoughts, the best first.
    """

    writes: tuple[str, ...]
    prompted: bool
    reasoning: tuple[str, ...]

    def fits(self, files: ModelFiles) -> bool:
        """Whether a model's template writes thoughts this way."""
        if not all(text in files.template for text in self.writes):
            return False
        _, _, prompt = files.template.rpartition("add_generation_prompt")
        return not self.prompted or "<think>" in prompt


FAMILIES = (
    Family(
        "gpt-oss",
        models=("gpt_oss",),
        rendered_by_vllm=True,
        tools=("openai",),
        thinks="",
        reasoning=("openai_gptoss",),
    ),
    Family("Kimi K3", ("<|open|>", "<|sep|>"), tools=("kimi_k3",), thinks="", reasoning=("kimi_k3",)),
    Family("Kimi K2", ("<|tool_calls_section_begin|>",), tools=("kimi_k2",), reasoning=("kimi_k2", "deepseek_r1")),
    Family(
        "DeepSeek V4",
        models=("deepseek_v4",),
        rendered_by_vllm=True,
        tools=("deepseek_v4",),
        thinks="",
        reasoning=("deepseek_v4",),
    ),
    Family(
        "DeepSeek V3.2",
        models=("deepseek_v32",),
        rendered_by_vllm=True,
        tools=("deepseek_v32",),
        thinks="",
        reasoning=("deepseek_v3", "deepseek_r1"),
    ),
    Family(
        "DeepSeek V3, R1 and their distillations",
        ("<｜tool▁calls▁begin｜>", "```json"),
        tools=("deepseek_v3",),
        reasoning=("deepseek_r1",),
    ),
    Family(
        "DeepSeek V3.1", ("<｜tool▁calls▁begin｜>",), tools=("deepseek_v31",), reasoning=("deepseek_v3", "deepseek_r1")
    ),
    Family(
        "MiniMax M3",
        ("<tool_call>",),
        models=("minimax_m3",),
        tools=("minimax_m3",),
        thinks="mm:think",
        reasoning=("minimax_m3",),
    ),
    Family("MiniMax M2", ("<minimax:tool_call>",), tools=("minimax_m2",), reasoning=("minimax_m2", "deepseek_r1")),
    Family("Seed-OSS", ("<seed:tool_call>",), tools=("seed_oss",), thinks="seed:think", reasoning=("seed_oss",)),
    Family("Step 3.5", ("<function=",), models=("step3p",), tools=("step3p5",), reasoning=("step3p5",)),
    Family("Step 3", ("steptml:invoke",), tools=("step3",), reasoning=("step3", "deepseek_r1")),
    Family("MiMo", ("<tool_call>",), models=("mimo",), tools=("mimo", "hermes"), reasoning=("mimo",)),
    Family(
        "Nemotron 3",
        ("<function=",),
        models=("nemotron",),
        tools=("qwen3_coder",),
        reasoning=("nemotron_v3", "deepseek_r1"),
    ),
    Family(
        "Granite with thoughts (4.2)",
        ("<function=",),
        models=("granite",),
        tools=("qwen3_coder",),
        reasoning=("granite_thinking_parser",),
    ),
    Family(
        "Qwen3-Coder, Qwen 3.5 and later",
        ("<function=", "<parameter="),
        tools=("qwen3_coder", "qwen3_xml"),
        reasoning=("qwen3",),
    ),
    Family("MiniCPM 5", ("<function name=",), tools=("minicpm5",), reasoning=("minicpmv", "qwen3")),
    Family("Hunyuan 3", ("arg_key",), models=("hy_v3",), tools=("hy_v3",), thinks="", reasoning=("hy_v3",)),
    Family("Hunyuan 4", ("arg_key",), models=("hy_v4",), tools=("hy_v4",), thinks="", reasoning=("hy_v4",)),
    Family("Laguna", ("<arg_key>",), models=("laguna",), tools=("poolside_v1",), reasoning=("poolside_v1",)),
    Family("GLM 4.5 and later", ("<arg_key>",), tools=("glm47", "glm45"), reasoning=("glm47", "glm45")),
    Family(
        "Hunyuan A13B",
        ("<tool_calls>",),
        models=("hunyuan",),
        tools=("hunyuan_a13b",),
        thinks="<think>",
        reasoning=("hunyuan_a13b",),
    ),
    Family("Jamba", ("<tool_calls>",), models=("jamba",), tools=("jamba",)),
    Family(
        "Granite 3",
        ("<|tool_call|>",),
        models=("granite",),
        tools=("granite",),
        thinks="thought process",
        reasoning=("granite",),
    ),
    Family("Granite 4", ("<tool_call>",), models=("granite",), tools=("granite4", "hermes")),
    Family("Granite 20B function calling", ("<function_call>",), models=("gpt_bigcode",), tools=("granite-20b-fc",)),
    Family("ERNIE 4.5", ("<tool_call>",), models=("ernie4_5",), tools=("ernie45",), reasoning=("ernie45",)),
    Family("Gemma 4", ("<|tool_call>",), tools=("gemma4",), thinks="<|channel>", reasoning=("gemma4",)),
    Family("FunctionGemma", ("<start_function_call>",), tools=("functiongemma",)),
    Family("Mistral", ("[TOOL_CALLS]",), tools=("mistral",), thinks="[THINK]", reasoning=("mistral",)),
    Family("xLAM", ("single JSON array",), tools=("xlam",)),
    Family("Llama 4", ('"parameters": ',), models=("llama4",), tools=("llama4_json", "llama3_json")),
    Family("Llama 4, pythonic", ("<|python_start|>",), tools=("llama4_pythonic", "pythonic")),
    Family("Llama 3", ('"parameters": ',), models=("llama", "mllama"), tools=("llama3_json",)),
    Family("pythonic calls (ToolACE, Llama 3.2)", ("func_name1(",), tools=("pythonic",)),
    Family("OLMo 3", ("<function_calls>",), tools=("olmo3",), reasoning=("olmo3", "deepseek_r1")),
    Family("InternLM 2", ("<|plugin|>",), tools=("internlm",)),
    Family("LFM 2", ("<|tool_list_start|>",), tools=("lfm2",), reasoning=()),
    Family("LFM 2", ("<|tool_call_start|>",), tools=("lfm2",), reasoning=()),
    Family("LongCat", ("<longcat_tool_call>",), tools=("longcat",)),
    Family("Apertus", ("<|tools_prefix|>",), tools=("apertus",)),
    Family("dots", ("<dots_function_call>",), tools=("dots",)),
    Family(
        "Cohere Command",
        ("<|START_ACTION|>",),
        tools=("cohere_command3",),
        thinks="<|START_THINKING|>",
        reasoning=("cohere_command3",),
    ),
    Family("GigaChat 3", ("<|function_call|>",), tools=("gigachat3",)),
    Family(
        "PLaMo 3",
        ("<|plamo:begin_tool_request",),
        tools=("plamo3",),
        thinks="<|plamo:begin_think",
        reasoning=("plamo3",),
    ),
    Family(
        "Muse Glimmer",
        ("<atem:function_calls>",),
        tools=("muse_glimmer",),
        thinks="to=self",
        reasoning=("muse_glimmer",),
    ),
    Family("K2 Horizon", ("<ifm|tool_call>",), tools=("k2_horizon",), thinks="", reasoning=("k2_horizon",)),
    Family(
        "Inkling", models=("inkling",), rendered_by_vllm=True, tools=("inkling",), thinks="", reasoning=("inkling",)
    ),
    Family("Phi-4-mini", ("<|tool|>",), models=("phi",), tools=("phi4_mini_json",)),
    Family("Qwen 3", ("<tool_call>",), models=("qwen3",), tools=("hermes",), reasoning=("qwen3",)),
    Family("SmolLM 3", ("<tool_call>",), models=("smollm3",), tools=("hermes",), reasoning=("qwen3",)),
    Family("Hermes format (Hermes, Qwen 2.5, SmolLM 2 and others)", ("<tool_call>",), tools=("hermes",)),
)
"""All families, the most specific ones first."""

THOUGHTS = (
    Thoughts(("</think>", "enable_thinking"), prompted=False, reasoning=("qwen3", "deepseek_r1")),
    Thoughts(("</think>",), prompted=True, reasoning=("deepseek_r1",)),
    Thoughts(("[THINK]",), prompted=False, reasoning=("mistral",)),
)
"""Thoughts of models without a family in FAMILIES, or of a family that says nothing of thoughts."""
