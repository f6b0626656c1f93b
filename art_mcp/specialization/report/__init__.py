"""The report of a specialization: success by set, tool and difficulty, failures by kind, costs, and what to do next."""
