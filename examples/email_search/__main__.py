"""Teaches the embedded model to answer questions from a mailbox of 10,000 emails, by the tools of an MCP server."""

from __future__ import annotations

from pathlib import Path

from art_examples.email_search.task import email_search
from art_examples.learning.program import main

if __name__ == "__main__":
    main(__doc__, {"email_search": email_search}, Path(__file__).parent)
