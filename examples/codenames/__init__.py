"""Two agents that play Codenames: a spymaster who gives a clue and a guesser, each with a policy of its own."""
