"""The command `art-langgraph`, one file for each group of commands."""
