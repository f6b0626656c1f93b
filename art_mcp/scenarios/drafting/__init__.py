"""Drafts of tasks: which calls, with which values, and in which words."""
