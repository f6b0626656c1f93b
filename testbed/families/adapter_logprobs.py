"""Log-probabilities of a prompt's tokens by the real vLLM, with each of several adapters. vLLM's own Python runs it.

Argument: JSON with `model`, `targets`, `adapters` (directory by name), `tokens`, and `options` of vLLM's `LLM`. The
last line of the output is JSON: by adapter, and by `base`, the log-probabilities of all tokens but the first, in nats;
or the text of vLLM's refusal.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def main(job: dict[str, Any]) -> None:
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    engine = LLM(
        model=job["model"],
        skip_tokenizer_init=True,
        max_model_len=256,
        enable_lora=True,
        max_loras=2,
        max_lora_rank=8,
        lora_target_modules=job["targets"],
        logprobs_mode="processed_logprobs",
        **job["options"],
    )
    prompt: Any = {"prompt_token_ids": job["tokens"]}
    params = SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False)
    found: dict[str, Any] = {}
    for number, (name, directory) in enumerate({"base": None, **job["adapters"]}.items()):
        adapter = None if directory is None else LoRARequest(name, number, directory)
        try:
            (answer,) = engine.generate([prompt], params, lora_request=adapter, use_tqdm=False)
        except ValueError as refusal:
            found[name] = str(refusal)
            continue
        places = zip(job["tokens"][1:], answer.prompt_logprobs[1:], strict=True)
        found[name] = [logprobs[token].logprob for token, logprobs in places]
    print(json.dumps(found))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
