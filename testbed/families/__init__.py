"""Families of models: real tokenizers and chat templates, random weights, and a trial that trains each of them."""
