"""A policy that is trained from a sentence: a model invents the scenarios and judges the runs."""
