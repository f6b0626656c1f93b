"""One GRPO step: batch, advantages, log-probs, loss, update, metrics."""
