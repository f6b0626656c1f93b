"""Typed answers of any chat model: retries, fallbacks, a cache."""
