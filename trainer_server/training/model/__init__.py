"""The base model with a LoRA, and log-probabilities along a prefix tree."""
