"""Tasks that a language model writes, and texts that one paraphrases."""
