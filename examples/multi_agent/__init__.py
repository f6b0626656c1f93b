"""A supervisor that hands questions to workers, of whom each knows one thing."""
