"""From the description of a task to a better policy: an LLM writes the inputs and judges the runs."""
