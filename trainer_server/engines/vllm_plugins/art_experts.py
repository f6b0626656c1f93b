"""vLLM's `--enable-return-routed-experts` on CPUs.

Stock vLLM has it in its second model runner, which needs Triton, and refuses the flag on CPUs. There the experts of a
step are kept by the places of its tokens in the KV cache: a token that the prefix cache gives to a later request has,
at its place, the experts of the request that computed it. An answer reads them along its blocks.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from art_parts import harmless, have

FEATURE = "experts of mixtures in answers on CPUs"
_RUNNER = "vllm.v1.worker.cpu_model_runner:CPUModelRunner"
PARTS = {
    FEATURE: (
        "vllm.config.vllm:VllmConfig._verify_aux_output_compatibility()",
        "vllm.distributed.aux_output_connector.connector:AuxRequestOutput",
        "vllm.model_executor.layers.fused_moe.routed_experts_capturer:RoutedExpertsCapturer",
        "vllm.model_executor.layers.fused_moe.routed_experts_capturer:bind_routed_experts_capturer(model, capturer)",
        f"{_RUNNER}.sample_tokens(grammar_output)",
        f"{_RUNNER}.self.execute_model_state",
        f"{_RUNNER}.self.input_batch",
        f"{_RUNNER}.self.requests",
        f"{_RUNNER}.self.kv_cache_config",
        f"{_RUNNER}.self.max_num_tokens",
        f"{_RUNNER}.initialize_kv_cache(kv_cache_config)",
        "vllm.v1.kv_cache_interface:FullAttentionSpec",
    ),
}
CPU_ONLY = (FEATURE,)


class Experts:
    """The experts of all tokens in the KV cache.

    Args:
        runner: vLLM's CPUModelRunner, with its KV cache.
        group: Number of the KV cache's group whose places count: one that forgets no token of a running request.
    """

    def __init__(self, runner: Any, group: int) -> None:
        from vllm.model_executor.layers.fused_moe.routed_experts_capturer import (
            RoutedExpertsCapturer,
            bind_routed_experts_capturer,
        )

        self._capturer = RoutedExpertsCapturer(runner.max_num_tokens, runner.vllm_config)
        bind_routed_experts_capturer(runner.model, self._capturer)
        self._group, cache = group, runner.kv_cache_config
        self._block = runner.input_batch.block_table[group].block_size
        places = cache.num_blocks * cache.kv_cache_groups[group].kv_cache_spec.block_size
        dtype = np.dtype(self._capturer.output_dtype_name)
        self._rows = np.zeros((places, *self._capturer.shape_per_token), dtype=dtype)
        self._next: dict[str, int] = {}
        """By request: the first token whose experts were not sent yet."""

    def output(self, runner: Any, schedule: Any) -> dict[str, Any]:
        """By request: the experts that vLLM's scheduler waits for. Called after the forward pass of a step.

        Args:
            runner: vLLM's, with the step's batch.
            schedule: Its SchedulerOutput.
        """
        from vllm.distributed.aux_output_connector.connector import AuxRequestOutput

        table, batch = runner.input_batch.block_table[self._group], runner.input_batch
        count = schedule.total_num_scheduled_tokens
        self._rows[table.slot_mapping.gpu[:count].numpy()] = self._capturer.snapshot_routing_data(count).numpy()
        for request in schedule.finished_req_ids:
            self._next.pop(request, None)
        outputs = {}
        for request, tokens in schedule.num_scheduled_tokens.items():
            index = batch.req_id_to_index[request]
            end = int(batch.num_computed_tokens_cpu[index]) + tokens
            if end < runner.requests[request].num_tokens:  # a part of the prompt: nothing is sampled
                continue
            start = self._next.get(request, 0)
            at = np.arange(start, end)
            places = table.get_numpy_array()[index][at // self._block] * self._block + at % self._block
            outputs[request] = AuxRequestOutput(start, self._rows[places])
            self._next[request] = end
        return outputs


@harmless
def register() -> None:
    """Puts this into vLLM. Called by vLLM in every process."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu() or not have(FEATURE, PARTS):
        return
    from vllm.config.vllm import VllmConfig
    from vllm.v1.kv_cache_interface import FullAttentionSpec
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    verify = VllmConfig._verify_aux_output_compatibility
    initialize, sample = CPUModelRunner.initialize_kv_cache, CPUModelRunner.sample_tokens

    @functools.wraps(verify)
    def verify_but_the_runner(self: Any) -> None:
        if not self.aux_output_config.enabled:
            return
        if not self.model_config.is_moe or not self.cache_config.enable_prefix_caching or self.speculative_config:
            raise ValueError(
                "--enable-return-routed-experts is for mixtures of experts, with a prefix cache and without "
                "speculative decoding"
            )

    @functools.wraps(initialize)
    def initialize_kv_cache(self: Any, kv_cache_config: Any, *args: Any, **kwargs: Any) -> None:
        initialize(self, kv_cache_config, *args, **kwargs)
        if self.vllm_config.aux_output_config.enabled:
            specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
            whole = [at for at, spec in enumerate(specs) if isinstance(spec, FullAttentionSpec)]
            if not whole:
                raise ValueError("--enable-return-routed-experts needs layers of full attention: the model has none")
            self.art_experts = Experts(self, whole[0])

    @functools.wraps(sample)
    def sample_tokens(self: Any, grammar_output: Any) -> Any:
        experts, state = getattr(self, "art_experts", None), self.execute_model_state
        sent = None if experts is None or state is None else experts.output(self, state[0])
        output = sample(self, grammar_output)
        if sent is not None:
            whole = getattr(output, "_model_runner_output", output)
            whole.aux_output_connector_output = sent
        return output

    VllmConfig._verify_aux_output_compatibility = verify_but_the_runner
    CPUModelRunner.initialize_kv_cache = initialize_kv_cache
    CPUModelRunner.sample_tokens = sample_tokens
