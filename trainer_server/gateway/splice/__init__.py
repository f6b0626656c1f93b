"""Prompts that begin with the very tokens of the conversation's earlier turn, where that changes no message.

A chat template may render an earlier answer otherwise than the policy wrote it. The engine is then prompted with the
earlier turn's tokens and with what the template renders after them. `turns.py` remembers turns and finds the one that a
request continues, by the messages; `proof.py` decides whether its tokens can be used; `splicer.py` does this for a
request.
"""
