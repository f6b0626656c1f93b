"""Training from the command line: a step from recorded runs or the loop (`train`), and a warm start (`sft`)."""
