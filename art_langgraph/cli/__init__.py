"""The command `art-langgraph`, a file for each group of commands."""
