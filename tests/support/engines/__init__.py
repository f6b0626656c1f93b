"""Engines of tests that are no vLLM, the modules that run in vLLM, and requests for slots."""
