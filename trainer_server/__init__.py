"""The trainer server: an OpenAI-compatible gateway in front of vLLM, GRPO on the LoRAs that it serves."""
