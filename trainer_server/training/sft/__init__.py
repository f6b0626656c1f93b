"""Warm starts: supervised fine-tuning on demonstrations, on the same packed rows as a step."""
