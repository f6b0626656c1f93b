"""Inference engines: the protocol, the pool that routes requests, the adapters they hold."""
