"""Other APIs in which the gateway is asked: each translates its requests and answers to those of chat completions."""
