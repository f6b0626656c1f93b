"""Which of vLLM's parsers reads the tool calls and thoughts of which family of models: one entry a family.

What the chat template writes decides more than the family's name: a fine-tune often has another template than its base.
To support another family, add an entry. The first entry that fits a model counts, so specific ones stand first.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainer_server.engines.model_files import ModelFiles


@dataclass(frozen=True, slots=True, kw_only=True)
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
        name="gpt-oss",
        models=("gpt_oss",),
        rendered_by_vllm=True,
        tools=("openai",),
        thinks="",
        reasoning=("openai_gptoss",),
    ),
    Family(name="Kimi K3", writes=("<|open|>", "<|sep|>"), tools=("kimi_k3",), thinks="", reasoning=("kimi_k3",)),
    Family(
        name="Kimi K2",
        writes=("<|tool_calls_section_begin|>",),
        tools=("kimi_k2",),
        reasoning=("kimi_k2", "deepseek_r1"),
    ),
    Family(
        name="DeepSeek V4",
        models=("deepseek_v4",),
        rendered_by_vllm=True,
        tools=("deepseek_v4",),
        thinks="",
        reasoning=("deepseek_v4",),
    ),
    Family(
        name="DeepSeek V3.2",
        models=("deepseek_v32",),
        rendered_by_vllm=True,
        tools=("deepseek_v32",),
        thinks="",
        reasoning=("deepseek_v3", "deepseek_r1"),
    ),
    Family(
        name="DeepSeek V3, R1 and their distillations",
        writes=("<｜tool▁calls▁begin｜>", "```json"),
        tools=("deepseek_v3",),
        reasoning=("deepseek_r1",),
    ),
    Family(
        name="DeepSeek V3.1",
        writes=("<｜tool▁calls▁begin｜>",),
        tools=("deepseek_v31",),
        reasoning=("deepseek_v3", "deepseek_r1"),
    ),
    Family(
        name="MiniMax M3",
        writes=("<tool_call>",),
        models=("minimax_m3",),
        tools=("minimax_m3",),
        thinks="mm:think",
        reasoning=("minimax_m3",),
    ),
    Family(
        name="MiniMax M2",
        writes=("<minimax:tool_call>",),
        tools=("minimax_m2",),
        reasoning=("minimax_m2", "deepseek_r1"),
    ),
    Family(
        name="Seed-OSS", writes=("<seed:tool_call>",), tools=("seed_oss",), thinks="seed:think", reasoning=("seed_oss",)
    ),
    Family(name="Step 3.5", writes=("<function=",), models=("step3p",), tools=("step3p5",), reasoning=("step3p5",)),
    Family(name="Step 3", writes=("steptml:invoke",), tools=("step3",), reasoning=("step3", "deepseek_r1")),
    Family(name="MiMo", writes=("<tool_call>",), models=("mimo",), tools=("mimo", "hermes"), reasoning=("mimo",)),
    Family(
        name="Nemotron 3",
        writes=("<function=",),
        models=("nemotron",),
        tools=("qwen3_coder",),
        reasoning=("nemotron_v3", "deepseek_r1"),
    ),
    Family(
        name="Granite with thoughts (4.2)",
        writes=("<function=",),
        models=("granite",),
        tools=("qwen3_coder",),
        reasoning=("granite_thinking_parser",),
    ),
    Family(
        name="Qwen3-Coder, Qwen 3.5 and later",
        writes=("<function=", "<parameter="),
        tools=("qwen3_coder", "qwen3_xml"),
        reasoning=("qwen3",),
    ),
    Family(name="MiniCPM 5", writes=("<function name=",), tools=("minicpm5",), reasoning=("minicpmv", "qwen3")),
    Family(name="Hunyuan 3", writes=("arg_key",), models=("hy_v3",), tools=("hy_v3",), thinks="", reasoning=("hy_v3",)),
    Family(name="Hunyuan 4", writes=("arg_key",), models=("hy_v4",), tools=("hy_v4",), thinks="", reasoning=("hy_v4",)),
    Family(
        name="Laguna", writes=("<arg_key>",), models=("laguna",), tools=("poolside_v1",), reasoning=("poolside_v1",)
    ),
    Family(name="GLM 4.5 and later", writes=("<arg_key>",), tools=("glm47", "glm45"), reasoning=("glm47", "glm45")),
    Family(
        name="Hunyuan A13B",
        writes=("<tool_calls>",),
        models=("hunyuan",),
        tools=("hunyuan_a13b",),
        thinks="<think>",
        reasoning=("hunyuan_a13b",),
    ),
    Family(name="Jamba", writes=("<tool_calls>",), models=("jamba",), tools=("jamba",)),
    Family(
        name="Granite 3",
        writes=("<|tool_call|>",),
        models=("granite",),
        tools=("granite",),
        thinks="thought process",
        reasoning=("granite",),
    ),
    Family(name="Granite 4", writes=("<tool_call>",), models=("granite",), tools=("granite4", "hermes")),
    Family(
        name="Granite 20B function calling",
        writes=("<function_call>",),
        models=("gpt_bigcode",),
        tools=("granite-20b-fc",),
    ),
    Family(name="ERNIE 4.5", writes=("<tool_call>",), models=("ernie4_5",), tools=("ernie45",), reasoning=("ernie45",)),
    Family(name="Gemma 4", writes=("<|tool_call>",), tools=("gemma4",), thinks="<|channel>", reasoning=("gemma4",)),
    Family(name="FunctionGemma", writes=("<start_function_call>",), tools=("functiongemma",)),
    Family(name="Mistral", writes=("[TOOL_CALLS]",), tools=("mistral",), thinks="[THINK]", reasoning=("mistral",)),
    Family(name="xLAM", writes=("single JSON array",), tools=("xlam",)),
    Family(name="Llama 4", writes=('"parameters": ',), models=("llama4",), tools=("llama4_json", "llama3_json")),
    Family(name="Llama 4, pythonic", writes=("<|python_start|>",), tools=("llama4_pythonic", "pythonic")),
    Family(name="Llama 3", writes=('"parameters": ',), models=("llama", "mllama"), tools=("llama3_json",)),
    Family(name="pythonic calls (ToolACE, Llama 3.2)", writes=("func_name1(",), tools=("pythonic",)),
    Family(name="OLMo 3", writes=("<function_calls>",), tools=("olmo3",), reasoning=("olmo3", "deepseek_r1")),
    Family(name="InternLM 2", writes=("<|plugin|>",), tools=("internlm",)),
    Family(name="LFM 2", writes=("<|tool_list_start|>",), tools=("lfm2",), reasoning=()),
    Family(name="LFM 2", writes=("<|tool_call_start|>",), tools=("lfm2",), reasoning=()),
    Family(name="LongCat", writes=("<longcat_tool_call>",), tools=("longcat",)),
    Family(name="Apertus", writes=("<|tools_prefix|>",), tools=("apertus",)),
    Family(name="dots", writes=("<dots_function_call>",), tools=("dots",)),
    Family(
        name="Cohere Command",
        writes=("<|START_ACTION|>",),
        tools=("cohere_command3",),
        thinks="<|START_THINKING|>",
        reasoning=("cohere_command3",),
    ),
    Family(name="GigaChat 3", writes=("<|function_call|>",), tools=("gigachat3",)),
    Family(
        name="PLaMo 3",
        writes=("<|plamo:begin_tool_request",),
        tools=("plamo3",),
        thinks="<|plamo:begin_think",
        reasoning=("plamo3",),
    ),
    Family(
        name="Muse Glimmer",
        writes=("<atem:function_calls>",),
        tools=("muse_glimmer",),
        thinks="to=self",
        reasoning=("muse_glimmer",),
    ),
    Family(name="K2 Horizon", writes=("<ifm|tool_call>",), tools=("k2_horizon",), thinks="", reasoning=("k2_horizon",)),
    Family(
        name="Inkling",
        models=("inkling",),
        rendered_by_vllm=True,
        tools=("inkling",),
        thinks="",
        reasoning=("inkling",),
    ),
    Family(name="Phi-4-mini", writes=("<|tool|>",), models=("phi",), tools=("phi4_mini_json",)),
    Family(name="Qwen 3", writes=("<tool_call>",), models=("qwen3",), tools=("hermes",), reasoning=("qwen3",)),
    Family(name="SmolLM 3", writes=("<tool_call>",), models=("smollm3",), tools=("hermes",), reasoning=("qwen3",)),
    Family(name="Hermes format (Hermes, Qwen 2.5, SmolLM 2 and others)", writes=("<tool_call>",), tools=("hermes",)),
)
"""All families, the most specific ones first."""

THOUGHTS = (
    Thoughts(("</think>", "enable_thinking"), prompted=False, reasoning=("qwen3", "deepseek_r1")),
    Thoughts(("</think>",), prompted=True, reasoning=("deepseek_r1",)),
    Thoughts(("[THINK]",), prompted=False, reasoning=("mistral",)),
)
"""Thoughts of models without a family in FAMILIES, or of a family that says nothing of thoughts."""
