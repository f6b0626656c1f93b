"""A version as files for others: merged weights, GGUF; and the embedded base model made from its GGUF."""
