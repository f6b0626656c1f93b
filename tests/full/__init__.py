"""Programs as a user starts them, over the real vLLM: engines, clients, and what is learnt."""
